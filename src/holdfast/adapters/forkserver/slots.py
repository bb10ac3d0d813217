"""The node's side of its slots."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import msgspec
import psutil

from holdfast.adapters.forkserver import wire
from holdfast.adapters.forkserver.child import DUMP_SIGNAL
from holdfast.adapters.forkserver.launcher import ForkServer
from holdfast.errors import ConfigError, HandlerFailed, SlotDied, StateRejected
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.slots import Ran, Work

_decode = msgspec.msgpack.Decoder(wire.Answer).decode

DUMP_TIMEOUT_S = 0.2
KILL_TIMEOUT_S = 2.0
LAST_WORDS_TIMEOUT_S = 0.2
DUMP_BYTES_MAX = 1 << 16
MIB = 1 << 20


class ForkserverSlot(asyncio.Protocol):
    """A child process and the calls that wait for it. It answers calls in the order they were sent."""

    def __init__(self, name: str, clock: Clock, meter: Meter, server: ForkServer, stacks: int) -> None:
        self.name = name
        self.progress_at = clock.monotonic()
        self.models: Sequence[str] = ()
        self.loading = ""
        self.pid = 0
        self.ready = asyncio.Event()
        self.refusal = ""
        self._clock = clock
        self._meter = meter
        self._server = server
        self._stacks = stacks
        self._splitter = wire.Splitter()
        self._calls: deque[asyncio.Future[wire.Answer]] = deque()
        self._turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._writable.set()
        self._hung_up = asyncio.Event()
        self._exited = asyncio.Event()
        self._closing = False
        self._reason = ""
        self._note = ""
        self._why = ""
        self._dump = ""

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        answer = await self._call(wire.Open(stream, key, state, version))
        assert isinstance(answer, wire.Opened)
        if answer.rejected:
            raise StateRejected(answer.error)
        if answer.error:
            raise HandlerFailed(answer.error, detail=answer.detail)

    async def run(self, stream: str, key: str, work: Sequence[Work], limit: int, after_s: float) -> Ran:
        answer = await self._call(wire.Run(stream, key, list(work), limit, after_s))
        assert isinstance(answer, wire.Done)
        for service, operation, times in answer.ran.calls:
            self._meter.count(service, operation, times)
        return answer.ran

    async def close(self, stream: str, key: str) -> None:
        with contextlib.suppress(SlotDied):
            await self._call(wire.Close(stream, key))

    async def kill(self, reason: str) -> str:
        self._reason = self._reason or reason
        if not self._why:
            self._server.signal(self.name, DUMP_SIGNAL)
            if not await self._clock.wait(self._exited, DUMP_TIMEOUT_S):
                self._server.signal(self.name, signal.SIGKILL, group=True)
                if not await self._clock.wait(self._exited, KILL_TIMEOUT_S):
                    await self.ended("")  # stuck in the kernel; nobody is to wait for it
        await self._exited.wait()
        return self._dump

    async def exited(self) -> str:
        await self._exited.wait()
        return self._why

    async def stop(self, grace_s: float) -> None:
        """Let the child close its handlers and end; kill it if that takes longer than ``grace_s``."""
        self._closing = True
        if not self._transport.is_closing():
            self._transport.write_eof()
        if not await self._clock.wait(self._exited, grace_s):
            await self.kill(f"its handlers did not close within {grace_s:g} s")

    async def ended(self, why: str) -> None:
        """The process is gone: take what it still said, then fail the calls that it can't answer."""
        if self._why:
            return
        self._why = f"was killed: {self._reason}" if self._reason else why
        await self._clock.wait(self._hung_up, LAST_WORDS_TIMEOUT_S)
        self._transport.abort()
        self._dump = _drain(self._stacks)
        for call in self._calls:
            if not call.done():
                call.set_exception(self._death())
        self._calls.clear()
        self._exited.set()
        self.ready.set()
        self._writable.set()

    # As the protocol of its socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self.progress_at = self._clock.monotonic()
        for payload in self._splitter.feed(data):
            match _decode(payload):
                case wire.Progress(note):
                    self._note = note or self._note
                case wire.Models(loading, loaded):
                    self.loading, self.models = loading, loaded
                case wire.Ready(pid, error):
                    self.pid = pid
                    self.refusal = error
                    self.ready.set()
                case answer:
                    call = self._calls.popleft()
                    if not call.done():
                        call.set_result(answer)

    def eof_received(self) -> None:
        self._hung_up.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._hung_up.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _call(self, request: wire.Request) -> wire.Answer:
        async with self._turn:
            await self._writable.wait()
            if self._why or self._closing:
                raise self._death()
            if not self._calls:
                self.progress_at = self._clock.monotonic()
                self._note = ""
            call: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
            self._calls.append(call)
            if not (self._hung_up.is_set() or self._transport.is_closing()):
                self._transport.write(wire.frame(request))  # else it fails when the death is reported
        return await call

    def _death(self) -> SlotDied:
        note = f"it last said: {self._note}\n" if self._note else ""
        return SlotDied(f"slot {self.name} {self._why or 'is closing'}", detail=note + self._dump)


