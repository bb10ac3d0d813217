"""Slots for streams, from a fork server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from holdfast.errors import HandlerFailed, ModelFailed, SlotDied, StateRejected
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.slots import MessageWork, Ran, SlotCall, SlotCalls
from holdfast.slots import wire
from holdfast.slots.family import MIB
from holdfast.slots.launcher import ForkServer
from holdfast.slots.nursery import Nursery
from holdfast.slots.process import SlotProcess

_decode = msgspec.msgpack.Decoder(wire.Answer).decode

log = structlog.get_logger()


class ForkserverSlot(SlotProcess):
    """A child process and the calls that wait for it. Whatever it says names the call that it is about."""

    def __init__(
        self, name: str, clock: Clock, server: ForkServer, stacks: int, memory_mb: int, meter: Meter
    ) -> None:
        super().__init__(name, clock, server, stacks, memory_mb)
        self.calls = SlotCalls()
        self.models: Sequence[str] = ()
        self.loading = ""
        self._meter = meter
        self._answers: dict[int, asyncio.Future[wire.Answer]] = {}
        self._turn = asyncio.Lock()

    async def load(
        self, stream: str, key: str, models: Sequence[str], *, call: SlotCall | None = None
    ) -> None:
        await self._open(wire.LoadStream(stream, key, list(models)), call)

    async def open(
        self, stream: str, key: str, state: bytes | None, version: int, *, call: SlotCall | None = None
    ) -> None:
        await self._open(wire.OpenStream(stream, key, state, version), call)

    async def _open(self, request: wire.LoadStream | wire.OpenStream, call: SlotCall | None) -> None:
        answer = await self._call(request, call)
        assert isinstance(answer, wire.Opened)
        if answer.rejected:
            raise StateRejected(answer.error)
        if answer.model:
            raise ModelFailed(answer.error, answer.model, detail=answer.detail)
        if answer.error:
            raise HandlerFailed(answer.error, detail=answer.detail)

    async def run(
        self,
        stream: str,
        key: str,
        work: Sequence[MessageWork],
        limit: int,
        after_s: float,
        *,
        call: SlotCall | None = None,
    ) -> Ran:
        answer = await self._call(wire.RunMessages(stream, key, list(work), limit, after_s), call)
        assert isinstance(answer, wire.RunDone)
        for service, operation, times in answer.ran.calls:
            self._meter.count(service, operation, times)
        return answer.ran

    async def close(self, stream: str, key: str, *, call: SlotCall | None = None) -> None:
        with contextlib.suppress(SlotDied):
            await self._call(wire.CloseStream(stream, key), call)

    async def exited(self) -> str:
        return await self.gone()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._splitter.unfinished:  # a large answer comes in pieces
            self.calls.advance(self._splitter.unfinished, self._clock.monotonic())

    def heard(self, call: int, payload: bytes) -> None:
        now = self._clock.monotonic()
        match _decode(payload):
            case wire.Noted(note):
                if (told := self.calls.advance(call, now)) is not None:
                    told.note = note or told.note
            case wire.SlotModels(loading, loaded):
                self.loading, self.models = loading, loaded
                if (told := self.calls.advance(call, now)) is not None:
                    told.loading = loading
            case wire.SlotReady(pid, error):
                self.pid = pid
                self.refusal = error
                self.ready.set()
            case answer:
                self.calls.finish(call, now)
                waiting = self._answers.pop(call, None)
                if waiting is None:
                    log.warning("a slot answered a call that it does not have", slot=self.name, call=call)
                elif not waiting.done():
                    waiting.set_result(answer)

    def lost(self) -> None:
        for call, waiting in zip(self.calls, self._answers.values(), strict=True):
            if not waiting.done():
                waiting.set_exception(self._death(call.note))
        self.calls.clear()
        self._answers.clear()

    async def _call(self, request: wire.Request, call: SlotCall | None) -> wire.Answer:
        async with self._turn:
            await self._writable.wait()
            if self._why or self._closing:
                raise self._death()
            number = self.calls.add(call or SlotCall(), self._clock.monotonic())
            answer: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
            self._answers[number] = answer
            if not (self._hung_up.is_set() or self._transport.is_closing()):
                self._transport.write(wire.frame(request, number))  # else it fails when the death is reported
        return await answer

    def _death(self, note: str = "") -> SlotDied:
        said = f"it last said: {note}\n" if note else ""
        return SlotDied(f"slot {self.name} {self._why or 'is closing'}", detail=said + self._dump)


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
