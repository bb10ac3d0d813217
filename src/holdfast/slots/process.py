"""A slot's process of either kind, as the node sees it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
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
    """The properties of a process before its fork: its name, the node's clock, its server, the pipe for its
    stacks, and its limit of memory in MiB (0 for none)."""

    name: str
    clock: Clock
    server: ForkServer
    stacks: int
    memory_mb: int


class SlotProcess(asyncio.Protocol):
    """A child process, from its fork to its end. ``on_frame`` gets its messages.

    Attributes:
        fds: its descriptors in addition to its socket and the pipe for its stacks.
        memory_mb: its limit of memory in MiB, above which it is killed; 0 for none.
        ready: set when it has loaded its app, or has ended.
        refusal: why it could not load its app.
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
        """Close the node's copies of descriptors: the process has them, or isn't forked."""

    def on_frame(self, call: int, payload: bytes) -> None:
        """Take a message about a call."""
        raise NotImplementedError

    def lost(self) -> None:
        """End all calls that wait for the ended process."""
        raise NotImplementedError

    async def kill(self, reason: str) -> str:
        """Dump the stacks, kill the process and its descendants; return the dump."""
        return await self._kill(reason, dump=True)

    async def _kill(self, reason: str, *, dump: bool) -> str:
        self._reason = self._reason or reason
        if not self._why:
            if dump:
                self._server.signal(self.name, DUMP_SIGNAL)
            if not (dump and await self._clock.wait(self._exited, DUMP_TIMEOUT_S)):
                self._server.signal(self.name, signal.SIGKILL, group=True)
                if not await self._clock.wait(self._exited, KILL_TIMEOUT_S):
                    await self.ended("")  # it hangs in the kernel, and nothing must wait for it
        await self._exited.wait()
        return self._dump

    async def exited(self) -> Exit:
        """See Slot.exited."""
        await self._exited.wait()
        return Exit(self._why, self._dump, self._untouched)

    async def stop(self, grace_s: float) -> None:
        """Let the process end; kill it if that takes longer than ``grace_s``."""
        self._closing = True
        self._dismiss()
        if not await self._clock.wait(self._exited, grace_s):
            await self.kill(f"its handlers did not close within {grace_s:g} s")

    def _dismiss(self) -> None:
        """Notify the process that no further calls come."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    async def ended(self, why: str) -> None:
        """Take the last messages of the ended process, then end all calls that wait for it."""
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
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has another base class

    def data_received(self, data: bytes) -> None:
        for call, payload in self._splitter.feed(data):
            self.on_frame(call, payload)

    def eof_received(self) -> None:
        self._hung_up.set()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):  # the node failed; the process still lives
            self._reason = self._reason or f"its message can't be handled: {error!r}"
            self._server.signal(self.name, signal.SIGKILL, group=True)
        self._hung_up.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
