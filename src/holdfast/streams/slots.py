"""A node's slots for streams: their streams, calls, hangs, and replacements from warm spares."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.cluster.host import Host
from holdfast.cluster.slot_pool import SlotPool
from holdfast.common.message import Place
from holdfast.common.progress import hung
from holdfast.common.redaction import redact
from holdfast.common.text import duration
from holdfast.errors import ModelFailed, SlotDied
from holdfast.ports.slots import SlotCall, StreamSlot, StreamSlotMaker

T = TypeVar("T")

MODEL_STREAMS = 2
"""The number of streams for which a slot that has the model is preferred to a slot that must load it."""


class SlotHandle:
    """A handle of a slot. Streams belong to a handle; the slot in it may be replaced.

    ``streams`` counts the streams, and ``wanted`` the models that they use. ``models_seen`` are the models at
    the last count of loads. ``took_s`` is the duration of the last call. The lock ``loads`` is held during a
    load of models, so that the next one sees its outcome; ``queries`` is held during a query."""

    def __init__(self) -> None:
        self.slot: StreamSlot | None = None
        self.models_seen: Sequence[str] = ()
        self.ready = asyncio.Event()
        self.streams = 0
        self.wanted: Counter[str] = Counter()
        self.took_s = 0.0
        self.loads = asyncio.Lock()
        self.queries = asyncio.Lock()

    def lacks(self, models: Iterable[str]) -> int:
        """Return how many of the models are neither loaded here nor wanted by a stream here."""
        loaded = self.slot.models if self.slot is not None else ()
        return sum(model not in loaded and not self.wanted[model] for model in models)

    @property
    def is_there(self) -> bool:
        """True unless its slot is being ended or replaced."""
        return self.slot is not None and self.ready.is_set()

    @property
    def at_work(self) -> SlotCall | None:
        """The running call; None if the slot is idle."""
        calls = self.slot.calls if self.slot is not None and self.is_there else ()
        return next((call for call in calls if call.begun_at is not None), None)

    def busy_with(self, now: float) -> str:
        """Return the slot's work and its duration, as a part of a sentence."""
        call = self.at_work
        if self.slot is None or call is None or call.begun_at is None:
            return "its slot, which is being replaced"
        load = f"loading model {call.loading!r} for " if call.loading else ""
        work = f"{load}{call.of or 'another stream'} for {duration(now - call.begun_at)}"
        return f"its slot {self.slot.name}, which has been busy with {work}"


class SlotWork(msgspec.Struct):
    """The running call of a slot: what it is ``of``, such as the full key of a stream, and the model that it
    loads. ``message`` is the first message of the call, if it is known. ``still_s`` is the time since the
    last report of progress."""

    slot: str
    of: str
    for_s: float
    still_s: float
    loading: str = ""
    message: str = ""

    @property
    def sentence(self) -> str:
        """The call in words, for the stream of the message."""
        place = Place.named(self.message)
        name = f"timer {place.timer!r}" if place.timer else f"message {place.run}:{place.id or place.seq}"
        load = f", which loads model {self.loading!r}" if self.loading else ""
        return f"{name} runs in {self.slot}{load}, for {duration(self.for_s)} now"


class SlotCrash(SlotDied):
    """The death of a slot during a call. ``guilty``: the slot worked at this call. ``model`` is the model
    that it was loading, or ""."""

    def __init__(self, text: str, detail: str, guilty: bool, model: str = "") -> None:
        super().__init__(text, detail=detail)
        self.guilty = guilty
        self.model = model

    @property
    def loading_error(self) -> str:
        """The error of the load, without secrets."""
        return redact(f"model {self.model!r} did not load: {self}")


