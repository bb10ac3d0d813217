"""Slots for tasks, forked from a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import msgspec

from holdfast.ports.clock import Clock
from holdfast.ports.slots import Attempt, AttemptReport, Listener
from holdfast.slots import lifeline, wire
from holdfast.slots.output import DROPPED, Output
from holdfast.slots.process import ProcessSetup, SlotProcess
from holdfast.slots.slots import ForkserverSlots, SlotSettings
from holdfast.slots.task_child import BUFFER_BYTES, STACKS_SIGNAL
from holdfast.system.log import get_logger

DUMP_TIMEOUT_S = 0.1
ANSWER_TIMEOUT_S = 1.0
"""Seconds for a process to return its attempt's stacks."""

INLINE_BYTES_MAX = 1 << 16
"""The most bytes of body and ``after`` in the prefetch buffer, whose messages are limited; larger ones go
into a file."""

_decode = msgspec.msgpack.Decoder(wire.TaskAnswer).decode
_decode_offer = msgspec.msgpack.Decoder(wire.Offer).decode
_encode = msgspec.msgpack.Encoder().encode

log = get_logger(__name__)

FD_ROOM = socket.CMSG_SPACE(struct.calcsize("i"))


class PrefetchBuffer:
    """Attempts on their way to a process. The node keeps both ends, so that it can take back attempts that
    the process hasn't taken: the kernel gives each message to one receiver."""

    def __init__(self) -> None:
        # One message for each attempt. Datagrams replace the missing message stream of other systems.
        kind = socket.SOCK_SEQPACKET if lifeline.LINUX else socket.SOCK_DGRAM
        self._near, self._far = socket.socketpair(socket.AF_UNIX, kind)
        self._near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._near.setblocking(False)

    def fileno(self) -> int:
        """Return the process's end."""
        return self._far.fileno()

    def put(self, offer: wire.Offer) -> bool:
        """Add an attempt; return False if there is no room, or no process."""
        body, after = offer.attempt.body, offer.attempt.after
        try:
            if len(body) + len(after) <= INLINE_BYTES_MAX:
                self._near.send(_encode(offer))
            else:
                light = msgspec.structs.replace(offer.attempt, body=b"", after=b"")
                with _file(body, after) as file:
                    data = _encode(wire.Offer(offer.number, light, attached=len(body)))
                    socket.send_fds(self._near, [data], [file.fileno()])
        except (BlockingIOError, BrokenPipeError):
            return False
        return True

    def take_back(self) -> list[int]:
        """Remove all attempts, and return their numbers."""
        numbers = []
        with contextlib.suppress(BlockingIOError):
            while True:
                # Not recv_fds: in Python 3.11 it ignores the flags.
                data, ancillary, _, _ = self._far.recvmsg(BUFFER_BYTES, FD_ROOM, socket.MSG_DONTWAIT)
                for _, _, fd in ancillary:
                    os.close(struct.unpack("i", fd[:4])[0])
                if not data:
                    break
                numbers.append(_decode_offer(data).number)
        return numbers

    def finish(self) -> None:
        """Let the process end after the last attempt."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_WR) if lifeline.LINUX else self._near.send(b"")

    def close(self) -> None:
        self._near.close()
        self._far.close()


class _StacksQuestion:
    """A question for an attempt's stacks, shared by all callers at the same time."""

    __slots__ = ("answered", "text")

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.text: str | None = None


