"""Slots for tasks, from a fork server."""

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
from holdfast.ports.slots import Attempt, Listener, Tried
from holdfast.slots import lifeline, wire
from holdfast.slots.descendants import MIB
from holdfast.slots.output import DROPPED, Output
from holdfast.slots.process import ProcessSetup, SlotProcess
from holdfast.slots.slots import ForkserverSlots, SlotSettings
from holdfast.slots.task_child import LOOK_SIGNAL, TRAY_BYTES
from holdfast.system.log import get_logger

LOOK_TIMEOUT_S = 0.1
ANSWER_TIMEOUT_S = 1.0
"""How long a process may take to say where its attempt is."""

BESIDE_BYTES = 1 << 16
"""Bodies with outcomes of the task before that are larger together go beside the tray, which takes no message
of any size."""

_decode = msgspec.msgpack.Decoder(wire.TaskAnswer).decode
_decode_offer = msgspec.msgpack.Decoder(wire.Offer).decode
_encode = msgspec.msgpack.Encoder().encode

log = get_logger(__name__)

FD_ROOM = socket.CMSG_SPACE(struct.calcsize("i"))


class Tray:
    """Attempts on their way to a process. The node keeps both ends, so that it can take back what the process
    has not: whoever receives a message first has it, and the kernel sees to that."""

    def __init__(self) -> None:
        # One message an attempt. Where the kernel has no such stream, datagrams between the two do the same.
        kind = socket.SOCK_SEQPACKET if lifeline.LINUX else socket.SOCK_DGRAM
        self._near, self._far = socket.socketpair(socket.AF_UNIX, kind)
        self._near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TRAY_BYTES)
        self._near.setblocking(False)

    def fileno(self) -> int:
        """The process's end."""
        return self._far.fileno()

    def put(self, offer: wire.Offer) -> bool:
        """Put an attempt in; False if there is no room, or no process."""
        body, after = offer.attempt.body, offer.attempt.after
        try:
            if len(body) + len(after) <= BESIDE_BYTES:
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
        """The numbers of all that still lies in it, taken out."""
        numbers = []
        with contextlib.suppress(BlockingIOError):
            while True:
                # Not recv_fds: in Python 3.11 that passes no flags on.
                data, ancillary, _, _ = self._far.recvmsg(TRAY_BYTES, FD_ROOM, socket.MSG_DONTWAIT)
                for _, _, fd in ancillary:
                    os.close(struct.unpack("i", fd[:4])[0])
                if not data:
                    break
                numbers.append(_decode_offer(data).number)
        return numbers

    def finish(self) -> None:
        """Let the process know that nothing more comes."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_WR) if lifeline.LINUX else self._near.send(b"")

    def close(self) -> None:
        self._near.close()
        self._far.close()


class _StackLook:
    """A question where an attempt is, for all who ask at the same time."""

    __slots__ = ("answered", "text")

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.text: str | None = None


class ForkserverTaskSlot(SlotProcess):
    """A child process that takes attempts from its tray, one after another."""

    def __init__(self, given: ProcessSetup, listener: Listener) -> None:
        super().__init__(given)
        self._default_mb = given.memory_mb
        self._listener = listener
        self._tray = Tray()
        pipe, self._pen = os.pipe()
        self._output = Output(pipe, given.clock, self._said, self._dropped)
        self._given: dict[int, int] = {}
        """What each attempt that has not ended may use, in MiB, by its number, the oldest first."""
        self._seen = asyncio.Event()
        self._looks: dict[int, _StackLook] = {}

    @property
    def fds(self) -> Sequence[int]:
        return self._tray.fileno(), self._pen

    def forked(self) -> None:
        os.close(self._pen)

    def offer(self, number: int, attempt: Attempt) -> bool:
        if self._why or not self._tray.put(wire.Offer(number, attempt)):
            return False
        self._given[number] = attempt.memory_mb or self._default_mb
        self.memory_mb = next(iter(self._given.values()))
        return True

    def withdraw(self) -> list[int]:
        numbers = [] if self._why else self._tray.take_back()
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
        self._server.signal(self.name, LOOK_SIGNAL)
        self._seen.clear()
        asyncio.get_running_loop().add_reader(self._stacks, self._see)
        if await self._clock.wait(self._seen, LOOK_TIMEOUT_S):
            await self._clock.sleep(LOOK_TIMEOUT_S / 10)  # it is written in pieces, in a moment
        if self._exited.is_set():
            return self._dump
        self._see()
        return self._read_stacks()

    async def look(self, number: int) -> str | None:
        if self._why or number not in self._given:
            return ""
        if (look := self._looks.get(number)) is None:
            look = self._looks[number] = _StackLook()
            self._transport.write(wire.frame(wire.LookAtAttempt(), number))
        await self._clock.wait(look.answered, ANSWER_TIMEOUT_S)
        if self._looks.get(number) is look:
            del self._looks[number]
        return look.text

    def terminate(self) -> None:
        self._server.signal(self.name, signal.SIGTERM, group=True)

    async def kill(self, reason: str) -> str:
        return await self._kill(reason, dump=False)

    def heard(self, call: int, payload: bytes) -> None:
        match _decode(payload):
            case wire.AttemptEnded(tried):
                self._ended(call, tried)
            case wire.Advanced(progress):
                self._listener.advanced(self, call, progress)
            case wire.AttemptStacks(text):
                self._found(call, text)
            case wire.LogLine(level, event, values):
                self._listener.said(self, call, level, event, values)
            case wire.SlotReady(pid, error):
                self.pid = pid
                self.refusal = error
                self.ready.set()

    def _ended(self, number: int, tried: Tried) -> None:
        if number not in self._given:
            log.warning("a slot ended an attempt that it does not have", slot=self.name, attempt=number)
            return
        if tried.output or self._output.owes:
            self._output.flush()
        del self._given[number]
        self.memory_mb = next(iter(self._given.values()), self._default_mb)
        self._listener.told(self, number, tried)

    def _said(self, line: str) -> None:
        """A line of its standard output: of the attempt at work, for its process runs one at a time."""
        self._listener.said(self, next(iter(self._given), 0), "info", line, {})

    def _dropped(self, lines: int, size: int) -> None:
        dropped = {"lines": lines, "bytes": size}
        self._listener.said(self, next(iter(self._given), 0), "warning", DROPPED, dropped)

    def _found(self, number: int, text: str) -> None:
        if (look := self._looks.pop(number, None)) is not None:
            look.text = text
            look.answered.set()

    def lost(self) -> None:
        self._see()
        for number in list(self._looks):
            self._found(number, "")
        self._untouched = self._tray.take_back()
        self._tray.close()
        self._output.close()

    def _dismiss(self) -> None:
        self._tray.finish()

    def _see(self) -> None:
        asyncio.get_running_loop().remove_reader(self._stacks)
        self._seen.set()


@dataclass(frozen=True, kw_only=True)
class TaskSlotSettings(SlotSettings):
    """The settings of the slots that run tasks."""

    worker: str = "holdfast.tasks.worker:load"
    prefix: str = "task-slot"
    close_timeout_s: float = 1.0
    check_s: float = 0.5


def task_slots(settings: TaskSlotSettings, clock: Clock) -> ForkserverSlots[[Listener], ForkserverTaskSlot]:
    """Makes slots for the tasks of an app."""
    places = [settings.worker, settings.app if settings.preload else ""]
    setup = wire.SlotSetup(
        os.getpid(),
        [place.partition(":")[0] for place in places if place],
        settings.worker,
        [settings.app],
        settings.memory_mb * MIB,
        tasks=True,
        show_locals=settings.show_locals,
    )
    return ForkserverSlots(settings, clock, setup, ForkserverTaskSlot)


def _file(*parts: bytes) -> IO[bytes]:
    """A file in memory, where there is such a thing."""
    memory = os.memfd_create("body") if lifeline.LINUX else None
    file = tempfile.TemporaryFile() if memory is None else os.fdopen(memory, "w+b")  # noqa: SIM115
    file.writelines(parts)
    file.flush()
    return file
