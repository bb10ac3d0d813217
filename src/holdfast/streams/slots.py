"""A node's slots: which stream sits where, what runs now, who hangs, and replacements from warm spares."""

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
from holdfast.common.wording import duration
from holdfast.errors import ModelFailed, SlotDied
from holdfast.ports.slots import SlotCall, StreamSlot, StreamSlotMaker

T = TypeVar("T")

MODEL_STREAMS = 2
"""How many more streams a seat gets than others rather than have another slot load a model too."""


class Seat:
    """A place for a slot. Streams belong to a seat; the slot in it may be replaced.

    ``streams`` counts them, and ``wanted`` the models that they use. ``models_seen`` are those that were
    loaded there when this was last looked at. ``took_s`` is how long the last call was at work. Who holds
    ``loads`` may have its slot load models: what becomes of that the next ones see before they ask for the
    same. A query holds ``queries`` while the slot answers it."""

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
        """Return how many of the models are neither loaded here nor about to be."""
        loaded = self.slot.models if self.slot is not None else ()
        return sum(model not in loaded and not self.wanted[model] for model in models)

    @property
    def is_there(self) -> bool:
        """True unless its slot is being ended or replaced."""
        return self.slot is not None and self.ready.is_set()

    @property
    def at_work(self) -> SlotCall | None:
        """The call that its slot works at, if there is one."""
        calls = self.slot.calls if self.slot is not None and self.is_there else ()
        return next((call for call in calls if call.begun_at is not None), None)

    def busy_with(self, now: float) -> str:
        """Say what its slot works at, and for how long, as a part of a sentence."""
        call = self.at_work
        if self.slot is None or call is None or call.begun_at is None:
            return "its slot, which is being replaced"
        load = f"loading model {call.loading!r} for " if call.loading else ""
        work = f"{load}{call.of or 'another stream'} for {duration(now - call.begun_at)}"
        return f"its slot {self.slot.name}, which has been busy with {work}"


class SlotWork(msgspec.Struct):
    """The call that a slot works at: what it is ``of``, such as the full key of a stream, and the model that
    it loads, if it does. ``message`` is the first one that its handler is called for, where that is known.
    ``still_s`` is how long it has told of no progress."""

    slot: str
    of: str
    for_s: float
    still_s: float
    loading: str = ""
    message: str = ""

    @property
    def sentence(self) -> str:
        """That in words, for a stream whose message it is."""
        place = Place.named(self.message)
        name = f"timer {place.timer!r}" if place.timer else f"message {place.run}:{place.id or place.seq}"
        load = f", which loads model {self.loading!r}" if self.loading else ""
        return f"{name} runs in {self.slot}{load}, for {duration(self.for_s)} now"


class Died(SlotDied):
    """``guilty``: the slot was at work for this very call when it died. ``model`` is the one that was being
    loaded then, if any."""

    def __init__(self, text: str, detail: str, guilty: bool, model: str = "") -> None:
        super().__init__(text, detail=detail)
        self.guilty = guilty
        self.model = model

    @property
    def loading_error(self) -> str:
        """The reason why the model didn't load, without secrets."""
        return redact(f"model {self.model!r} did not load: {self}")