class SlotHandles:
    """The slots of a node. ``on_death`` is called with the handle of a slot that has died."""

    def __init__(self, slots: StreamSlotMaker, host: Host, *, on_death: Callable[[SlotHandle], None]) -> None:
        self._pool = SlotPool(slots, slots.spawn, host, host.limits.spare_slots)
        self._clock, self._limits, self._tasks = host.clock, host.limits, host.tasks
        self._log = host.log
        self._on_death = on_death
        self.handles: list[SlotHandle] = []
        self.model_loads: Counter[str] = Counter()
        """By model: the number of loads in all slots."""
        self.model_failures: Counter[str] = Counter()
        """By model: the number of failed loads."""
        self._busy = asyncio.Event()

    async def start(self) -> None:
        """Spawn every slot. Raises ConfigError if the app can't load."""
        self.handles = [SlotHandle() for _ in range(self._limits.slots)]
        for slot, handle in zip(
            await asyncio.gather(*(self._pool.first() for _ in self.handles)), self.handles, strict=True
        ):
            self._put_in(handle, slot)
        self._pool.warm_up()
        self._tasks.repeat(self._watch_for_hangs, self._clock, self._log)

    async def close(self) -> None:
        """End every slot."""
        await self._pool.close()

    def assign(self, models: Iterable[str] = ()) -> SlotHandle:
        """Assign a stream that uses ``models``, and return its handle: the one with the fewest streams,
        preferably with the models loaded."""

        def rank(handle: SlotHandle) -> tuple[int, int]:
            lacking = handle.lacks(models)
            return handle.streams + MODEL_STREAMS * lacking, lacking

        handle = min(self.handles, key=rank)
        handle.streams += 1
        handle.wanted.update(models)
        return handle

    def leave(self, handle: SlotHandle, models: Iterable[str] = ()) -> None:
        """Give up the handle of a stream that uses ``models``."""
        handle.streams -= 1
        handle.wanted.subtract(models)

    @property
    def models(self) -> Counter[str]:
        """By model: the number of slots that have loaded it."""
        return Counter(
            name for handle in self.handles if handle.slot is not None for name in handle.slot.models
        )

    @property
    def busy(self) -> int:
        """The number of slots with a call under way."""
        return sum(bool(handle.slot.calls) for handle in self.handles if handle.slot is not None)

    def works(self) -> list[SlotWork]:
        """Return the running calls, the longest first."""
        now, found = self._clock.monotonic(), []
        for handle in self.handles:
            if handle.slot is not None and (call := handle.at_work) is not None and call.begun_at is not None:
                for_s, still_s = now - call.begun_at, now - call.advanced_at
                found.append(SlotWork(handle.slot.name, call.of, for_s, still_s, call.loading))
        return sorted(found, key=lambda work: -work.for_s)

    @property
    def loading(self) -> Counter[str]:
        """By model: the number of slots that are loading it."""
        return Counter(
            handle.slot.loading for handle in self.handles if handle.slot is not None and handle.slot.loading
        )

    async def call(
        self,
        handle: SlotHandle,
        timeout_s: float,
        work: Callable[[StreamSlot, SlotCall], Awaitable[T]],
        expected: StreamSlot | None = None,
        *,
        of: str = "",
    ) -> tuple[T, StreamSlot]:
        """Run ``work`` in the handle's slot, with a watch for hangs. Return its answer and the slot.

        ``expected`` is the slot that the work needs; None for any. ``of`` names the purpose, such as the full
        key of a stream. Raises SlotCrash, also if the expected slot was replaced."""
        await handle.ready.wait()
        slot = handle.slot
        assert slot is not None
        if expected is not None and slot is not expected:
            raise SlotCrash("the slot was replaced", "", guilty=False)
        call = SlotCall(timeout_s, self._busy.set, of)
        try:
            answer = await work(slot, call)
        except SlotDied as error:
            # A call that was waiting for its turn is not to blame.
            guilty = call.begun_at is not None
            if guilty and call.loading:
                self.model_failures[call.loading] += 1
            raise SlotCrash(str(error), error.detail, guilty, call.loading if guilty else "") from error
        except ModelFailed as error:
            self.model_failures[error.model] += 1
            raise
        finally:
            if slot.models is not handle.models_seen:
                self._count_loads(handle, slot)
            if call.begun_at is not None:
                handle.took_s = self._clock.monotonic() - call.begun_at
        return answer, slot

    def _count_loads(self, handle: SlotHandle, slot: StreamSlot) -> None:
        """Count the models that are new in a slot, unless the slot was replaced."""
        if handle.slot is slot:
            self.model_loads.update({*slot.models} - {*handle.models_seen})
            handle.models_seen = slot.models

    async def close_stream(self, slot: StreamSlot, stream: str, key: str, timeout_s: float) -> None:
        """Drop a key's handler in a slot. ``timeout_s`` limits the time without progress. Never raises."""
        call = SlotCall(timeout_s, self._busy.set, f"closing {stream}/{key}")
        await slot.close(stream, key, call=call)

    def _put_in(self, handle: SlotHandle, slot: StreamSlot) -> None:
        handle.slot = slot
        handle.ready.set()
        self._tasks.spawn(self._await_exit(handle, slot))

    async def _await_exit(self, handle: SlotHandle, slot: StreamSlot) -> None:
        gone = await slot.exited()
        handle.ready.clear()
        handle.slot, handle.models_seen = None, ()
        self._pool.died(slot, gone)
        self._on_death(handle)
        replacement = self._pool.take() or await self._pool.spawn()
        if replacement is not None:
            self._put_in(handle, replacement)

    async def _watch_for_hangs(self) -> None:
        """Kill each slot whose handler makes no progress for its timeout."""
        while True:
            self._busy.clear()
            next_at = self._kill_hung()
            timeout_s = None if next_at == math.inf else max(0.0, next_at - self._clock.monotonic())
            if not await self._clock.wait(self._busy, timeout_s) or next_at == math.inf:
                continue
            # A call has begun. No timeout is shorter than this pause.
            await self._clock.sleep(min(0.05, max(0.0, next_at - self._clock.monotonic())))

    async def _kill(self, slot: StreamSlot, reason: str) -> None:
        stacks = await slot.kill(reason)
        self._log.warning("slot hung", slot=slot.name, reason=reason, stacks=stacks)

    def _kill_hung(self) -> float:
        """Kill the slots that hang. Return the time of the next check; infinity if nothing runs."""
        now = self._clock.monotonic()
        next_at = math.inf
        for handle in self.handles:
            if handle.slot is None or not handle.ready.is_set():
                continue  # its slot is being killed or replaced
            for call in handle.slot.calls:
                if call.begun_at is None:
                    continue  # it waits for its turn
                timeout_s, reason = self._patience(call)
                if hung(call.advanced_at, now, timeout_s):
                    handle.ready.clear()
                    self._tasks.spawn(self._kill(handle.slot, reason))
                    break
                # A load may end at any moment, and then the handler's own time begins.
                at = call.advanced_at + timeout_s
                next_at = min(next_at, at, now + call.timeout_s) if call.loading else min(next_at, at)
        return next_at

    def _patience(self, call: SlotCall) -> tuple[float, str]:
        """Return the seconds that a call may take without progress, and the reason to log after that."""
        if call.loading:
            # The handler's own timeout counts if it is longer.
            timeout_s = max(call.timeout_s, self._limits.model_timeout_s)
            return timeout_s, f"model {call.loading!r} did not load within {timeout_s:g} s (model_timeout_s)"
        return call.timeout_s, f"no progress for {call.timeout_s:g} s (timeout_s)"
