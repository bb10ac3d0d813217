"""The next step of a file's delivery, by what is recorded of it and what stands at its destination. Pure.

A delivery is recorded step by step, so that whoever comes next knows what a dead worker left::

    SENDING   the service may hold a part of it, under one of ``tokens``; ``marks`` tell its content so far
    PLACING   all of it was sent; it may be in its place already
    PLACED    it is in its place; companions may lack
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
"""The service holds at least what was sent this many marks ago, for no connection buffers that much."""


class Companion(enum.Enum):
    """A small file beside the report, by what is added to its name. ``OK`` is empty, and says that all is
    there; the others are what ``sha256sum --check`` and ``md5sum --check`` read."""

    SHA256 = ".sha256"
    MD5 = ".md5"
    OK = ".ok"


class FileToDeliver(msgspec.Struct, frozen=True, kw_only=True):
    """One file to deliver.

    Args:
        name: the remote name, below the destination's folder.
        content: what the bytes follow from (versions of the sources, columns, format): the same only if they
            are the same. A half-sent file is gone on with only then.
        replace: whether it takes the place of a file of that name.
        read_back: compare the content even where the service tells no checksum, by reading it back.
        in_place: write it under its own name, for servers that can't rename: readers see it grow. A part of
            it is never gone on with.
        companions: written after it, in this order.
        if_gone: what to do if it was delivered, and another file stands there now or none, as where customers
            take their files away: ``leave`` it so, or ``send`` it again.
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

    ``tokens`` name what the service may hold of it. ``size``, ``sha256`` and ``md5`` (if wanted) are the
    whole file's, from PLACING on; ``version`` is the service's mark of it, from PLACED on. ``opened``: the
    file that stands under its own name is a part of this one, which was opened in place.
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
        """The tokens of what may be removed. Until it is opened in place, the file under its own name is the
        customer's."""
        return tuple(token for token in self.tokens if self.opened or token != self.name)


class DeliveryStep(enum.Enum):
    """The next step of a delivery, as :func:`decide` chooses it."""

    SEND = "send"
    RESUME = "resume"
    LOOK = "look"
    FINISH = "finish"
    NOTHING = "nothing"


def decide(parcel: FileToDeliver, record: Record | None, found: RemoteFile | None) -> DeliveryStep:
    """SEND it anew; RESUME what was half-sent; LOOK whether the file that was being placed is the one that
    stands there, and RESUME if not; FINISH, for only companions lack; or NOTHING, for it was delivered.

    ``found`` is what stands under the parcel's name; as far as nothing is told of it, it is taken for the
    file that is recorded."""
    if record is None or (record.name, record.content) != (parcel.name, parcel.content):
        return DeliveryStep.SEND
    stands = found is not None and _is(record, found)
    match record.stage:
        case DeliveryStage.SENDING:
            return DeliveryStep.RESUME
        case DeliveryStage.PLACING:
            return DeliveryStep.LOOK if stands else DeliveryStep.RESUME
        case _ if not stands and parcel.if_gone == "send":
            return DeliveryStep.SEND
        case DeliveryStage.PLACED if stands:
            return DeliveryStep.FINISH
        case _:
            return DeliveryStep.NOTHING


def best(marks: Sequence[Mark], held: int, grain: int) -> Mark | None:
    """From where to go on: the greatest mark that the service holds and can go on from."""
    fitting = [mark for mark in marks if 0 < mark.size <= held and mark.size % grain == 0]
    return max(fitting, key=lambda mark: mark.size, default=None)


def marks_every(grain: int) -> int:
    """Return the distance between marks in bytes: the least multiple of ``grain`` that isn't below
    MARK_BYTES."""
    return grain * -(-MARK_BYTES // grain)


def companion(kind: Companion, record: Record) -> bytes:
    """The content of a companion."""
    if kind is Companion.OK:
        return b""
    checksum = record.md5 if kind is Companion.MD5 else record.sha256
    return f"{checksum}  {record.name.rpartition('/')[2]}\n".encode()


def _is(record: Record, found: RemoteFile) -> bool:
    """Return whether the file that stands there is the recorded one, as far as its size and version tell."""
    versions = {record.version, found.version} - {""}
    return found.size in (record.size, UNKNOWN_SIZE) and (len(versions) < 2 or not record.version)