class ForkserverSlots:
    """Makes slots for the app at ``module:name``.

    Args:
        app: where the app is.
        clock: the node's clock.
        memory_mb: what one slot may allocate, in MiB; 0 for no limit.
        objects: ``module:function`` that makes an object store from ``objects_url``; "" for none.
        objects_url: where objects are.
        model_memory_mb: what the models in one slot may take before those that no stream uses are unloaded,
            in MiB; 0 for no limit.
        preload: import the app before forking, so that slots share its memory and start in milliseconds.
            Switch it off for an app that starts threads or opens devices when imported.
        worker: ``module:function`` that makes a slot's worker from a host, ``app``, the objects and the
            memory for models.
        prefix: of the slots' names.
        meter: counts the calls of handlers to the object store.
        spawn_timeout_s: how long the app may take to import.
        close_timeout_s: how long handlers may take to close.
        check_s: how often the memory of slots is looked at.
    """

    def __init__(
        self,
        app: str,
        clock: Clock,
        *,
        memory_mb: int = 0,
        objects: str = "",
        objects_url: str = "",
        model_memory_mb: int = 0,
        preload: bool = True,
        worker: str = "holdfast.streams.worker:load",
        prefix: str = "slot",
        meter: Meter | None = None,
        spawn_timeout_s: float = 120.0,
        close_timeout_s: float = 5.0,
        check_s: float = 1.0,
    ) -> None:
        modules = [place.partition(":")[0] for place in (worker, objects) if place]
        if preload:
            modules.append(app.partition(":")[0])
        arguments = [app, objects, objects_url, str(model_memory_mb)]
        self._start = wire.Start(os.getpid(), modules, worker, arguments, memory_mb * MIB)
        self._app = app
        self._clock = clock
        self._memory_mb = memory_mb
        self._prefix = prefix
        self._meter = meter or Meter()
        self._spawn_timeout_s = spawn_timeout_s
        self._close_timeout_s = close_timeout_s
        self._check_s = check_s
        self._count = 0
        self._closed = False
        self._loaded = False
        self._server: ForkServer | None = None
        self._slots: dict[str, ForkserverSlot] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def spawn(self) -> ForkserverSlot:
        if self._closed:
            raise ConfigError("these slots are closed")
        if self._server is None:
            self._server = ForkServer(self._start, self._heard)
        if self._memory_mb and self._watch is None:
            self._watch = asyncio.create_task(self._watch_memory())
        self._count += 1
        slot = await self._fork(f"{self._prefix}-{self._count}", self._server)
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
            await slot.exited()
            raise self._unloadable(slot.refusal)
        if slot.name not in self._slots:
            why = await slot.exited()
            # An app that loaded before isn't to blame for a process that could not start now.
            raise (
                SlotDied(f"slot {slot.name} {why}")
                if self._loaded
                else self._unloadable(f"its process {why}")
            )
        self._loaded = True
        return slot

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(slot.stop(self._close_timeout_s) for slot in list(self._slots.values())))
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()
        await asyncio.gather(*self._tasks)

    async def _fork(self, name: str, server: ForkServer) -> ForkserverSlot:
        ours, theirs = socket.socketpair()
        stacks, pen = os.pipe()
        os.set_blocking(stacks, False)
        slot = ForkserverSlot(name, self._clock, self._meter, server, stacks)
        try:
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: slot, sock=ours)
            if self._server is not server:
                raise SlotDied(f"slot {name} lost its fork server")
            server.spawn(name, [theirs.fileno(), pen])
        except BaseException:
            ours.close()
            os.close(stacks)
            raise
        finally:
            theirs.close()
            os.close(pen)
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
        self._background(self._slots.pop(name).ended(why))

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_memory(self) -> None:
        """The second net: memory that the limit on allocation doesn't count, or isn't there to count."""
        while True:
            await self._clock.sleep(self._check_s)
            for slot in list(self._slots.values()):
                with contextlib.suppress(psutil.Error):
                    used_mb = psutil.Process(slot.pid).memory_info().rss // MIB if slot.pid else 0
                    if used_mb > self._memory_mb:
                        reason = f"it used {used_mb} MiB, over memory_mb = {self._memory_mb}"
                        self._background(slot.kill(reason))


def _last_words(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _drain(pipe: int) -> str:
    try:
        return os.read(pipe, DUMP_BYTES_MAX).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(pipe)
