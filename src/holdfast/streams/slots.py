"""A node's slots: which stream sits where, what runs now, who hangs, and replacements from warm spares."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from holdfast.cluster.host import Host
from holdfast.common.progress import hung
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError, HoldfastError, SlotDied
from holdfast.ports.slots import Slot, Slots

T = TypeVar("T")

MODEL_STREAMS = 2
"""How many more streams a seat gets than others rather than have another slot load a model too."""


class SlotCall:
    """One call into a slot. ``begun_at`` is set when the slot gets to it: then it is the one at work."""

    __slots__ = ("begun_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.begun_at: float | None = None


class Seat:
    """A place for a slot. Streams belong to a seat; the slot in it may be replaced.

    ``streams`` counts them, and ``wanted`` the models that they use. ``took_s`` is how long the last call was
    at work. Who holds ``loads`` may have its slot load models: what becomes of that the next ones see before
    they ask for the same."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.ready = asyncio.Event()
        self.calls: deque[SlotCall] = deque()
        self.streams = 0
        self.wanted: Counter[str] = Counter()
        self.took_s = 0.0
        self.loads = asyncio.Lock()

    def lacks(self, models: Iterable[str]) -> int:
        """How many of the models are neither loaded here nor about to be."""
        loaded = self.slot.models if self.slot is not None else ()
        return sum(model not in loaded and not self.wanted[model] for model in models)


class Died(SlotDied):
    """``guilty``: the slot was at work for this very call when it died. ``model`` is the one that was being
    loaded then, if any."""

    def __init__(self, text: str, detail: str, guilty: bool, model: str = "") -> None:
        super().__init__(text, detail=detail)
        self.guilty = guilty
        self.model = model


