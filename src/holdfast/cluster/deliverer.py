"""Delivers effects to their targets. One call may have the effects of many streams or tasks if the target
allows it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from holdfast.cluster.effect_dead_letters import dead_letter_of
from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import await_user_code
from holdfast.cluster.timings import Histogram
from holdfast.cluster.tracer import OpenSpan
from holdfast.common import conventions
from holdfast.common.acts import Effect
from holdfast.common.redaction import redact
from holdfast.common.user_code import run_user_code
from holdfast.errors import Busy, ConfigError, HoldfastError, OperationRefused, Retry
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Queue
from holdfast.ports.target import OutgoingEffect, Target

HandOverOutcome = Literal["taken", "refused", "failed"]
Answer = Callable[[HandOverOutcome, int, str], None]
"""Called with the outcome, the number of effects, and the error of a refused or failed one."""

CALLS_AT_ONCE = 8
"""The most concurrent calls to a target that answers. A target that doesn't answer gets one: targets may
share connections, and calls that hang would take them from the others."""

AWAY_AFTER = 2
"""The number of failed calls in a row after which a target counts as away. A single failure is normal."""

LANES_MAX = 1000
"""Beyond this number of lanes, idle lanes are dropped: handlers may use any number of URLs."""

BY_URL = "(url)"
"""The common label for times of targets at URLs: handlers may use any number of URLs."""

PAUSE_MAX_S = 300.0
"""The longest pause that a target can ask for, in seconds."""

REST_MAX_S = 20.0
"""The longest rest of a target that is away, in seconds. It rests as long as its last call took, so that a
target that hangs is called half of the time."""


class WaitingRun(msgspec.Struct, frozen=True):
    """Effects with one target and key, the oldest first, that wait for a call."""

    sender: str
    effects: tuple[Effect, ...]
    answer: Answer

    def end(self, outcome: HandOverOutcome, reason: str = "") -> None:
        """Report the outcome of all effects of the run."""
        self.answer(outcome, len(self.effects), reason)


class TargetLane:
    """The effects that wait for one target, and its concurrent ``calls``. ``failures`` counts failed calls in
    a row. The target isn't called until ``paused_until``, in monotonic seconds: it asked for a pause, or
    hangs. ``answers``: it answered the last call. ``took`` has the waiting times of effects; None for dead
    letters."""

    __slots__ = ("answers", "calls", "failures", "paused_until", "target", "took", "waiting")

    def __init__(self, target: Target, took: Histogram | None) -> None:
        self.target = target
        self.took = took
        self.waiting: deque[WaitingRun] = deque()
        self.calls = 0
        self.failures = 0
        self.answers = False
        self.paused_until = -math.inf

    @property
    def calls_max(self) -> int:
        """The most concurrent calls."""
        return CALLS_AT_ONCE if self.answers else 1

    def failed(self, began: float, now: float) -> None:
        """Note a failed call, and let the target rest if it is away."""
        self.answers = False
        self.failures += 1
        if self.failures >= AWAY_AFTER:
            self.paused_until = max(self.paused_until, now + min(now - began, REST_MAX_S))

    def first_of(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Return the first of a key's effects that one call may have."""
        return effects[: self.target.max_batch if self.target.ordered else 1]

    def next_call(self) -> list[WaitingRun]:
        """Take the first whole runs that fit into one call."""
        runs, room = [self.waiting.popleft()], self.target.max_batch
        room -= len(runs[0].effects)
        while self.waiting and len(self.waiting[0].effects) <= room:
            runs.append(self.waiting.popleft())
            room -= len(runs[-1].effects)
        return runs


class Targets(NamedTuple):
    """The targets of one node's effects: the ``declared`` ones by their names, and targets at URLs, which
    ``open_url`` opens. It raises a HoldfastError if it can't."""

    declared: Mapping[str, Target]
    open_url: Callable[[str], Target] | None = None


NO_TARGETS = Targets({})


