"""The node's side of one slot's process, whatever it is for."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from holdfast.ports.clock import Clock
from holdfast.ports.slots import Exit
from holdfast.slots import wire
from holdfast.slots.child import DUMP_SIGNAL
from holdfast.slots.launcher import ForkServer

DUMP_TIMEOUT_S = 0.2
KILL_TIMEOUT_S = 2.0
LAST_WORDS_TIMEOUT_S = 0.2
STACKS_BYTES_MAX = 1 << 16


class ProcessSetup(NamedTuple):
    """The properties of a process that are known before it is forked: its name, the node's clock, its server,
    where it writes its stacks, and what it may use before it is killed, in MiB (0 for any amount)."""

    name: str
    clock: Clock
    server: ForkServer
    stacks: int
    memory_mb: int


class SlotProcess(asyncio.Protocol):
    """A child process, from its fork to its end. What it says goes to ``heard``, frame by frame.

    Attributes:
        fds: what it is given beside its socket and the pipe for its stacks.
        memory_mb: what it may use before it is killed, in MiB; 0 for any amount.
        ready: set when it has loaded its app, or is gone.
        refusal: why it could not load it.
    """

    def __init__(self, given: ProcessSetup) -> None:
        self.name = given.name
        self.pid = 0
        self.memory_mb = given.memory_mb
        self.ready = asyncio.Event()
        self.refusal = ""
        self._clock = given.clock
        self._server = given.server
        self._stacks = given.stacks
        self._untouched: Sequence[int] = ()
        self._splitter = wire.Splitter()
        self._writable = asyncio.Event()
        self._writable.set()
        self._hung_up = asyncio.Event()
        self._exited = asyncio.Event()
        self._closing = False
        self._reason = ""
        self._why = ""
        self._dump = ""

    @property
    def fds(self) -> Sequence[int]:
        return ()

    def forked(self) -> None:
        """It has its descriptors, or will never exist."""

    def heard(self, call: int, payload: bytes) -> None:
        """It said something, of that call."""
        raise NotImplementedError

    def lost(self) -> None:
        """It is gone: end what waits for it."""
        raise NotImplementedError

    async def kill(self, reason: str) -> str:
        """Dump its stacks, kill it and its descendants; returns the dump."""
        return await self._kill(reason, dump=True)

    async def _kill(self, reason: str, *, dump: bool) -> str:
        self._reason = self._reason or reason
        if not self._why:
            if dump:
                self._server.signal(self.name, DUMP_SIGNAL)
            if not (dump and await self._clock.wait(self._exited, DUMP_TIMEOUT_S)):
                self._server.signal(self.name, signal.SIGKILL, group=True)
                if not await self._clock.wait(self._exited, KILL_TIMEOUT_S):
                    await self.ended("")  # stuck in the kernel; nobody is to wait for it
        await self._exited.wait()
        return self._dump

    async def exited(self) -> Exit:
        """As Slot.exited."""
        await self._exited.wait()
        return Exit(self._why, self._dump, self._untouched)

    async def stop(self, grace_s: float) -> None:
        """Let it end in good order; kill it if that takes longer than ``grace_s``."""
        self._closing = True
        self._dismiss()
        if not await self._clock.wait(self._exited, grace_s):
            await self.kill(f"its handlers did not close within {grace_s:g} s")

    def _dismiss(self) -> None:
        """Tell it that nothing more will come."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    async def ended(self, why: str) -> None:
        """The process is gone: take what it still said, then end what waits for it."""
        if self._why:
            return
        self._why = f"was killed: {self._reason}" if self._reason else why
        await self._clock.wait(self._hung_up, LAST_WORDS_TIMEOUT_S)
        self._transport.abort()
        self._dump += self._read_stacks()
        self.lost()
        os.close(self._stacks)
        self._exited.set()
        self.ready.set()
        self._writable.set()

    def _read_stacks(self) -> str:
        try:
            return os.read(self._stacks, STACKS_BYTES_MAX).decode(errors="replace")
        except BlockingIOError:
            return ""

    # As the protocol of its socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        heard: Callable[[int, bytes], None] = self.heard
        for call, payload in self._splitter.feed(data):
            heard(call, payload)

    def eof_received(self) -> None:
        self._hung_up.set()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):  # this side has failed: the process lives on
            self._reason = self._reason or f"it said what can't be handled: {error!r}"
            self._server.signal(self.name, signal.SIGKILL, group=True)
        self._hung_up.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
