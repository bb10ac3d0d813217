"""Bodies and attributes as SQS takes them: text of the characters that XML allows, ten attributes at most.

Texts that fit are sent unchanged, so that other programs understand them. A body that isn't such text is sent
as base64, with the attribute ``holdfast-body``. Attributes that don't fit are sent together as JSON in
``holdfast-attributes``. The reason and place of a dead letter are JSON in ``holdfast``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.common.record import UNREADABLE
from holdfast.common.traceparent import TRACEPARENT, write_traceparent
from holdfast.errors import TooLarge
from holdfast.services.aws.sqs import SqsMessage

MESSAGE_BYTES = 1024**2
"""The largest message with its attributes, and the largest batch, in bytes."""

MAX_BYTES = 720 * 1024
"""The largest body: as base64 it leaves 64 KiB for attributes."""

BODY = "holdfast-body"
PACKED = "holdfast-attributes"
DEAD_LETTER = "holdfast"
OURS = frozenset({BODY, PACKED, DEAD_LETTER})
PLAIN_MAX = 10 - len(OURS)

TRACE_HEADER = re.compile(
    r"(?:^|;)\s*Root=1-([0-9a-f]{8})-([0-9a-f]{24})\b.*?;\s*Parent=([0-9a-f]{16})\b", re.IGNORECASE
)
"""The form of ``AWSTraceHeader``, which AWS X-Ray adds beside the ten attributes."""

ODD_CHARACTER = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd]")
"""Characters that aren't sent unchanged. SQS accepts those over U+FFFF, but some compatible servers don't."""

NAME = re.compile(r"(?!aws\.|amazon\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
NAME_MAX = 256

Entry = dict[str, Any]


def encode(body: bytes, attributes: Mapping[str, str], letter: str = "") -> Entry:
    """Return the entry of a batch that sends a message; ``letter`` is JSON."""
    text, marks = _text(body)
    plain = [name for name, value in attributes.items() if _fits(name, value)]
    plain.sort(key=TRACEPARENT.__ne__)  # first: other programs read it
    del plain[PLAIN_MAX:]
    for name in plain:
        marks[name] = attributes[name]
    if len(plain) < len(attributes):
        marks[PACKED] = json.dumps({name: attributes[name] for name in attributes if name not in plain})
    if letter:
        marks[DEAD_LETTER] = letter
    entry: Entry = {"MessageBody": text}
    if marks:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in marks.items()
        }
    return entry


def decode(message: SqsMessage) -> tuple[bytes, dict[str, str], str]:
    """Return body, attributes and letter of a message. Messages of other producers arrive unchanged: numbers
    as text, binary attributes as base64."""
    found = {
        name: value.string_value if value.string_value is not None else value.binary_value or ""
        for name, value in message.message_attributes.items()
    }
    letter = found.pop(DEAD_LETTER, "")
    body = message.body.encode()
    try:
        if found.get(BODY) == "base64":
            body = base64.b64decode(message.body.strip(), validate=True)
            del found[BODY]
        if PACKED in found:
            packed = {str(name): str(value) for name, value in json.loads(found[PACKED]).items()}
            del found[PACKED]
            found |= packed
    except (*UNREADABLE, AttributeError):
        pass  # made by another program: unchanged
    if TRACEPARENT not in found and (header := message.attributes.get("AWSTraceHeader")):
        found |= _traced(header)
    return body, found, letter


def size(entry: Entry) -> int:
    """Return the bytes of a message as SQS counts them."""
    attributes = entry.get("MessageAttributes", {})
    return len(entry["MessageBody"].encode()) + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"].encode())
        for name, value in attributes.items()
    )


def batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Split entries into as few calls as possible, in order. Raises TooLarge for an entry over the limit. A
    call has one entry of a FIFO group at most: of two, the second might succeed where the first failed."""
    split: list[list[Entry]] = []
    groups: set[str] = set()
    room = 0
    for entry in entries:
        length = size(entry)
        group = entry.get("MessageGroupId", "")
        if length > MESSAGE_BYTES:
            raise TooLarge(f"a message of {length} bytes with its attributes is over SQS's {MESSAGE_BYTES}")
        if length > room or len(split[-1]) == 10 or group in groups:
            split.append([])
            groups.clear()
            room = MESSAGE_BYTES
        split[-1].append(entry)
        room -= length
        if group:
            groups.add(group)
    return split


def _traced(header: str) -> dict[str, str]:
    """Return the ``traceparent`` in the X-Ray header of a message without one."""
    found = TRACE_HEADER.search(header)
    if found is None:
        return {}
    sampled = re.search(r"Sampled=1\b", header) is not None
    trace_id, span_id = f"{found[1]}{found[2]}".lower(), found[3].lower()
    return {TRACEPARENT: write_traceparent(trace_id, span_id, sampled=sampled)}


def _text(body: bytes) -> tuple[str, dict[str, str]]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if text and not ODD_CHARACTER.search(text):
        return text, {}
    return base64.b64encode(body).decode() or " ", {BODY: "base64"}


def _fits(name: str, value: str) -> bool:
    return (
        name not in OURS
        and len(name) <= NAME_MAX
        and NAME.fullmatch(name) is not None
        and value != ""
        and not ODD_CHARACTER.search(value)
    )