class Deliverer:
    """Delivers the effects of one node to its ``targets``. ``queues`` are the queues of the senders, which
    are streams or types of tasks; refused effects become their dead letters."""

    def __init__(self, host: Host, targets: Targets, queues: Mapping[str, Queue]) -> None:
        self._host = host
        declared, self.open_url = targets
        self._tasks, self._stats, self._log = host.tasks, host.stats, host.log
        self._took = host.timings.effect_seconds.each(declared)
        letters = {
            f"letters of {name}": DeadLettersTarget(name, queue, host.clock) for name, queue in queues.items()
        }
        self._targets: dict[str, Target] = {**declared, **letters}
        self._lanes: dict[str, TargetLane] = {}
        self.errors: dict[str, str] = {}
        """The last error of each failing target, by name or URL."""

    def hand_over(self, queue: str, sender: str, effects: tuple[Effect, ...], answer: Answer) -> None:
        """Deliver the first of some effects of ``sender`` that have one target and key, as many as the
        target takes in one call. The sender is the full key of a stream, or type and task id of a task;
        ``queue`` names its queue."""
        name = f"letters of {queue}" if effects[0].refused else effects[0].target
        try:
            lane = self._lane(name)
        except HoldfastError as error:
            self._tasks.spawn(self._not_opened(WaitingRun(sender, effects, answer), name, error))
            return
        except Exception as error:  # noqa: BLE001 - a target of another package may raise anything
            self._note_failure(name, error)
            self._tasks.spawn(self._fail(WaitingRun(sender, effects, answer), self.errors[name]))
            return
        run = WaitingRun(sender, lane.first_of(effects), answer)
        if self._host.clock.monotonic() < lane.paused_until:
            self._tasks.spawn(self._fail(run, self.errors.get(name, "")))
            return
        lane.waiting.append(run)
        self._begin_call(name, lane)

    def _lane(self, name: str) -> TargetLane:
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._lanes = {each: lane for each, lane in self._lanes.items() if lane.calls}
            lane = self._lanes[name] = TargetLane(self._target(name), self._took_by(name))
        return lane

    def _took_by(self, name: str) -> Histogram | None:
        if name in self._targets:
            return self._took.get(name)
        return self._host.timings.effect_seconds.of(BY_URL)

    def _target(self, name: str) -> Target:
        if name in self._targets:
            return self._targets[name]
        if "://" in name and self.open_url is not None:
            return run_user_code(self.open_url, name)
        raise ConfigError("the target is not declared on this node; declare it in the app")

    async def _not_opened(self, run: WaitingRun, name: str, error: HoldfastError) -> None:
        self._log.warning("cannot open target", key=run.sender, target=redact(name), error=redact(str(error)))
        if _may_pass(error):
            self._note(name, str(error))
        _judge([run], error)

    async def _fail(self, run: WaitingRun, error: str) -> None:
        run.end("failed", error)

    def _note_failure(self, name: str, error: Exception) -> None:
        self._log.error("target failed", target=redact(name), error=redact(repr(error)))
        self._note(name, repr(error))

    def _note(self, name: str, error: str) -> None:
        """Note the last error of a target; "" if it takes effects."""
        self.errors.pop(name, None)
        if error:
            self.errors[name] = redact(error)
            if len(self.errors) > LANES_MAX:
                del self.errors[next(iter(self.errors))]

    def _begin_call(self, name: str, lane: TargetLane) -> None:
        if lane.calls < lane.calls_max:
            lane.calls += 1
            self._tasks.spawn(self._work_off(name, lane))

    async def _work_off(self, name: str, lane: TargetLane) -> None:
        """Call the target until no effect waits, or it has too many calls. Effects that gather meanwhile go
        into the next call."""
        try:
            while lane.waiting and lane.calls <= lane.calls_max:
                await self._call(name, lane, lane.next_call())
                if lane.waiting:
                    self._begin_call(name, lane)
        finally:
            lane.calls -= 1

    async def _call(self, name: str, lane: TargetLane, runs: Sequence[WaitingRun]) -> None:
        now = self._host.clock.monotonic()
        if not self._host.membership.alive or now < lane.paused_until:
            # Another node may have the sender now, or the target has its pause.
            _end(runs, "failed", self.errors.get(name, ""))
            return
        outgoing = [_outgoing(run.sender, effect) for run in runs for effect in run.effects]
        spans = self._begin_spans(name, outgoing)
        try:
            await await_user_code(lane.target.take, outgoing)
        except HoldfastError as error:
            _end_spans(spans, error)
            fields = {"target": redact(name), "error": redact(str(error))}
            if isinstance(error, Busy):
                lane.paused_until = now + min(error.retry_after_s, PAUSE_MAX_S)
            if _may_pass(error):
                lane.failed(now, self._host.clock.monotonic())
                self._note(name, str(error))
                if lane.failures == AWAY_AFTER:
                    self._log.warning("target unavailable", **fields)
                _judge(runs, error)
                return
            lane.answers = True
            if len(runs) > 1:
                for run in runs:
                    await self._call(name, lane, [run])
            elif len(runs[0].effects) > 1:  # the owner delivers the others later
                first = msgspec.structs.replace(runs[0], effects=runs[0].effects[:1])
                await self._call(name, lane, [first])
            else:
                self._log.warning("effect refused", key=runs[0].sender, **fields)
                _judge(runs, error)
            return
        except Exception as error:  # noqa: BLE001 - a target of another package may raise anything
            _end_spans(spans, error)
            lane.failed(now, self._host.clock.monotonic())
            self._note_failure(name, error)
            _end(runs, "failed", self.errors[name])
            return
        _end_spans(spans)
        if lane.failures >= AWAY_AFTER:
            self._log.info("target available", target=redact(name))
        lane.failures = 0
        lane.answers = True
        self._note(name, "")
        letters = sum(bool(run.effects[0].refused) for run in runs)  # each is a run of one
        self._stats.effects += sum(len(run.effects) for run in runs) - letters
        self._stats.set_aside += letters
        if lane.took is not None:
            wall = self._host.clock.wall()
            for run in runs:
                for effect in run.effects:
                    lane.took.note(wall - effect.at)
        _end(runs, "taken")

    def _begin_spans(self, name: str, outgoing: list[OutgoingEffect]) -> list[OpenSpan]:
        """Begin a span for each effect whose trace is recorded, and put it into the effect."""
        spans: list[OpenSpan] = []
        if (tracer := self._host.tracer) is None:
            return spans
        for index, effect in enumerate(outgoing):
            place = tracer.place(effect.traceparent) if effect.traceparent else None
            if place is None:
                continue
            attributes = {
                **conventions.operation(conventions.SEND, redact(name)),
                conventions.MESSAGE_ID: effect.id,
                conventions.BODY_SIZE: len(effect.body),
                conventions.SENDER: effect.sender,
            }
            span = tracer.begin(place, f"{conventions.SEND} {redact(name)}", "producer", attributes)
            outgoing[index] = msgspec.structs.replace(effect, traceparent=span.traceparent)
            spans.append(span)
        return spans