class SlotPool:
    """Seats with living slots in them. ``on_death`` is told of a seat whose slot has gone."""

    def __init__(self, slots: Slots, host: Host, *, on_death: Callable[[Seat], None]) -> None:
        self._slots = slots
        self._clock, self._limits, self._tasks = host.clock, host.limits, host.tasks
        self._stats, self._log = host.stats, host.log
        self._on_death = on_death
        self._seats: list[Seat] = []
        self._spares: list[Slot] = []
        self._backoff = Backoff(0.2, 10.0)
        self._busy = asyncio.Event()

    async def start(self) -> None:
        """Spawn every slot. Raises ConfigError if the app can't load."""
        self._seats = [Seat() for _ in range(self._limits.slots)]
        for slot, seat in zip(
            await asyncio.gather(*(self._slots.spawn() for _ in self._seats)), self._seats, strict=True
        ):
            self._sit(seat, slot)
        for _ in range(self._limits.spare_slots):
            self._tasks.spawn(self._prepare_spare())
        self._tasks.repeat(self._watch_for_hangs, self._clock, self._log)

    async def close(self) -> None:
        """End every slot."""
        await self._slots.close()

    def assign(self, models: Iterable[str] = ()) -> Seat:
        """The seat with fewest streams, for one more; rather one that has the models that it uses."""

        def rank(seat: Seat) -> tuple[int, int]:
            lacking = seat.lacks(models)
            return seat.streams + MODEL_STREAMS * lacking, lacking

        seat = min(self._seats, key=rank)
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
        return Counter(name for seat in self._seats if seat.slot is not None for name in seat.slot.models)

    @property
    def loading(self) -> Counter[str]:
        """In how many slots each model is being loaded."""
        return Counter(
            seat.slot.loading for seat in self._seats if seat.slot is not None and seat.slot.loading
        )

    async def call(
        self,
        seat: Seat,
        timeout_s: float,
        work: Callable[[Slot], Awaitable[T]],
        expected: Slot | None = None,
    ) -> tuple[T, Slot]:
        """Do ``work`` in the seat's slot, in turn; returns the slot with the answer. ``expected`` is the slot
        that the work needs, if it isn't any. Raises Died, also where that slot was replaced."""
        await seat.ready.wait()
        slot = seat.slot
        assert slot is not None
        if expected is not None and slot is not expected:
            raise Died("the slot was replaced", "", guilty=False)
        call = SlotCall(timeout_s)
        seat.calls.append(call)
        self._promote(seat)
        try:
            answer = await work(slot)
        except SlotDied as error:
            # Those behind are not promoted: they are not to blame.
            guilty = call.begun_at is not None
            self._note_time(seat, call)
            raise Died(str(error), error.detail, guilty, slot.loading if guilty else "") from error
        except BaseException:
            self._finish(seat, call)
            raise
        self._finish(seat, call)
        return answer, slot

    def _finish(self, seat: Seat, call: SlotCall) -> None:
        self._note_time(seat, call)
        if call in seat.calls:
            seat.calls.remove(call)
            self._promote(seat)

    def _note_time(self, seat: Seat, call: SlotCall) -> None:
        if call.begun_at is not None:
            seat.took_s = self._clock.monotonic() - call.begun_at

    def _promote(self, seat: Seat) -> None:
        if seat.calls and seat.calls[0].begun_at is None:
            seat.calls[0].begun_at = self._clock.monotonic()
            self._busy.set()

    def _sit(self, seat: Seat, slot: Slot) -> None:
        seat.slot = slot
        seat.calls = deque()
        seat.ready.set()
        self._tasks.spawn(self._await_exit(seat, slot))

    async def _await_exit(self, seat: Seat, slot: Slot) -> None:
        reason = await slot.exited()
        seat.ready.clear()
        seat.slot = None
        self._stats.slot_deaths += 1
        self._log.warning("slot died", slot=slot.name, reason=reason)
        self._on_death(seat)
        self._sit(seat, await self._replacement())

    async def _replacement(self) -> Slot:
        if self._spares:
            spare = self._spares.pop(0)
            self._tasks.spawn(self._prepare_spare())
            return spare
        return await self._spawn()

    async def _prepare_spare(self) -> None:
        self._spares.append(await self._spawn())

    async def _spawn(self) -> Slot:
        failures = 0
        while True:
            try:
                return await self._slots.spawn()
            except ConfigError as error:
                self._log.error("the app does not load in a new slot", error=str(error))
            except HoldfastError as error:
                self._log.warning("could not start a slot", error=str(error))
            failures += 1
            await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))

    async def _watch_for_hangs(self) -> None:
        """A handler without progress for its timeout is dumped and killed: progress, not presence."""
        while True:
            self._busy.clear()
            next_at = self._kill_hung()
            timeout_s = None if next_at is None else max(0.0, next_at - self._clock.monotonic())
            if not await self._clock.wait(self._busy, timeout_s) or next_at is None:
                continue
            # Something began: its timeout may be the shortest, but it is no shorter than this pause.
            await self._clock.sleep(min(0.05, max(0.0, next_at - self._clock.monotonic())))

    async def _kill(self, slot: Slot, reason: str) -> None:
        stacks = await slot.kill(reason)
        self._log.warning("slot hung", slot=slot.name, reason=reason, stacks=stacks)

    def _kill_hung(self) -> float | None:
        """Kill what hangs; returns when to look next (None: nothing runs)."""
        now = self._clock.monotonic()
        next_at: float | None = None
        for seat in self._seats:
            if seat.slot is None or not seat.ready.is_set():
                continue  # its slot is being killed or replaced
            if not seat.calls or seat.calls[0].begun_at is None:
                continue
            call = seat.calls[0]
            assert call.begun_at is not None
            since = max(call.begun_at, seat.slot.progress_at)
            timeout_s, reason = self._patience(call, seat.slot)
            if hung(since, now, timeout_s):
                seat.ready.clear()
                self._tasks.spawn(self._kill(seat.slot, reason))
            else:
                # A load may end at any moment, and then the handler's own time begins.
                at = min(since + timeout_s, now + call.timeout_s) if seat.slot.loading else since + timeout_s
                next_at = at if next_at is None else min(next_at, at)
        return next_at

    def _patience(self, call: SlotCall, slot: Slot) -> tuple[float, str]:
        """How long a call may stand still, and what to say of one that does so for longer."""
        if slot.loading:
            # No handler is to blame; but where its own time is longer, that is looked at first.
            timeout_s = max(call.timeout_s, self._limits.model_timeout_s)
            return timeout_s, f"model {slot.loading!r} did not load within {timeout_s:g} s (model_timeout_s)"
        return call.timeout_s, f"no progress for {call.timeout_s:g} s (timeout_s)"
