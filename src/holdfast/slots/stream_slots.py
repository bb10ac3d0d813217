"""Slots for streams, forked from a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.errors import HandlerFailed, ModelFailed, SlotDied, StateRejected
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.slots import MessageWork, QueryResult, RunResult, SlotCall, SlotCalls
from holdfast.slots import wire
from holdfast.slots.process import ProcessSetup, SlotProcess
from holdfast.slots.slots import ForkserverSlots, SlotSettings
from holdfast.system.log import get_logger

_decode = msgspec.msgpack.Decoder(wire.Answer).decode

log = get_logger(__name__)


class ForkserverStreamSlot(SlotProcess):
    """A child process, and the calls that wait for its answers. Each of its messages names a call."""

    def __init__(self, given: ProcessSetup, meter: Meter) -> None:
        super().__init__(given)
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
    ) -> RunResult:
        answer = await self._call(wire.RunMessages(stream, key, list(work), limit, after_s), call)
        assert isinstance(answer, wire.RunDone)
        for service, operation, times in answer.result.calls:
            self._meter.count(service, operation, times)
        return answer.result

    async def query(
        self,
        stream: str,
        key: str,
        state: bytes | None,
        version: int,
        request: bytes,
        *,
        call: SlotCall | None = None,
    ) -> QueryResult:
        answer = await self._call(wire.QueryStream(stream, key, state, version, request), call)
        assert isinstance(answer, wire.QueryDone)
        for service, operation, times in answer.result.calls:
            self._meter.count(service, operation, times)
        return answer.result

    async def close(self, stream: str, key: str, *, call: SlotCall | None = None) -> None:
        with contextlib.suppress(SlotDied):
            await self._call(wire.CloseStream(stream, key), call)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._splitter.unfinished:  # a large answer comes in pieces
            self.calls.advance(self._splitter.unfinished, self._clock.monotonic())

    def on_frame(self, call: int, payload: bytes) -> None:
        now = self._clock.monotonic()
        match _decode(payload):
            case wire.Noted(note):
                if (known := self.calls.advance(call, now)) is not None:
                    known.note = note or known.note
            case wire.SlotModels(loading, loaded):
                self.loading, self.models = loading, loaded
                if (known := self.calls.advance(call, now)) is not None:
                    known.loading = loading
            case wire.SlotReady(pid, error):
                self.pid = pid
                self.refusal = error
                self.ready.set()
            case answer:
                self.calls.finish(call, now)
                waiting = self._answers.pop(call, None)
                if waiting is None:
                    log.warning("slot answered an unknown call", slot=self.name, call=call)
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
                self._transport.write(wire.frame(request, number))  # else the call fails with the slot
        return await answer

    def _death(self, note: str = "") -> SlotDied:
        last = f"its last note: {note}\n" if note else ""
        return SlotDied(f"slot {self.name} {self._why or 'is closing'}", detail=last + self._dump)


@dataclass(frozen=True, kw_only=True)
class StreamSlotSettings(SlotSettings):
    """The settings of the slots that run streams.

    Attributes:
        objects: ``module:object``, the service that opens ``objects_url``; "" for none.
        objects_url: the object store.
        model_memory_mb: the memory of a slot's models, in MiB, above which unused models are unloaded;
            0 for no limit.
    """

    worker: str = "holdfast.streams.worker:load"
    objects: str = ""
    objects_url: str = ""
    model_memory_mb: int = 0


def stream_slots(
    settings: StreamSlotSettings, clock: Clock, meter: Meter | None = None
) -> ForkserverSlots[[], ForkserverStreamSlot]:
    """Return the maker of slots for an app's streams. ``meter`` counts the handlers' calls to the object
    store."""
    objects = settings.objects
    setup = settings.setup(objects, settings.objects_url, str(settings.model_memory_mb), services=[objects])
    counts = meter or Meter()
    return ForkserverSlots(settings, clock, setup, lambda given: ForkserverStreamSlot(given, counts))
