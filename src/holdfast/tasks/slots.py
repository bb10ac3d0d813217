"""A node's slots for tasks: which attempt runs in which slot, and how it ends."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.cluster.host import Host
from holdfast.cluster.slot_pool import SlotPool
from holdfast.cluster.tracer import trace_of
from holdfast.common.acts import Send
from holdfast.ports.slots import Attempt, AttemptReport, Progress, TaskSlot, TaskSlotMaker
from holdfast.ports.tracing import TracedCall
from holdfast.rules.tasks.attempt import AttemptEnd, How

SOFT_S = 0.4
"""Seconds that a handler and its terminate hooks have to end."""

TERM_S = 0.15
"""Seconds that processes of a handler have to end after SIGTERM."""

STOP_S = 1.0
"""Seconds that an idle slot has to end."""

QUICK_S = 0.002
"""The longest recent seconds of a type whose tasks are lined up in trays."""

LINE_S, LINE_MAX = 0.03, 256
"""The most work, in seconds and in attempts, that is lined up in a slot."""

STUCK_S = 0.05
"""Seconds of an attempt after which the attempts behind it go elsewhere."""

ELSEWHERE_S = 1.0
"""Seconds that quick attempts wait for stuck slots before they go to other nodes."""

STIR_S = 0.02
"""The shortest seconds between two checks of the deadlines."""

OFFER_AGAIN_S = 2.0
"""Seconds until a task is tried again that the system had no room to give to a slot."""

WEIGHT = 0.2
"""Weight of the newest duration in the moving average (EWMA)."""

LEVELS = ("debug", "info", "warning", "error")

LOG_NAMES = ("self", "event", "method_name", "positional_args", "stack")
"""Names that structlog uses itself, so no handler's value may have them."""


class Ended(AttemptEnd, frozen=True):
    """The end of an attempt with its results.

    ``result`` is what the handler returned, as JSON (empty: nothing). An attempt that exceeded its time is
    TIMED_OUT even if it still returned; one that was asked to end may still have RETURNED or RAISED.
    ``took_s`` is its duration, ``memory_mb`` the most memory of its process (0: unknown). ``sends`` are its
    effects, if it RETURNED. ``traced`` has the spans that its slot recorded."""

    result: bytes = b""
    took_s: float = 0.0
    memory_mb: int = 0
    sends: tuple[Send, ...] = ()
    traced: TracedCall | None = None


class Running:
    """An attempt in the pool of slots. Times are monotonic seconds.

    Attributes:
        attempt: what to run.
        begun_at: when its handler began; None while it waits.
        advanced_at: when it last advanced (began, or called ``job.progress``).
        progress: what it last reported.
        ended: a future with its result.
        until: when its lease ends.
        fate: how it will end in any case, once that is decided, and ``reason`` why.
    """

    __slots__ = (
        "advanced_at",
        "attempt",
        "begun_at",
        "ended",
        "fate",
        "number",
        "on_progress",
        "over",
        "progress",
        "reason",
        "stacks",
        "until",
    )

    def __init__(
        self,
        number: int,
        attempt: Attempt,
        now: float,
        ended: asyncio.Future[Ended],
        on_progress: Callable[[Running], None] | None,
    ) -> None:
        self.number = number
        self.attempt = attempt
        self.begun_at: float | None = None
        self.advanced_at = now
        self.progress = Progress()
        self.ended = ended
        self.on_progress = on_progress
        self.until = now + attempt.lease_s if attempt.lease_s else math.inf
        self.fate: How | None = None
        self.reason = ""
        self.stacks = ""
        self.over: asyncio.Event | None = None

    def hangs_at(self) -> float:
        """Return when its time is over (monotonic seconds); infinite if it hasn't begun, or has a fate."""
        if self.begun_at is None or self.fate is not None:
            return math.inf
        at = self.begun_at + self.attempt.timeout_s
        return min(at, self.advanced_at + self.attempt.stall_s) if self.attempt.stall_s else at

    def why(self, now: float) -> str:
        """Return which limit of its time is over, in words."""
        attempt = self.attempt
        if self.begun_at is not None and now >= self.begun_at + attempt.timeout_s:
            return f"over its time: timeout_s = {attempt.timeout_s:g}"
        return f"hangs: no progress for stall_s = {attempt.stall_s:g}"


