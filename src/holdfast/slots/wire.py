"""Frames between a node, its fork server and its slots.

A frame is its length in four bytes, the number of the call that it is about in eight, then MessagePack. A
slot's calls are numbered from 1, attempts at tasks as their pool numbers them. 0 stands for no call.
"""

from __future__ import annotations

import struct

import msgspec

from holdfast.ports.slots import Attempt, MessageWork, Progress, QueryResult, RunResult, Tried

HEADER = struct.Struct("!IQ")


class SlotSetup(msgspec.Struct, frozen=True, array_like=True):
    """To the fork server, first: what slots run. ``factory`` makes a worker from a host and ``args``."""

    node: int
    preload: list[str]
    factory: str
    args: list[str]
    memory_bytes: int
    tasks: bool = False
    show_locals: bool = False


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To the fork server: a new slot. Its descriptors come along: a socket and a pipe for its stacks; for
    tasks also its tray and a pipe for its output."""

    name: str


class Signal(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To the fork server: signal a slot; with ``group``, all its descendants too."""

    name: str
    number: int
    group: bool


class KillAfter(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To the fork server: kill the slot and its descendants so many seconds from now, unless this is said
    again before; None: never."""

    name: str
    seconds: float | None


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """From the fork server."""

    name: str
    pid: int


class Exited(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From the fork server: a slot ended and was reaped. ``code`` is minus the signal if one ended it."""

    name: str
    code: int


class OpenStream(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To a slot."""

    stream: str
    key: str
    state: bytes | None
    version: int


class RunMessages(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To a slot."""

    stream: str
    key: str
    work: list[MessageWork]
    limit: int
    after_s: float


class CloseStream(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To a slot."""

    stream: str
    key: str


class LoadStream(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To a slot."""

    stream: str
    key: str
    models: list[str]


class QueryStream(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To a slot."""

    stream: str
    key: str
    state: bytes | None
    version: int
    request: bytes


class SlotReady(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """From a slot, first: the app is imported, or ``error`` says why not."""

    pid: int
    error: str = ""


class Noted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From a slot for streams, at any time: the call advances."""

    note: str


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """From a slot: the answer to LoadStream, OpenStream and CloseStream.

    ``rejected`` tells a state's fault from the handler's, ``model`` that of a model."""

    error: str = ""
    detail: str = ""
    rejected: bool = False
    model: str = ""


class RunDone(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """From a slot: the answer to RunMessages."""

    ran: RunResult


class SlotModels(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """From a slot, whenever either changes: the model that the call is loading, and those that are loaded."""

    loading: str
    loaded: list[str]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """In a slot's tray: an attempt. Where its body and what it follows upon are ``attached``, the descriptor
    of a file that holds both comes along; the body has so many bytes of it."""

    number: int
    attempt: Attempt
    attached: int | None = None


class CancelAttempt(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To a slot for tasks: the attempt is to end."""

    reason: str


class LookAtAttempt(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To a slot for tasks: where is the attempt?"""


class AttemptEnded(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From a slot for tasks: the attempt has ended."""

    tried: Tried


class Advanced(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From a slot for tasks, at any time: the attempt advances."""

    progress: Progress


class LogLine(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """From a slot for tasks, at any time: a line of the attempt for the log."""

    level: str
    event: str
    values: dict[str, str | int | float | bool | None]


class AttemptStacks(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """From a slot for tasks: where the attempt is, thread by thread; "" for one that isn't at hand."""

    text: str


class QueryDone(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """From a slot: the answer to QueryStream."""

    queried: QueryResult


Order = Spawn | Signal | KillAfter
Event = Spawned | Exited
Request = OpenStream | RunMessages | CloseStream | LoadStream | QueryStream
Answer = SlotReady | Noted | Opened | RunDone | SlotModels | QueryDone
TaskRequest = CancelAttempt | LookAtAttempt
TaskAnswer = SlotReady | AttemptEnded | Advanced | LogLine | AttemptStacks

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct, call: int = 0) -> bytearray:
    """A message with its length, and the call that it is about."""
    buffer = bytearray(HEADER.size)
    try:
        _encoder.encode_into(message, buffer, HEADER.size)
    except OverflowError:
        _encoder.encode_into(_spelled(message), buffer, HEADER.size)
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER.size, call)
    return buffer


def _spelled(message: msgspec.Struct) -> msgspec.Struct:
    """A RunMessages whose numbers are past the 64 bits that MessagePack has, with texts in their place."""
    assert isinstance(message, RunMessages)
    names = MessageWork.__struct_fields__
    work = [
        [str(getattr(item, name)) if name in ("run", "seq") else getattr(item, name) for name in names]
        for item in message.work
    ]
    return msgspec.structs.replace(message, work=work)


class Splitter:
    """Cuts a byte stream into frames.

    Attributes:
        unfinished: the call whose frame has come in part; 0 for none.
    """

    def __init__(self) -> None:
        self.unfinished = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take what was read; returns the frames that are complete, each as its call and its payload."""
        buffer = self._buffer
        buffer += data
        frames = []
        at = self.unfinished = 0
        while len(buffer) >= at + HEADER.size:
            size, call = HEADER.unpack_from(buffer, at)
            end = at + HEADER.size + size
            if len(buffer) < end:
                self.unfinished = call
                break
            frames.append((call, bytes(buffer[at + HEADER.size : end])))
            at = end
        del buffer[:at]
        return frames
