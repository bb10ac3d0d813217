"""The format of archived messages of a stream: lines of JSON, in objects by key and hour.

``STREAM/KEY/2026-11-22T19/EPOCH-NUMBER-DIGEST.jsonl`` holds what one opening of the key has committed, as one
node wrote it at one time. No two writes have the same name: the state store issues each epoch of a key once,
one node has it, and that node numbers its writes. A write that is repeated has the same name and content.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.common.held import Held
from holdfast.common.message import CommitPlace, Place
from holdfast.common.record import UNREADABLE, from_base64
from holdfast.errors import InvalidMessage

ArchivedAs = Literal["done", "skip", "late", "far", "parked", "again"]
"""The outcome of an archived message in its commit: handled, failed for good, or set aside. ``again``: an
earlier commit covers it, and the message came again, for example because the node died before it wrote to the
archive."""

HOUR = "%Y-%m-%dT%H"
SEGMENT_CHARS_MAX = 160
"""The longest name of a folder. File systems take 255 bytes."""

AGAIN: Literal["again"] = "again"
SUFFIX = ".jsonl"


class ArchivedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message in an archive.

    ``run``, ``seq`` and ``id`` are its place in the stream. The commit ``number`` of ``epoch`` covers it, at
    the wall time ``at``; for one that came again, it is the last commit before that. The queue delivered it
    at the wall time ``received_at``; 0 for a message of an HTTP client. ``reason`` says why it was set aside.
    The body is ``body`` if it is JSON, else ``body_base64``.
    """

    key: str
    run: int
    seq: int
    epoch: int
    number: int
    at: float
    id: str = ""
    received_at: float = 0.0
    kind: ArchivedAs = "done"
    reason: str = ""
    attributes: dict[str, str] = {}
    body: msgspec.Raw | UnsetType = UNSET
    body_base64: str = ""

    @property
    def place(self) -> Place:
        """The place in the stream."""
        return Place(self.run, self.seq, self.id)

    @property
    def content(self) -> bytes:
        """The body as it was sent. Raises ValueError for text that isn't base64."""
        return from_base64(self.body_base64.encode()) if self.body is UNSET else bytes(self.body)


class ObjectName(NamedTuple):
    """The parts of the name of an object in an archive. ``again``: it holds messages that came again."""

    stream: str
    key: str
    hour: str
    epoch: int
    number: int
    again: bool

    @classmethod
    def of(cls, url: str) -> ObjectName | None:
        """Return the parts of the name that an object's URL ends in; None if the object is none of ours."""
        stream, key, hour, name = ["", "", "", *url.split("/")][-4:]
        parts = name.removesuffix(SUFFIX).split("-")
        if not name.endswith(SUFFIX) or not all(part.isascii() and part.isdigit() for part in parts[:2]):
            return None
        if len(parts) not in (3, 4) or parts[3:] not in ([], [AGAIN]):
            return None
        return cls(unquote(stream), unquote(key), unquote(hour), int(parts[0]), int(parts[1]), len(parts) > 3)


def object_name(stream: str, key: str, commit: CommitPlace, number: int, *, again: bool) -> str:
    """Return the name of the object for messages of a key, the first of which ``commit`` covers. ``number``
    is that of the write."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).hexdigest()  # some file systems ignore case
    name = f"{commit.epoch:016d}-{number:010d}-{digest}{f'-{AGAIN}' if again else ''}{SUFFIX}"
    return f"{folder(stream, key)}/{hour_of(commit.at)}/{name}"


def folder(stream: str, key: str | None = None) -> str:
    """Return the name below which the messages of a stream are, or of one key of it."""
    return segment(stream) if key is None else f"{segment(stream)}/{segment(key)}"


def segment(text: str) -> str:
    """Return a text as a part of an object's name, which every object store takes. A long one is cut, and
    has a digest of the whole text."""
    quoted = quote(text, safe="")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if len(quoted) <= SEGMENT_CHARS_MAX:
        return quoted
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{quoted[: SEGMENT_CHARS_MAX - len(digest) - 1]}={digest}"  # quote() leaves no "="


def hour_of(at: float) -> str:
    """Return the hour of a wall time, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime(HOUR)


def archived(key: str, held: Held, commit: CommitPlace, received_at: float) -> ArchivedMessage:
    """Return a message as it is archived."""
    is_json = _is_json(held.body)
    return ArchivedMessage(
        key=key,
        run=held.place.run,
        seq=held.place.seq,
        epoch=commit.epoch,
        number=commit.number,
        at=commit.at,
        id=held.place.id,
        received_at=received_at,
        kind=held.covered_as or AGAIN,
        reason=held.aside,
        attributes=held.attributes,
        body=msgspec.Raw(held.body) if is_json else UNSET,
        body_base64="" if is_json else base64.b64encode(held.body).decode(),
    )


def _is_json(body: bytes) -> bool:
    """Return True for a body that stays the same, byte by byte, as a value on a line of JSON."""
    if not body or b"\n" in body or b"\r" in body or body != body.strip():
        return False
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ArchivedMessage)


def lines_of(messages: Iterable[ArchivedMessage]) -> bytes:
    """Return the content of an object."""
    return _encoder.encode_lines(messages)


def read_line(line: bytes, where: str) -> ArchivedMessage:
    """Return the message on a line. Raises InvalidMessage, which names ``where`` the line is."""
    try:
        message = _decoder.decode(line)
        message.content  # noqa: B018 - base64 that can't be read is found here
    except UNREADABLE as error:
        raise InvalidMessage(
            f"{where} can't be read ({error}): correct or delete that line, or pass over such lines with"
            " --keep-going"
        ) from error
    return message