def result_of(run: Running, report: AttemptReport) -> Ended:
    """Return the result of an attempt from the report of its process."""
    how, error, detail = How.RETURNED, report.error, report.detail
    if run.fate is How.TIMED_OUT:
        how, error, detail = How.TIMED_OUT, run.reason, run.stacks or detail
    elif report.cancelled:
        how, error = How.CANCELLED, run.reason or error
    elif error:
        how = How.RAISED
    return Ended(
        how,
        result=report.result if how is How.RETURNED else b"",
        error=error,
        detail=detail,
        permanent=report.permanent and how is How.RAISED,
        pause_s=report.pause_s if how is How.RAISED else 0.0,
        took_s=report.took_s,
        memory_mb=report.memory_mb,
        sends=report.sends if how is How.RETURNED else (),
        traced=report.traced,
    )


class TaskSeat:
    """A living slot and the attempts in it, the one at work first."""

    __slots__ = ("ending", "idle_since", "leased_until", "line", "slot")

    def __init__(self, slot: TaskSlot, now: float) -> None:
        self.slot = slot
        self.line: deque[Running] = deque()
        self.idle_since = now
        self.ending = False
        self.leased_until = math.inf

    def attempt(self, number: int) -> Running | None:
        """Return the attempt of this number."""
        for run in self.line:  # it is the first, nearly always
            if run.number == number:
                return run
        return None


