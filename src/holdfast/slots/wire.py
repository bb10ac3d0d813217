"""Frames between a node, its fork server and its slots: a length of four bytes, then MessagePack."""

from __future__ import annotations

import struct

import msgspec

from holdfast.ports.slots import MessageWork, Ran
from holdfast.ports.task_slots import Attempt, Progress, Tried

HEADER = struct.Struct("!I")


class SlotSetup(msgspec.Struct, frozen=True, array_like=True):
    """To the fork server, first: what slots run. ``factory`` makes a worker from a host and ``args``."""

    node: int
    preload: list[str]
    factory: str
    args: list[str]
    memory_bytes: int
    tasks: bool = False


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


class SlotReady(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """From a slot, first: the app is imported, or ``error`` says why not."""

    pid: int
    error: str = ""


class Noted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From a slot for streams, at any time: it advances."""

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

    ran: Ran


class SlotModels(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """From a slot, whenever either changes: the model that is being loaded, and those that are."""

    loading: str
    loaded: list[str]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """In a slot's tray: an attempt. Where its body is ``attached``, the descriptor of a file that holds it
    comes along."""

    number: int
    attempt: Attempt
    attached: bool = False


class CancelAttempt(msgspec.Struct, frozen=True, array_like=True):
    """To a slot for tasks: an attempt is to end."""

    number: int
    reason: str


class AttemptEnded(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From a slot for tasks: an attempt has ended."""

    number: int
    tried: Tried


class Advanced(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From a slot for tasks, at any time."""

    progress: Progress


class LogLine(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """From a slot for tasks, at any time: a line for the log."""

    level: str
    event: str
    values: dict[str, str | int | float | bool | None]


Order = Spawn | Signal | KillAfter
Event = Spawned | Exited
Request = OpenStream | RunMessages | CloseStream | LoadStream
Answer = SlotReady | Noted | Opened | RunDone | SlotModels
TaskAnswer = SlotReady | AttemptEnded | Advanced | LogLine

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytearray:
    """A message with its length."""
    buffer = bytearray(HEADER.size)
    try:
        _encoder.encode_into(message, buffer, HEADER.size)
    except OverflowError:
        _encoder.encode_into(_spelled(message), buffer, HEADER.size)
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER.size)
    return buffer


def _spelled(message: msgspec.Struct) -> msgspec.Struct:
    """A RunMessages whose numbers are past the 64 bits that MessagePack has, with texts in their place."""
    assert isinstance(message, RunMessages)
    work = [[str(item.run), str(item.seq), item.body, item.attempt] for item in message.work]
    return msgspec.structs.replace(message, work=work)


class Splitter:
    """Cuts a byte stream into the payloads of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read; returns the payloads that are complete."""
        buffer = self._buffer
        buffer += data
        payloads = []
        at = 0
        while len(buffer) >= at + HEADER.size:
            end = at + HEADER.size + HEADER.unpack_from(buffer, at)[0]
            if len(buffer) < end:
                break
            payloads.append(bytes(buffer[at + HEADER.size : end]))
            at = end
        del buffer[:at]
        return payloads