class DeadLettersTarget:
    """The dead letters of a queue, for effects that were refused and timers that were skipped."""

    def __init__(self, name: str, queue: Queue, clock: Clock) -> None:
        self.max_batch, self.ordered = queue.max_batch, queue.sends_in_order
        self._name = name
        self._queue = queue
        self._clock = clock

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        at = self._clock.wall()
        await self._queue.bury([dead_letter_of(effect, self._name, at) for effect in effects])


def _end_spans(spans: Sequence[OpenSpan], error: Exception | None = None) -> None:
    for span in spans:
        span.end(None if error is None else redact(str(error)))


def _judge(runs: Sequence[WaitingRun], error: HoldfastError) -> None:
    _end(runs, "failed" if _may_pass(error) else "refused", redact(str(error)))


def _end(runs: Sequence[WaitingRun], outcome: HandOverOutcome, reason: str = "") -> None:
    for run in runs:
        run.end(outcome, reason)


def _may_pass(error: HoldfastError) -> bool:
    """Return whether the target may take the same effect later, perhaps after a change of its settings."""
    return error.retry in (Retry.SAFE, Retry.SAME) or isinstance(error, ConfigError | OperationRefused)


def _outgoing(sender: str, effect: Effect) -> OutgoingEffect:
    return OutgoingEffect(
        effect.id,
        effect.target,
        effect.key,
        effect.body,
        sender,
        effect.cause,
        effect.hops,
        redact(effect.refused) if effect.refused else "",
        effect.traceparent,
    )