class TaskSlots:
    """Runs attempts in slots: as many slots as the work needs, up to ``limit``.

    Short tasks (by how long their type took lately) are lined up in the trays of busy slots, so that no slot
    waits for the node (without that, a node ends a sixth of them in the same time or fewer: benchmark
    ``tasks``); what lies behind one that turns out not to be short is withdrawn and goes elsewhere.

    Args:
        slots: makes the slots.
        idle_s: a slot that has had no work for this time is ended.
        spare: further slots kept warm, to replace one that dies.
        limit: the most attempts to run at once.
    """

    def __init__(
        self,
        slots: TaskSlotMaker,
        host: Host,
        *,
        idle_s: float = 60.0,
        spare: int = 1,
        limit: int = 4,
    ) -> None:
        self._pool = SlotPool(slots, lambda: slots.spawn(self), host, spare, on_spare=self._place)
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._idle_s = idle_s
        self._limit = limit
        self._until = math.inf
        self._number = 0
        self._running: dict[str, Running] = {}
        self._waiting: deque[Running] = deque()
        self.seats: dict[str, TaskSeat] = {}
        self._starting = 0
        self.took_s: dict[str, float] = {}
        self.took_lately_s = math.inf
        self._stirred = asyncio.Event()

    async def start(self) -> None:
        """Spawn the first slots. Raises ConfigError if the app can't load."""
        self._sit(await self._pool.first())
        self._pool.warm_up()
        self._tasks.repeat(self._watch, self._clock, self._log)

    async def close(self) -> None:
        """End every slot. What still runs is killed and DIED; what waits was never ``begun``. To let handlers
        end in order, ``cancel`` them and await their ends first."""
        self._pool.closed = True
        for run in list(self._waiting):
            self._end(run, Ended(How.CANCELLED, error="its node stops", begun=False))
        self._waiting.clear()
        await self._pool.close()
        for seat in self.seats.values():
            seat.line.clear()
        for run in list(self._running.values()):
            begun = run.begun_at is not None
            self._end(run, Ended(How.DIED if begun else How.CANCELLED, error="its node stops", begun=begun))

    def set_limits(self, limit: int, until: float = math.inf) -> None:
        """Run at most ``limit`` attempts at once; attempts above a lower one finish. What runs ``until`` then
        is killed, whatever the lease of its attempt, even if this process stands still."""
        if (limit, until) == (self._limit, self._until):
            return
        fell = limit < self._limit
        if limit != self._limit:
            self._limit = limit
            if fell:
                for seat in self.seats.values():
                    self._thin(seat)
            self._place()
        self._until = until
        self._stirred.set()

    @property
    def room(self) -> int:
        """The number of attempts that could begin now or in milliseconds. More may be run: they wait."""
        line = _line_of(self.took_lately_s)
        stuck = self._stuck(self._clock.monotonic()) if line > 1 else 0
        return max(0, max(0, self._limit - stuck) * line + stuck - len(self._running))

    @property
    def refill(self) -> int:
        """The number of attempts to begin now. Quick ones begin many together, once half of the possible ones
        are done."""
        together = _line_of(self.took_lately_s) > 1 and self.room < len(self._running)
        return 0 if together else self.room

    @property
    def running(self) -> Mapping[str, Running]:
        """All attempts by the ids of their tasks."""
        return self._running

    @property
    def busy(self) -> int:
        """The number of attempts that run, or begin, right now: one in each slot that has work."""
        return sum(bool(seat.line) for seat in self.seats.values())

    @property
    def slots(self) -> int:
        """The number of slots that work or wait for work, spares not counted."""
        return sum(not seat.ending for seat in self.seats.values())

    def run(
        self, attempt: Attempt, on_progress: Callable[[Running], None] | None = None
    ) -> asyncio.Future[Ended]:
        """Run an attempt. The future never fails; cancelling it abandons the attempt, which goes on: use
        ``cancel`` to end it. ``on_progress`` is called whenever the handler says how far it is."""
        assert attempt.task_id not in self._running, "one attempt of a task at a time"
        ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._number += 1
        run = Running(self._number, attempt, self._clock.monotonic(), ended, on_progress)
        self._running[attempt.task_id] = run
        if self._pool.closed:
            self._end(run, Ended(How.CANCELLED, error="its node stops", begun=False))
        else:
            self._waiting.append(run)
            self._place()
        return ended

    def cancel(self, task_id: str, reason: str, grace_s: float = SOFT_S) -> bool:
        """End an attempt, softly at first, and surely within ``grace_s`` and half a second. Return False for
        an unknown attempt. The outcome comes through its future."""
        run = self._running.get(task_id)
        if run is None:
            return False
        if run.fate is not None:
            return True
        run.fate, run.reason = How.CANCELLED, reason
        for seat in self.seats.values():
            if run in seat.line:
                self._tasks.spawn(self._bring_to_an_end(seat, run, grace_s))
                return True
        self._waiting.remove(run)
        self._end(run, Ended(How.CANCELLED, error=reason, begun=False))
        return True

    async def look(self, task_id: str) -> tuple[Running, str | None] | None:
        """Return an attempt, and its place in the code as of :meth:`TaskSlot.look`; None for an unknown
        one."""
        run = self._running.get(task_id)
        seat = next((seat for seat in self.seats.values() if run in seat.line), None)
        if run is None or seat is None:
            return None
        return run, await seat.slot.stacks_of(run.number)

    def renew(self, task_id: str, lease_s: float) -> None:
        """Let an attempt run on for ``lease_s`` from now, if it is known."""
        if (run := self._running.get(task_id)) is not None:
            run.until = self._clock.monotonic() + lease_s
            self._stirred.set()

    # --- as the listener of its slots

    def on_ended(self, slot: TaskSlot, number: int, report: AttemptReport) -> None:
        """See Listener.on_ended."""
        seat = self.seats[slot.name]
        run = seat.attempt(number)
        if run is None:
            self._log.warning("unknown attempt ended", slot=slot.name, attempt=number)
            return
        seat.line.remove(run)
        now = self._clock.monotonic()
        if seat.line:
            if seat.line[0].begun_at is None:
                seat.line[0].begun_at = seat.line[0].advanced_at = now
        else:
            seat.idle_since = now
            self._stirred.set()
        self._note_time(run.attempt.type, report.took_s)
        if report.spoiled or run.fate is not None:  # what it started may go on without it
            self._thin(seat)
            self._retire(seat)
        self._end(run, result_of(run, report))
        self._place()

    def on_progress(self, slot: TaskSlot, number: int, progress: Progress) -> None:
        """See Listener.on_progress."""
        run = self._attempt(slot, number)
        if run is None:
            return  # what an attempt left behind in a thread goes on after its end
        run.advanced_at = self._clock.monotonic()
        if run.begun_at is None:
            run.begun_at = run.advanced_at
        run.progress = Progress(
            run.progress.fraction if progress.fraction is None else progress.fraction,
            progress.note or run.progress.note,
            run.progress.numbers | progress.numbers,
        )
        if run.on_progress is not None:
            run.on_progress(run)

    def on_log(self, slot: TaskSlot, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        """See Listener.on_log."""
        run = self._attempt(slot, number)
        context = {"slot": slot.name}
        if run is not None:
            context |= {"task_id": run.attempt.task_id, "task_type": run.attempt.type}
            context |= trace_of(run.attempt.traceparent)
        taken = {*LOG_NAMES, *context}
        own = {f"{name}_" if name in taken else name: value for name, value in values.items()}
        getattr(self._log, level if level in LEVELS else "info")(event, **own, **context)

    def _attempt(self, slot: TaskSlot, number: int) -> Running | None:
        seat = self.seats.get(slot.name)
        return seat.attempt(number) if seat is not None else None

    # --- placing

    def _place(self) -> None:
        """Give waiting attempts to slots, in order, and see that there are enough of them. An attempt whose
        lease has ended never begins: another node may have done its task already."""
        now = self._clock.monotonic()
        while self._waiting and now < self._until:
            run = self._waiting[0]
            if run.until <= now:
                self._waiting.popleft()
                self._end(run, Ended(How.CANCELLED, error="its lease ended before it began", begun=False))
                continue
            seat = self._seat_for(run, now) or self._new_seat()
            if seat is None:
                return
            try:
                taken = seat.slot.offer(run.number, run.attempt)
            except OSError as error:  # it has a large body, and this process no file descriptor left
                self._log.warning("cannot give attempt to slot", slot=seat.slot.name, error=str(error))
                self._waiting.popleft()
                why = f"it can't be given to a slot: {error}"
                self._end(run, Ended(How.CANCELLED, error=why, begun=False, rest_s=OFFER_AGAIN_S))
                continue
            if not taken:
                if seat.line:
                    return  # its tray is full
                seat.ending = True  # it is dead, and its exit follows
                continue
            self._waiting.popleft()
            seat.line.append(run)
            if len(seat.line) == 1:
                run.begun_at = run.advanced_at = now
            self._stirred.set()
            if (until := min(run.until, self._until)) < seat.leased_until:
                self._lease(seat, until, now)

    def _seat_for(self, run: Running, now: float) -> TaskSeat | None:
        """Return an idle seat; for a quick attempt, the seat with the shortest line."""
        busy = 0
        idle: TaskSeat | None = None
        best: TaskSeat | None = None
        for seat in self.seats.values():
            if seat.line or seat.ending:
                busy += 1
                if not seat.ending and (best is None or len(seat.line) < len(best.line)):
                    best = seat
            elif idle is None or seat.idle_since > idle.idle_since:
                idle = seat  # the one that was last at work, so that others become idle for good
        if busy < self._limit and idle is not None:
            return idle
        if best is None or busy > self._limit or not self._quick(run):
            return None
        if len(best.line) >= _line_of(self.took_s[run.attempt.type]):
            return None
        begun_at = best.line[0].begun_at
        stuck = begun_at is None or now >= begun_at + STUCK_S
        return None if stuck or not all(self._quick(other) for other in best.line) else best

    def _stuck(self, now: float) -> int:
        """Return how many slots work on an attempt that is not quick."""
        first = [seat.line[0] for seat in self.seats.values() if seat.line]
        return sum(
            not self._quick(run) or (run.begun_at is not None and now >= run.begun_at + STUCK_S)
            for run in first
        )

    def _send_elsewhere(self, now: float) -> float:
        """End quick attempts that wait here while every slot is stuck: other nodes may have room. Return when
        to check again."""
        if not self._waiting or self._stuck(now) < self._limit:
            return math.inf
        quick = [run for run in self._waiting if self._quick(run)]
        late = [run for run in quick if now >= run.advanced_at + ELSEWHERE_S]
        self._waiting = deque(run for run in self._waiting if run not in late)
        for run in late:
            self._end(run, Ended(How.CANCELLED, error="every slot here is at work", begun=False))
        later = (run.advanced_at + ELSEWHERE_S for run in quick if run not in late)
        return min(later, default=math.inf)

    def _new_seat(self) -> TaskSeat | None:
        """Return a seat with a spare slot, if there may be another one. Without a spare, one is started."""
        wanted = min(self._limit, len(self._running))
        if self._pool.closed or len(self.seats) + self._starting >= wanted:
            return None
        if (spare := self._pool.take()) is not None:
            return self._sit(spare)
        self._starting += 1
        self._tasks.spawn(self._add_seat())
        return None

    def _quick(self, run: Running) -> bool:
        return run.fate is None and self.took_s.get(run.attempt.type, math.inf) <= QUICK_S

    def _thin(self, seat: TaskSeat) -> None:
        """Let the attempts that the slot has not begun wait again."""
        if seat.line:
            self._wait_again(seat, seat.slot.withdraw())

    def _wait_again(self, seat: TaskSeat, numbers: Sequence[int]) -> None:
        for number in reversed(numbers):
            run = seat.attempt(number)
            assert run is not None, "only what lies in its tray is withdrawn"
            seat.line.remove(run)
            run.begun_at = None
            if run.fate is How.CANCELLED:
                self._end(run, Ended(How.CANCELLED, error=run.reason, begun=False))
            else:
                run.fate = None
                self._waiting.appendleft(run)
        if numbers and not seat.line:
            seat.idle_since = self._clock.monotonic()

    def _end(self, run: Running, ended: Ended) -> None:
        del self._running[run.attempt.task_id]
        if not run.ended.done():
            run.ended.set_result(ended)
        if run.over is not None:
            run.over.set()

    def _note_time(self, kind: str, took_s: float) -> None:
        known = self.took_s.get(kind, took_s)
        self.took_s[kind] = known + WEIGHT * (took_s - known)
        lately = took_s if self.took_lately_s == math.inf else self.took_lately_s
        self.took_lately_s = lately + WEIGHT * (took_s - lately)

    # --- slots

    def _sit(self, slot: TaskSlot) -> TaskSeat:
        self.seats[slot.name] = seat = TaskSeat(slot, self._clock.monotonic())
        self._tasks.spawn(self._await_exit(seat))
        self._stirred.set()
        return seat

    async def _add_seat(self) -> None:
        slot = await self._pool.spawn()
        self._starting -= 1
        if slot is not None:
            self._sit(slot)
            self._place()

    def _retire(self, seat: TaskSeat) -> None:
        seat.ending = True
        self._tasks.spawn(seat.slot.stop(STOP_S))

    async def _await_exit(self, seat: TaskSeat) -> None:
        slot = seat.slot
        gone = await slot.exited()
        del self.seats[slot.name]
        if seat.line or not (seat.ending or self._pool.closed):
            self._pool.died(slot, gone)
        self._wait_again(seat, gone.untouched)
        now = self._clock.monotonic()
        lapsed = "; its lease had ended" if seat.leased_until <= now else ""
        for run in seat.line:
            took_s = now - run.begun_at if run.begun_at is not None else 0.0
            self._note_time(run.attempt.type, took_s)
            error = run.reason or f"its slot {gone.reason}{lapsed}"
            detail = run.stacks or gone.stacks
            self._end(run, Ended(run.fate or How.DIED, error=error, detail=detail, took_s=took_s))
        self._place()

    # --- deadlines

    async def _watch(self) -> None:
        """Check each slot when something of it is due."""
        while True:
            self._stirred.clear()
            next_at = self._look()
            timeout_s = None if next_at == math.inf else max(0.0, next_at - self._clock.monotonic())
            if await self._clock.wait(self._stirred, timeout_s):
                # Something began. Its time is hardly shorter than this pause, in which much may begin.
                await self._clock.sleep(STIR_S)

    def _look(self) -> float:
        """Do what is due, and return when to check again."""
        now = self._clock.monotonic()
        next_at = math.inf
        for seat in list(self.seats.values()):
            if not seat.ending:
                next_at = min(next_at, self._look_at(seat, now) if seat.line else self._rest(seat, now))
        self._place()
        return min(next_at, self._send_elsewhere(now))

    def _rest(self, seat: TaskSeat, now: float) -> float:
        """Give an idle slot no lease, and end it after a while."""
        if seat.leased_until != math.inf:
            self._lease(seat, math.inf, now)
        if now >= seat.idle_since + self._idle_s or self.slots > self._limit:
            self._retire(seat)
            return math.inf
        return seat.idle_since + self._idle_s

    def _look_at(self, seat: TaskSeat, now: float) -> float:
        run = seat.line[0]
        next_at = math.inf
        if len(seat.line) > 1:
            assert run.begun_at is not None
            if now >= run.begun_at + STUCK_S:
                self._thin(seat)
                if not seat.line:  # it had begun none: next time it gets a single one, whose time will be up
                    self._note_time(run.attempt.type, STUCK_S)
                    return self._rest(seat, now)
            else:
                next_at = run.begun_at + STUCK_S
        if now >= run.hangs_at():
            run.fate, run.reason = How.TIMED_OUT, run.why(now)
            self._tasks.spawn(self._bring_to_an_end(seat, run, SOFT_S))
        until = min(self._until, *(run.until for run in seat.line))
        if until < seat.leased_until or seat.leased_until - now < (until - now) * 0.75:
            self._lease(seat, until, now)
        return min(next_at, run.hangs_at())

    def _lease(self, seat: TaskSeat, until: float, now: float) -> None:
        seat.leased_until = until
        seat.slot.lease(None if until == math.inf else max(0.0, until - now))

    async def _bring_to_an_end(self, seat: TaskSeat, run: Running, grace_s: float) -> None:
        """Cancel the attempt, then terminate what it started, then kill all of it."""
        if self._running.get(run.attempt.task_id) is not run:
            return None  # it has ended by itself
        slot = seat.slot
        timed_out = run.fate is How.TIMED_OUT
        run.over = over = asyncio.Event()
        self._thin(seat)
        if run not in seat.line:  # it was not begun
            if timed_out:
                await slot.kill("it took no attempt from its tray")
            return self._place()
        self._place()
        if timed_out:
            run.stacks = await slot.dump()
        slot.cancel(run.number, run.reason)
        if await self._clock.wait(over, grace_s):
            return None
        seat.ending = True
        run.stacks = run.stacks or await slot.dump()
        slot.terminate()
        if not await self._clock.wait(over, TERM_S):
            await slot.kill(run.reason)
        return None


def _line_of(took_s: float) -> int:
    """Return how many attempts that take ``took_s`` each may be lined up in a slot."""
    if took_s > QUICK_S:
        return 1
    return min(LINE_MAX, int(LINE_S / max(took_s, LINE_S / LINE_MAX)))