class Seats:
    """A node's seats, with living slots in them. ``on_death`` is told of a seat whose slot has gone."""

    def __init__(self, slots: StreamSlotMaker, host: Host, *, on_death: Callable[[Seat], None]) -> None:
        self._pool = SlotPool(slots, slots.spawn, host, host.limits.spare_slots)
        self._clock, self._limits, self._tasks = host.clock, host.limits, host.tasks
        self._log = host.log
        self._on_death = on_death
        self.seats: list[Seat] = []
        self.model_loads: Counter[str] = Counter()
        """How often each model was loaded, in any slot."""
        self.model_failures: Counter[str] = Counter()
        """How often one didn't load."""
        self._busy = asyncio.Event()

    async def start(self) -> None:
        """Spawn every slot. Raises ConfigError if the app can't load."""
        self.seats = [Seat() for _ in range(self._limits.slots)]
        for slot, seat in zip(
            await asyncio.gather(*(self._pool.first() for _ in self.seats)), self.seats, strict=True
        ):
            self._sit(seat, slot)
        self._pool.warm_up()
        self._tasks.repeat(self._watch_for_hangs, self._clock, self._log)

    async def close(self) -> None:
        """End every slot."""
        await self._pool.close()

    def assign(self, models: Iterable[str] = ()) -> Seat:
        """The seat with fewest streams, for one more; rather one that has the models that it uses."""

        def rank(seat: Seat) -> tuple[int, int]:
            lacking = seat.lacks(models)
            return seat.streams + MODEL_STREAMS * lacking, lacking

        seat = min(self.seats, key=rank)
        seat.streams += 1
        seat.wanted.update(models)
        return seat

    def leave(self, seat: Seat, models: Iterable[str] = ()) -> None:
        """A stream that uses ``models`` gives up its seat."""
        seat.streams -= 1
        seat.wanted.subtract(models)

    @property
    def models(self) -> Counter[str]:
        """In how many slots each model is loaded."""
        return Counter(name for seat in self.seats if seat.slot is not None for name in seat.slot.models)

    @property
    def busy(self) -> int:
        """In how many slots a call is under way."""
        return sum(bool(seat.slot.calls) for seat in self.seats if seat.slot is not None)

    def works(self) -> list[SlotWork]:
        """Return what the slots work at, the longest call first."""
        now, found = self._clock.monotonic(), []
        for seat in self.seats:
            if seat.slot is not None and (call := seat.at_work) is not None and call.begun_at is not None:
                for_s, still_s = now - call.begun_at, now - call.advanced_at
                found.append(SlotWork(seat.slot.name, call.of, for_s, still_s, call.loading))
        return sorted(found, key=lambda work: -work.for_s)

    @property
    def loading(self) -> Counter[str]:
        """In how many slots each model is being loaded."""
        return Counter(
            seat.slot.loading for seat in self.seats if seat.slot is not None and seat.slot.loading
        )

    async def call(
        self,
        seat: Seat,
        timeout_s: float,
        work: Callable[[StreamSlot, SlotCall], Awaitable[T]],
        expected: StreamSlot | None = None,
        *,
        of: str = "",
    ) -> tuple[T, StreamSlot]:
        """Do ``work`` in the seat's slot, by a call that is watched; returns the slot with the answer.

        ``expected`` is the slot that the work needs, if it isn't any; ``of`` says what it is for, such as the
        full key of a stream. Raises Died, also where that slot was
        replaced."""
        await seat.ready.wait()
        slot = seat.slot
        assert slot is not None
        if expected is not None and slot is not expected:
            raise Died("the slot was replaced", "", guilty=False)
        call = SlotCall(timeout_s, self._busy.set, of)
        try:
            answer = await work(slot, call)
        except SlotDied as error:
            # Those that waited in it were not begun: they are not to blame.
            guilty = call.begun_at is not None
            if guilty and call.loading:
                self.model_failures[call.loading] += 1
            raise Died(str(error), error.detail, guilty, call.loading if guilty else "") from error
        except ModelFailed as error:
            self.model_failures[error.model] += 1
            raise
        finally:
            if slot.models is not seat.models_seen:
                self._count_loads(seat, slot)
            if call.begun_at is not None:
                seat.took_s = self._clock.monotonic() - call.begun_at
        return answer, slot

    def _count_loads(self, seat: Seat, slot: StreamSlot) -> None:
        """Count the models that are new in a slot, unless another one sits there by now."""
        if seat.slot is slot:
            self.model_loads.update({*slot.models} - {*seat.models_seen})
            seat.models_seen = slot.models

    async def close_stream(self, slot: StreamSlot, stream: str, key: str, timeout_s: float) -> None:
        """Drop a key's handler in a slot, which may take so long without progress. Never raises."""
        call = SlotCall(timeout_s, self._busy.set, f"closing {stream}/{key}")
        await slot.close(stream, key, call=call)

    def _sit(self, seat: Seat, slot: StreamSlot) -> None:
        seat.slot = slot
        seat.ready.set()
        self._tasks.spawn(self._await_exit(seat, slot))

    async def _await_exit(self, seat: Seat, slot: StreamSlot) -> None:
        gone = await slot.exited()
        seat.ready.clear()
        seat.slot, seat.models_seen = None, ()
        self._pool.died(slot, gone)
        self._on_death(seat)
        replacement = self._pool.take() or await self._pool.spawn()
        if replacement is not None:
            self._sit(seat, replacement)

    async def _watch_for_hangs(self) -> None:
        """A handler without progress for its timeout is dumped and killed: progress, not presence."""
        while True:
            self._busy.clear()
            next_at = self._kill_hung()
            timeout_s = None if next_at == math.inf else max(0.0, next_at - self._clock.monotonic())
            if not await self._clock.wait(self._busy, timeout_s) or next_at == math.inf:
                continue
            # Something began: its timeout may be the shortest, but it is no shorter than this pause.
            await self._clock.sleep(min(0.05, max(0.0, next_at - self._clock.monotonic())))

    async def _kill(self, slot: StreamSlot, reason: str) -> None:
        stacks = await slot.kill(reason)
        self._log.warning("slot hung", slot=slot.name, reason=reason, stacks=stacks)

    def _kill_hung(self) -> float:
        """Kill what hangs; returns when to look next, infinity if nothing runs."""
        now = self._clock.monotonic()
        next_at = math.inf
        for seat in self.seats:
            if seat.slot is None or not seat.ready.is_set():
                continue  # its slot is being killed or replaced
            for call in seat.slot.calls:
                if call.begun_at is None:
                    continue  # it waits for its turn
                timeout_s, reason = self._patience(call)
                if hung(call.advanced_at, now, timeout_s):
                    seat.ready.clear()
                    self._tasks.spawn(self._kill(seat.slot, reason))
                    break
                # A load may end at any moment, and then the handler's own time begins.
                at = call.advanced_at + timeout_s
                next_at = min(next_at, at, now + call.timeout_s) if call.loading else min(next_at, at)
        return next_at

    def _patience(self, call: SlotCall) -> tuple[float, str]:
        """Return how many seconds a call may stand still, and what to say of one that does so for longer."""
        if call.loading:
            # No handler is to blame; but where its own time is longer, that is looked at first.
            timeout_s = max(call.timeout_s, self._limits.model_timeout_s)
            return timeout_s, f"model {call.loading!r} did not load within {timeout_s:g} s (model_timeout_s)"
        return call.timeout_s, f"no progress for {call.timeout_s:g} s (timeout_s)"