class ForkserverTaskSlot(SlotProcess):
    """A child process that takes attempts from its prefetch buffer, one after another."""

    def __init__(self, given: ProcessSetup, listener: Listener) -> None:
        super().__init__(given)
        self._default_mb = given.memory_mb
        self._listener = listener
        self._buffer = PrefetchBuffer()
        pipe, self._pen = os.pipe()
        self._output = Output(pipe, given.clock, self._on_line, self._on_dropped)
        self._given: dict[int, int] = {}
        """The limit of memory of each unfinished attempt in MiB, by number, the oldest first."""
        self._dumped = asyncio.Event()
        self._questions: dict[int, _StacksQuestion] = {}

    @property
    def fds(self) -> Sequence[int]:
        return self._buffer.fileno(), self._pen

    def forked(self) -> None:
        os.close(self._pen)

    def offer(self, number: int, attempt: Attempt) -> bool:
        if self._why or not self._buffer.put(wire.Offer(number, attempt)):
            return False
        self._given[number] = attempt.memory_mb or self._default_mb
        self.memory_mb = next(iter(self._given.values()))
        return True

    def withdraw(self) -> list[int]:
        numbers = [] if self._why else self._buffer.take_back()
        for number in numbers:
            del self._given[number]
        return numbers

    def cancel(self, number: int, reason: str) -> None:
        if not self._transport.is_closing():
            self._transport.write(wire.frame(wire.CancelAttempt(reason), number))

    def lease(self, seconds: float | None) -> None:
        self._server.lease(self.name, seconds)

    async def dump(self) -> str:
        if self._exited.is_set():
            return ""
        self._read_stacks()
        self._server.signal(self.name, STACKS_SIGNAL)
        self._dumped.clear()
        asyncio.get_running_loop().add_reader(self._stacks, self._end_dump)
        if await self._clock.wait(self._dumped, DUMP_TIMEOUT_S):
            await self._clock.sleep(DUMP_TIMEOUT_S / 10)  # the process writes it in pieces
        if self._exited.is_set():
            return self._dump
        self._end_dump()
        return self._read_stacks()

    async def stacks_of(self, number: int) -> str | None:
        if self._why or number not in self._given:
            return ""
        if (question := self._questions.get(number)) is None:
            question = self._questions[number] = _StacksQuestion()
            self._transport.write(wire.frame(wire.StacksRequest(), number))
        await self._clock.wait(question.answered, ANSWER_TIMEOUT_S)
        if self._questions.get(number) is question:
            del self._questions[number]
        return question.text

    def terminate(self) -> None:
        self._server.signal(self.name, signal.SIGTERM, group=True)

    async def kill(self, reason: str) -> str:
        return await self._kill(reason, dump=False)

    def on_frame(self, call: int, payload: bytes) -> None:
        match _decode(payload):
            case wire.AttemptEnded(report):
                self._ended(call, report)
            case wire.Advanced(progress):
                self._listener.on_progress(self, call, progress)
            case wire.AttemptStacks(text):
                self._found(call, text)
            case wire.LogLine(level, event, values):
                self._listener.on_log(self, call, level, event, values)
            case wire.SlotReady(pid, error):
                self.pid = pid
                self.refusal = error
                self.ready.set()

    def _ended(self, number: int, report: AttemptReport) -> None:
        if number not in self._given:
            log.warning("slot ended an unknown attempt", slot=self.name, attempt=number)
            return
        if report.output or self._output.pending:
            self._output.flush()
        del self._given[number]
        self.memory_mb = next(iter(self._given.values()), self._default_mb)
        self._listener.on_ended(self, number, report)

    def _on_line(self, line: str) -> None:
        """Log a line of standard output, as the running attempt's."""
        self._listener.on_log(self, next(iter(self._given), 0), "info", line, {})

    def _on_dropped(self, lines: int, size: int) -> None:
        dropped = {"lines": lines, "bytes": size}
        self._listener.on_log(self, next(iter(self._given), 0), "warning", DROPPED, dropped)

    def _found(self, number: int, text: str) -> None:
        if (question := self._questions.pop(number, None)) is not None:
            question.text = text
            question.answered.set()

    def lost(self) -> None:
        self._end_dump()
        for number in list(self._questions):
            self._found(number, "")
        self._untouched = self._buffer.take_back()
        self._buffer.close()
        self._output.close()

    def _dismiss(self) -> None:
        self._buffer.finish()

    def _end_dump(self) -> None:
        asyncio.get_running_loop().remove_reader(self._stacks)
        self._dumped.set()


@dataclass(frozen=True, kw_only=True)
class TaskSlotSettings(SlotSettings):
    """The settings of the slots that run tasks."""

    worker: str = "holdfast.tasks.worker:load"
    prefix: str = "task-slot"
    close_timeout_s: float = 1.0
    check_s: float = 0.5


def task_slots(settings: TaskSlotSettings, clock: Clock) -> ForkserverSlots[[Listener], ForkserverTaskSlot]:
    """Return the maker of slots for an app's tasks."""
    return ForkserverSlots(settings, clock, settings.setup(tasks=True), ForkserverTaskSlot)


def _file(*parts: bytes) -> IO[bytes]:
    """Return a file with these parts, in memory where the system can."""
    memory = os.memfd_create("body") if lifeline.LINUX else None
    file = tempfile.TemporaryFile() if memory is None else os.fdopen(memory, "w+b")  # noqa: SIM115
    file.writelines(parts)
    file.flush()
    return file
