"""The next step of a file's delivery, chosen by its record and by the file at its destination. Pure.

A delivery is recorded step by step, so that the next attempt knows what a dead worker left::

    SENDING   the service may hold a part of the file, under one of ``tokens``; ``marks`` say what it holds
    PLACING   the whole file was sent; it may be in its place already
    PLACED    the file is in its place; companions may be missing
    DONE      nothing is left to do
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.reports.ports.sink import UNKNOWN_SIZE, RemoteFile
from holdfast.reports.rules.remote_name import check

MARK_BYTES = 8 << 20
MARKS_MAX = 16
"""Marks in a record. No connection buffers the bytes of 16 marks, so the service holds one of them."""


class Companion(enum.Enum):
    """A small file beside the report, and its suffix. ``OK`` is empty, and says that the report is complete;
    ``sha256sum --check`` and ``md5sum --check`` read the others."""

    SHA256 = ".sha256"
    MD5 = ".md5"
    OK = ".ok"


class FileToDeliver(msgspec.Struct, frozen=True, kw_only=True):
    """One file to deliver.

    Args:
        name: the remote name, below the destination's folder.
        content: an identity of the bytes (versions of the sources, columns, format). An upload is resumed
            only if it is the same.
        replace: whether the file may replace another of that name.
        read_back: read the file back to compare its content, where the service computes no checksum.
        in_place: write the file under its own name, for servers that can't rename: readers see it grow. Such
            an upload is never resumed.
        companions: written after the file, in this order.
        if_gone: what to do if a delivered file is gone or was replaced, as where customers remove their
            files: ``leave`` it so, or ``send`` it again.
    """

    name: str
    content: str
    replace: bool = True
    read_back: bool = False
    in_place: bool = False
    companions: tuple[Companion, ...] = ()
    if_gone: Literal["leave", "send"] = "leave"

    def __post_init__(self) -> None:
        for name in (self.name, *(self.name + each.value for each in self.companions)):
            check(name)


class DeliveryStage(enum.Enum):
    """A stage of a delivery."""

    SENDING = "sending"
    PLACING = "placing"
    PLACED = "placed"
    DONE = "done"


class Mark(msgspec.Struct, frozen=True):
    """The SHA-256 (hex) of the first ``size`` bytes."""

    size: int
    sha256: str


class Record(msgspec.Struct, frozen=True):
    """The record of one file's delivery, to be kept under the task's identity.

    ``tokens`` name the uploads that the service may hold. ``size``, ``sha256`` and ``md5`` (if wanted) are
    the whole file's, from PLACING on; ``version`` is the service's mark, from PLACED on. ``opened``: the file
    under its own name is an upload in place.
    """

    name: str
    content: str
    stage: DeliveryStage = DeliveryStage.SENDING
    tokens: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    size: int = 0
    sha256: str = ""
    md5: str = ""
    version: str = ""
    opened: bool = False

    @property
    def removable(self) -> tuple[str, ...]:
        """The tokens of uploads that may be removed. Until an upload is opened in place, the file under its
        own name is the customer's."""
        return tuple(token for token in self.tokens if self.opened or token != self.name)


class DeliveryStep(enum.Enum):
    """The next step of a delivery, as :func:`decide` chooses it."""

    SEND = "send"
    RESUME = "resume"
    LOOK = "look"
    FINISH = "finish"
    NOTHING = "nothing"


def decide(file: FileToDeliver, record: Record | None, found: RemoteFile | None) -> DeliveryStep:
    """Return the next step: SEND the file from its beginning; RESUME its upload; LOOK whether the file at the
    destination is the one that was being placed, and RESUME if not; FINISH if only companions are missing;
    NOTHING if it was delivered.

    ``found`` is the file at the destination. Where its size or version is unknown, it counts as the recorded
    one."""
    if record is None or (record.name, record.content) != (file.name, file.content):
        return DeliveryStep.SEND
    stands = found is not None and _matches(record, found)
    match record.stage:
        case DeliveryStage.SENDING:
            return DeliveryStep.RESUME
        case DeliveryStage.PLACING:
            return DeliveryStep.LOOK if stands else DeliveryStep.RESUME
        case _ if not stands and file.if_gone == "send":
            return DeliveryStep.SEND
        case DeliveryStage.PLACED if stands:
            return DeliveryStep.FINISH
        case _:
            return DeliveryStep.NOTHING


def best(marks: Sequence[Mark], held: int, grain: int) -> Mark | None:
    """Return the greatest mark from which an upload can go on; or None."""
    fitting = [mark for mark in marks if 0 < mark.size <= held and mark.size % grain == 0]
    return max(fitting, key=lambda mark: mark.size, default=None)


def marks_every(grain: int) -> int:
    """Return the bytes between marks: MARK_BYTES rounded up to a multiple of ``grain``."""
    return grain * -(-MARK_BYTES // grain)


def companion(kind: Companion, record: Record) -> bytes:
    if kind is Companion.OK:
        return b""
    checksum = record.md5 if kind is Companion.MD5 else record.sha256
    return f"{checksum}  {record.name.rpartition('/')[2]}\n".encode()


def _matches(record: Record, found: RemoteFile) -> bool:
    """Return whether a file has the recorded size and version, as far as they are known."""
    versions = {record.version, found.version} - {""}
    return found.size in (record.size, UNKNOWN_SIZE) and (len(versions) < 2 or not record.version)
