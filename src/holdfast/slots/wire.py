"""Frames between a node, its fork server and its slots.

A frame is its length in four bytes, the number of its call in eight, then MessagePack. A slot's calls are
numbered from 1, attempts at tasks as their pool numbers them. 0 stands for no call.
"""

from __future__ import annotations

import struct

import msgspec

from holdfast.ports.slots import Attempt, AttemptReport, MessageWork, Progress, QueryResult, RunResult

HEADER = struct.Struct("!IQ")


class SlotSetup(msgspec.Struct, frozen=True, array_like=True):
    """The first message to the fork server. ``factory`` makes a slot's worker from a host and ``args``."""

    node: int
    preload: list[str]
    factory: str
    args: list[str]
    memory_bytes: int
    tasks: bool = False
    show_locals: bool = False


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To the fork server: fork a slot. Its descriptors come with the message: a socket and a pipe for its
    stacks; for tasks also its prefetch buffer and a pipe for its output."""

    name: str


class Signal(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To the fork server: signal a slot; with ``group``, all its descendants too."""

    name: str
    number: int
    group: bool


class KillAfter(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To the fork server: kill the slot and its descendants after this time, unless another message comes
    before; None for never."""

    name: str
    seconds: float | None


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """From the fork server: a slot was forked."""

    name: str
    pid: int


class Exited(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From the fork server: a slot ended and was reaped. ``code`` is minus the signal if one ended it."""

    name: str
    code: int


class OpenStream(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To a slot: open a stream."""

    stream: str
    key: str
    state: bytes | None
    version: int


class RunMessages(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To a slot: handle messages."""

    stream: str
    key: str
    work: list[MessageWork]
    limit: int
    after_s: float


class CloseStream(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To a slot: close a stream."""

    stream: str
    key: str


class LoadStream(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To a slot: load a stream's models."""

    stream: str
    key: str
    models: list[str]


class QueryStream(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To a slot: answer a query."""

    stream: str
    key: str
    state: bytes | None
    version: int
    request: bytes


class SlotReady(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first message of a slot: it has imported the app, or ``error`` has the reason."""

    pid: int
    error: str = ""


class Noted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From a slot for streams, at any time: the call advances."""

    note: str


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """From a slot: the answer to LoadStream, OpenStream and CloseStream.

    ``rejected``: the state is to blame, not the handler. ``model``: the model to blame."""

    error: str = ""
    detail: str = ""
    rejected: bool = False
    model: str = ""


class RunDone(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """From a slot: the answer to RunMessages."""

    result: RunResult


class SlotModels(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """From a slot, after each change: the model that the call loads now, and the loaded models."""

    loading: str
    loaded: list[str]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """An attempt in a slot's prefetch buffer. With ``attached``, the descriptor of a file with ``body`` and
    ``after`` comes with the message; ``attached`` is the size of the body in it."""

    number: int
    attempt: Attempt
    attached: int | None = None


class CancelAttempt(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """To a slot for tasks: end the attempt."""

    reason: str


class StacksRequest(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To a slot for tasks: return the attempt's stacks."""


class AttemptEnded(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From a slot for tasks: the attempt has ended."""

    report: AttemptReport


class Advanced(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From a slot for tasks, at any time: the attempt advances."""

    progress: Progress


class LogLine(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """From a slot for tasks, at any time: a line of the attempt for the log."""

    level: str
    event: str
    values: dict[str, str | int | float | bool | None]


class AttemptStacks(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """From a slot for tasks: the attempt's stacks, thread by thread; "" if it isn't running."""

    text: str


class QueryDone(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """From a slot: the answer to QueryStream."""

    result: QueryResult


Order = Spawn | Signal | KillAfter
Event = Spawned | Exited
Request = OpenStream | RunMessages | CloseStream | LoadStream | QueryStream
Answer = SlotReady | Noted | Opened | RunDone | SlotModels | QueryDone
TaskRequest = CancelAttempt | StacksRequest
TaskAnswer = SlotReady | AttemptEnded | Advanced | LogLine | AttemptStacks

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct, call: int = 0) -> bytearray:
    """Return a message as a frame of that call."""
    buffer = bytearray(HEADER.size)
    try:
        _encoder.encode_into(message, buffer, HEADER.size)
    except OverflowError:
        _encoder.encode_into(_with_texts(message), buffer, HEADER.size)
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER.size, call)
    return buffer


def _with_texts(message: msgspec.Struct) -> msgspec.Struct:
    """Return a RunMessages with texts for its numbers, which are too large for MessagePack's 64 bits."""
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
        unfinished: the call whose frame is incomplete; 0 for none.
    """

    def __init__(self) -> None:
        self.unfinished = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take received bytes; return the complete frames, each as its call and its payload."""
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
