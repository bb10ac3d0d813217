"""Where slots' processes are made, and looked after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Generic, TypeVar

from holdfast.errors import ConfigError, SlotDied
from holdfast.ports.clock import Clock
from holdfast.slots import wire
from holdfast.slots.family import memory_mb
from holdfast.slots.launcher import ForkServer
from holdfast.slots.process import SlotProcess

P = TypeVar("P", bound=SlotProcess)


class Nursery(Generic[P]):
    """Forks the processes of slots from one fork server, which it starts when it is needed and again when it
    was lost. The settings are those of :class:`ForkserverSlots`."""

    def __init__(
        self,
        start: wire.SlotSetup,
        app: str,
        clock: Clock,
        *,
        prefix: str,
        environment: Mapping[str, str] | None,
        spawn_timeout_s: float,
        close_timeout_s: float,
        check_s: float,
    ) -> None:
        self._start = start
        self._app = app
        self._clock = clock
        self._prefix = prefix
        self._environment = environment
        self._spawn_timeout_s = spawn_timeout_s
        self._close_timeout_s = close_timeout_s
        self._check_s = check_s
        self._count = 0
        self._closed = False
        self._loaded = False
        self._server: ForkServer | None = None
        self._slots: dict[str, P] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def spawn(self, make: Callable[[str, ForkServer, int], P]) -> P:
        """A new process. ``make`` is given its name, server and the pipe for its stacks. Raises ConfigError
        if the app can't load."""
        if self._closed:
            raise ConfigError("these slots are closed")
        if self._server is None:
            self._server = ForkServer(self._start, self._heard, self._environment)
        self._count += 1
        slot = await self._fork(f"{self._prefix}-{self._count}", self._server, make)
        try:
            if not await self._clock.wait(slot.ready, self._spawn_timeout_s):
                if not slot.pid:
                    self._server.abort()
                dump = await slot.kill("its app did not load in time")
                raise self._unloadable(f"importing it took longer than {self._spawn_timeout_s:g} s\n{dump}")
        except asyncio.CancelledError:
            self._server.signal(slot.name, signal.SIGKILL, group=True)
            raise
        if slot.refusal:
            await slot.gone()
            raise self._unloadable(slot.refusal)
        if slot.name not in self._slots:
            why = await slot.gone()
            # An app that loaded before isn't to blame for a process that could not start now.
            raise (
                SlotDied(f"slot {slot.name} {why}")
                if self._loaded
                else self._unloadable(f"its process {why}")
            )
        self._loaded = True
        return slot

    async def close(self) -> None:
        """End every process, and the server."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(slot.stop(self._close_timeout_s) for slot in list(self._slots.values())))
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()
        await asyncio.gather(*self._tasks)

    def watch_memory(self) -> None:
        """From now on, see to it that slots use no more memory than they may."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_memory())

    def background(self, work: Coroutine[object, object, object]) -> None:
        """Have ``close`` wait for ``work``."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fork(self, name: str, server: ForkServer, make: Callable[[str, ForkServer, int], P]) -> P:
        ours, theirs = socket.socketpair()
        stacks, pen = os.pipe()
        for end in (stacks, pen):
            os.set_blocking(end, False)  # rather half a dump than a wait
        slot = make(name, server, stacks)
        try:
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: slot, sock=ours)
            if self._server is not server:
                raise SlotDied(f"slot {name} lost its fork server")
            server.spawn(name, [theirs.fileno(), pen, *slot.fds])
        except BaseException:
            ours.close()
            slot.lost()
            os.close(stacks)
            raise
        finally:
            theirs.close()
            os.close(pen)
            slot.forked()
        self._slots[name] = slot
        return slot

    def _unloadable(self, reason: str) -> ConfigError:
        return ConfigError(f"app {self._app} can't be loaded: {reason}".rstrip())

    def _heard(self, event: wire.Event | None) -> None:
        match event:
            case wire.Spawned(name, pid):
                self._slots[name].pid = pid
            case wire.Exited(name, code):
                self._end(name, _last_words(code))
            case None:
                self._server = None
                for name, slot in list(self._slots.items()):
                    if slot.pid:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(slot.pid, signal.SIGKILL)
                    self._end(name, "lost its fork server, which was killed or crashed")

    def _end(self, name: str, why: str) -> None:
        self.background(self._slots.pop(name).ended(why))

    async def _watch_memory(self) -> None:
        """The second net: memory that the limit on allocation doesn't count, or isn't there to count, and
        that of what a slot started."""
        while True:
            await self._clock.sleep(self._check_s)
            for slot in list(self._slots.values()):
                limit_mb = slot.memory_mb
                if not (slot.pid and limit_mb):
                    continue
                used_mb = await asyncio.to_thread(memory_mb, slot.pid, limit_mb)
                if used_mb > limit_mb == slot.memory_mb and slot.name in self._slots:
                    reason = f"it used {used_mb} MiB, with all that it started, over memory_mb = {limit_mb}"
                    self.background(slot.kill(reason))


def _last_words(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
