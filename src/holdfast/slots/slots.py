"""Makes and watches the processes of slots, of either kind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, Generic, ParamSpec, TypeVar

from holdfast.errors import ConfigError, SlotDied, Unavailable
from holdfast.ports.clock import Clock
from holdfast.slots import wire
from holdfast.slots.descendants import MIB, memory_mb
from holdfast.slots.launcher import ForkServer
from holdfast.slots.process import ProcessSetup, SlotProcess
from holdfast.system.interpreter import not_run

A = ParamSpec("A")
P = TypeVar("P", bound=SlotProcess)


@dataclass(frozen=True, kw_only=True)
class SlotSettings:
    """The settings of slots.

    Attributes:
        app: the app, as ``module:name``.
        worker: ``module:function`` that makes a slot's worker from a host, the app and further arguments.
        prefix: the start of the slots' names.
        memory_mb: the memory that a slot may allocate, and use with its descendants, in MiB; 0 for no limit.
            An attempt at a task may have its own limit.
        preload: import the app before forking, so that slots share its memory and start in milliseconds.
            Switch it off for an app that starts threads or opens devices when imported.
        environment: variables to add to the slots' environment.
        show_locals: show the values of local variables in tracebacks.
        spawn_timeout_s: the time for the import of the app.
        close_timeout_s: the time for handlers to close.
        check_s: the interval for checks of the slots' memory.
    """

    app: str
    worker: str
    prefix: str = "slot"
    memory_mb: int = 0
    preload: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    show_locals: bool = False
    spawn_timeout_s: float = 120.0
    close_timeout_s: float = 5.0
    check_s: float = 1.0

    def setup(self, *args: str, services: Sequence[str] = (), tasks: bool = False) -> wire.SlotSetup:
        """Return the first message to the fork server. ``args`` are further arguments of the worker's
        factory; the modules of ``services`` are imported before forking."""
        places = [self.worker, *services, self.app if self.preload else ""]
        return wire.SlotSetup(
            os.getpid(),
            [place.partition(":")[0] for place in places if place],
            self.worker,
            [self.app, *args],
            self.memory_mb * MIB,
            tasks=tasks,
            show_locals=self.show_locals,
        )


class ForkserverSlots(Generic[A, P]):
    """Makes slots: processes that are forked from one server. The server is started on demand, and again when
    it is lost.

    Args:
        settings: the settings of the slots.
        clock: the node's clock.
        setup: the first message to the server.
        make: returns the node's object for a process, from its setup and the arguments of ``spawn``.
    """

    def __init__(
        self,
        settings: SlotSettings,
        clock: Clock,
        setup: wire.SlotSetup,
        make: Callable[Concatenate[ProcessSetup, A], P],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._setup = setup
        self._make = make
        self._count = 0
        self._closed = False
        self._loaded = False
        self.server: ForkServer | None = None
        self._slots: dict[str, P] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def spawn(self, *args: A.args, **kwargs: A.kwargs) -> P:
        """Return a new slot that has imported the app. Raises ConfigError if the app can't load, Unavailable
        if the system can't start a process."""
        if self._closed:
            raise ConfigError("cannot start a slot: the maker of slots is closed")
        try:
            if self.server is None:
                self.server = ForkServer(self._setup, self._on_event, self._settings.environment)
            server = self.server  # may be lost while the slot starts
            slot = await self._fork(server, *args, **kwargs)
        except OSError as error:
            raise Unavailable(not_run(error)) from error
        if self._watch is None and (self._settings.memory_mb or self._setup.tasks):
            self._watch = asyncio.create_task(self._watch_memory())
        timeout_s = self._settings.spawn_timeout_s
        try:
            if not await self._clock.wait(slot.ready, timeout_s):
                if not slot.pid:
                    server.abort()
                dump = await slot.kill("its app did not load in time")
                raise self._unloadable(f"importing it took longer than {timeout_s:g} s\n{dump}")
        except asyncio.CancelledError:
            server.signal(slot.name, signal.SIGKILL, group=True)
            raise
        if slot.refusal:
            await slot.exited()
            raise self._unloadable(slot.refusal)
        if slot.name not in self._slots:
            why = (await slot.exited()).reason
            # An app that has loaded before isn't to blame.
            raise (
                SlotDied(f"slot {slot.name} {why} while it started; another one is started")
                if self._loaded
                else self._unloadable(f"its process {why}")
            )
        self._loaded = True
        return slot

    async def close(self) -> None:
        """End all slots and the server."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        timeout_s = self._settings.close_timeout_s
        await asyncio.gather(*(slot.stop(timeout_s) for slot in list(self._slots.values())))
        if self.server is not None:
            server, self.server = self.server, None
            await server.close()
        await asyncio.gather(*self._tasks)

    def _background(self, work: Coroutine[object, object, object]) -> None:
        """Have ``close`` wait for ``work``."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fork(self, server: ForkServer, *args: A.args, **kwargs: A.kwargs) -> P:
        self._count += 1
        name = f"{self._settings.prefix}-{self._count}"
        with contextlib.ExitStack() as theirs_to_close, contextlib.ExitStack() as ours_to_close:
            ours, theirs = socket.socketpair()
            ours_to_close.callback(ours.close)
            theirs_to_close.callback(theirs.close)
            stacks, pen = os.pipe()
            ours_to_close.callback(os.close, stacks)
            theirs_to_close.callback(os.close, pen)
            for end in (stacks, pen):
                os.set_blocking(end, False)  # half a dump is better than a wait
            slot = self._make(
                ProcessSetup(name, self._clock, server, stacks, self._settings.memory_mb), *args, **kwargs
            )
            ours_to_close.callback(slot.lost)
            theirs_to_close.callback(slot.forked)
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: slot, sock=ours)
            if self.server is not server:
                raise SlotDied(f"slot {name} lost its fork server while it started; another one is started")
            server.spawn(name, [theirs.fileno(), pen, *slot.fds])
            ours_to_close.pop_all()
        self._slots[name] = slot
        return slot

    def _unloadable(self, reason: str) -> ConfigError:
        return ConfigError(f"app {self._settings.app} can't be loaded: {reason}".rstrip())

    def _on_event(self, event: wire.Event | None) -> None:
        match event:
            case wire.Spawned(name, pid):
                self._slots[name].pid = pid
            case wire.Exited(name, code):
                self._end(name, _last_words(code))
            case None:
                self.server = None
                for name, slot in list(self._slots.items()):
                    if slot.pid:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(slot.pid, signal.SIGKILL)
                    self._end(name, "lost its fork server, which was killed or crashed")

    def _end(self, name: str, why: str) -> None:
        self._background(self._slots.pop(name).ended(why))

    async def _watch_memory(self) -> None:
        """Kill slots over their limit: allocation limits don't count shared memory and descendants, or don't
        exist."""
        while True:
            await self._clock.sleep(self._settings.check_s)
            for slot in list(self._slots.values()):
                limit_mb = slot.memory_mb
                if not (slot.pid and limit_mb):
                    continue
                used_mb = await asyncio.to_thread(memory_mb, slot.pid, limit_mb)
                if used_mb > limit_mb == slot.memory_mb and slot.name in self._slots:
                    reason = f"it used {used_mb} MiB with its descendants, over memory_mb = {limit_mb}"
                    self._background(slot.kill(reason))


def _last_words(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
