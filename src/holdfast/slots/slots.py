"""Slots for streams, from a fork server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.errors import HandlerFailed, ModelFailed, SlotDied, StateRejected
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.slots import MessageWork, Ran
from holdfast.slots import wire
from holdfast.slots.family import MIB
from holdfast.slots.launcher import ForkServer
from holdfast.slots.nursery import Nursery
from holdfast.slots.process import SlotProcess

_decode = msgspec.msgpack.Decoder(wire.Answer).decode


class ForkserverSlot(SlotProcess):
    """A child process and the calls that wait for it. It answers calls in the order they were sent."""

    def __init__(
        self, name: str, clock: Clock, server: ForkServer, stacks: int, memory_mb: int, meter: Meter
    ) -> None:
        super().__init__(name, clock, server, stacks, memory_mb)
        self.progress_at = clock.monotonic()
        self.models: Sequence[str] = ()
        self.loading = ""
        self._meter = meter
        self._calls: deque[asyncio.Future[wire.Answer]] = deque()
        self._turn = asyncio.Lock()
        self._note = ""

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None:
        await self._open(wire.LoadStream(stream, key, list(models)))

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        await self._open(wire.OpenStream(stream, key, state, version))

    async def _open(self, request: wire.LoadStream | wire.OpenStream) -> None:
        answer = await self._call(request)
        assert isinstance(answer, wire.Opened)
        if answer.rejected:
            raise StateRejected(answer.error)
        if answer.model:
            raise ModelFailed(answer.error, answer.model, detail=answer.detail)
        if answer.error:
            raise HandlerFailed(answer.error, detail=answer.detail)

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> Ran:
        answer = await self._call(wire.RunMessages(stream, key, list(work), limit, after_s))
        assert isinstance(answer, wire.RunDone)
        for service, operation, times in answer.ran.calls:
            self._meter.count(service, operation, times)
        return answer.ran

    async def close(self, stream: str, key: str) -> None:
        with contextlib.suppress(SlotDied):
            await self._call(wire.CloseStream(stream, key))

    async def exited(self) -> str:
        return await self.gone()

    def data_received(self, data: bytes) -> None:
        self.progress_at = self._clock.monotonic()
        super().data_received(data)

    def heard(self, payload: bytes) -> None:
        match _decode(payload):
            case wire.Noted(note):
                self._note = note or self._note
            case wire.SlotModels(loading, loaded):
                self.loading, self.models = loading, loaded
            case wire.SlotReady(pid, error):
                self.pid = pid
                self.refusal = error
                self.ready.set()
            case answer:
                call = self._calls.popleft()
                if not call.done():
                    call.set_result(answer)

    def lost(self) -> None:
        for call in self._calls:
            if not call.done():
                call.set_exception(self._death())
        self._calls.clear()

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
        memory_mb: what one slot may allocate, and use with all that it started, in MiB; 0 for no limit.
        objects: ``module:object``, the service that opens ``objects_url``; "" for none.
        objects_url: where objects are.
        model_memory_mb: what the models in one slot may take before those that no stream uses are unloaded,
            in MiB; 0 for no limit.
        preload: import the app before forking, so that slots share its memory and start in milliseconds.
            Switch it off for an app that starts threads or opens devices when imported.
        worker: ``module:function`` that makes a slot's worker from a host, ``app``, the objects and the
            memory for models.
        prefix: of the slots' names.
        environment: is put into that of the slots.
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
        environment: Mapping[str, str] | None = None,
        meter: Meter | None = None,
        spawn_timeout_s: float = 120.0,
        close_timeout_s: float = 5.0,
        check_s: float = 1.0,
    ) -> None:
        modules = [place.partition(":")[0] for place in (worker, objects) if place]
        if preload:
            modules.append(app.partition(":")[0])
        arguments = [app, objects, objects_url, str(model_memory_mb)]
        self._nursery: Nursery[ForkserverSlot] = Nursery(
            wire.SlotSetup(os.getpid(), modules, worker, arguments, memory_mb * MIB),
            app,
            clock,
            prefix=prefix,
            environment=environment,
            spawn_timeout_s=spawn_timeout_s,
            close_timeout_s=close_timeout_s,
            check_s=check_s,
        )
        self._clock = clock
        self._memory_mb = memory_mb
        self._meter = meter or Meter()

    async def spawn(self) -> ForkserverSlot:
        if self._memory_mb:
            self._nursery.watch_memory()
        return await self._nursery.spawn(self._make)

    async def close(self) -> None:
        await self._nursery.close()

    def _make(self, name: str, server: ForkServer, stacks: int) -> ForkserverSlot:
        return ForkserverSlot(name, self._clock, server, stacks, self._memory_mb, self._meter)
