"""Hands effects over to their targets, those of many streams or tasks in one call where the target allows
that."""

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
"""Called with the outcome, of how many effects, and why the first was refused or failed."""

CALLS_AT_ONCE = 8
"""The most calls under way at once to a target that answers. One that hasn't answered has one: targets may
share connections, and calls to those that hang would take them from the others."""

AWAY_AFTER = 2
"""After so many calls that failed in a row a target is taken to be away, and the log says so. A single one
may happen at any time."""

LANES_MAX = 1000
"""With more lanes than this, those that are idle are dropped: handlers may make up URLs without end."""

BY_URL = "(url)"
"""Where the times of targets count that handlers name by URL: they may make up URLs without end."""

PAUSE_MAX_S = 300.0
"""The longest time for which a target that asks for a pause isn't called."""

REST_MAX_S = 20.0
"""The longest time for which a target that is away isn't called after a call: else as long as that call took.
So one that hangs is called half of the time, and one that fails at once is tried as ever."""


class WaitingRun(msgspec.Struct, frozen=True):
    """Effects with one target and key, oldest first, that wait for a call to their target."""

    sender: str
    effects: tuple[Effect, ...]
    answer: Answer

    def tell(self, outcome: HandOverOutcome, reason: str = "") -> None:
        """Answer for all of the run."""
        self.answer(outcome, len(self.effects), reason)


class TargetLane:
    """The effects that wait for one target, and the number of calls to it under way. ``failures`` in a row
    are counted. Until ``paused_until``, in monotonic seconds, it isn't called, for it has asked for a pause
    or hangs. It ``answers`` if it did so at the last call. ``took`` has how long effects waited for it,
    unless it is a queue's dead letters."""

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
        """The most calls that it may have under way."""
        return CALLS_AT_ONCE if self.answers else 1

    def failed(self, began: float, now: float) -> None:
        """Note a call that failed, and let the target rest if it is away."""
        self.answers = False
        self.failures += 1
        if self.failures >= AWAY_AFTER:
            self.paused_until = max(self.paused_until, now + min(now - began, REST_MAX_S))

    def first_of(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Return as many of the first of a key's effects as one call may hold."""
        return effects[: self.target.max_batch if self.target.ordered else 1]

    def next_call(self) -> list[WaitingRun]:
        """Take what goes into one call: whole runs, the first ones that wait."""
        runs, room = [self.waiting.popleft()], self.target.max_batch
        room -= len(runs[0].effects)
        while self.waiting and len(self.waiting[0].effects) <= room:
            runs.append(self.waiting.popleft())
            room -= len(runs[-1].effects)
        return runs


class Targets(NamedTuple):
    """The targets that take the effects of one node: the ``declared`` ones, by what handlers call them, and
    those at URLs. ``open_url`` opens these, or raises a HoldfastError."""

    declared: Mapping[str, Target]
    open_url: Callable[[str], Target] | None = None


NO_TARGETS = Targets({})


class Deliverer:
    """Hands over the effects of one node to its ``targets``. ``queues`` are those of the streams, or of the
    types of tasks, that send them: their dead letters get what is refused."""

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
        """The last error of each target that takes nothing at present, by name or URL."""

    def hand_over(self, queue: str, sender: str, effects: tuple[Effect, ...], answer: Answer) -> None:
        """Hand over the first of some effects of ``sender`` that have one target and key, as many as the
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
        raise ConfigError("it is not declared on this node")

    async def _not_opened(self, run: WaitingRun, name: str, error: HoldfastError) -> None:
        self._log.warning(
            "a target can't be opened", key=run.sender, target=redact(name), error=redact(str(error))
        )
        if _may_pass(error):
            self._note(name, str(error))
        _judge([run], error)

    async def _fail(self, run: WaitingRun, error: str) -> None:
        run.tell("failed", error)

    def _note_failure(self, name: str, error: Exception) -> None:
        self._log.error("a target fails", target=redact(name), error=redact(repr(error)))
        self._note(name, repr(error))

    def _note(self, name: str, error: str) -> None:
        """Note the last error of a target, or with "" that it takes effects."""
        self.errors.pop(name, None)
        if error:
            self.errors[name] = redact(error)
            if len(self.errors) > LANES_MAX:
                del self.errors[next(iter(self.errors))]

    def _begin_call(self, name: str, lane: TargetLane) -> None:
        if lane.calls < lane.calls_max:
            lane.calls += 1
            self._tasks.spawn(self._empty(name, lane))

    async def _empty(self, name: str, lane: TargetLane) -> None:
        """Call the target until nothing waits for it, or it has too many calls; what gathers meanwhile goes
        in the next call."""
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
            # Somebody else may have the sender by now, or the target has its pause.
            _tell(runs, "failed", self.errors.get(name, ""))
            return
        outgoing = [_outgoing(run.sender, effect) for run in runs for effect in run.effects]
        spans = self._begin_spans(name, outgoing)
        try:
            await await_user_code(lane.target.take, outgoing)
        except HoldfastError as error:
            _end_spans(spans, error)
            said = {"target": redact(name), "error": redact(str(error))}
            if isinstance(error, Busy):
                lane.paused_until = now + min(error.retry_after_s, PAUSE_MAX_S)
            if _may_pass(error):
                lane.failed(now, self._host.clock.monotonic())
                self._note(name, str(error))
                if lane.failures == AWAY_AFTER:
                    self._log.warning("a target takes nothing, and is tried again", **said)
                _judge(runs, error)
                return
            lane.answers = True
            if len(runs) > 1:
                for run in runs:
                    await self._call(name, lane, [run])
            elif len(runs[0].effects) > 1:  # the owner hands over what comes after the first one
                first = msgspec.structs.replace(runs[0], effects=runs[0].effects[:1])
                await self._call(name, lane, [first])
            else:
                self._log.warning("an effect was refused", key=runs[0].sender, **said)
                _judge(runs, error)
            return
        except Exception as error:  # noqa: BLE001 - a target of another package may raise anything
            _end_spans(spans, error)
            lane.failed(now, self._host.clock.monotonic())
            self._note_failure(name, error)
            _tell(runs, "failed", self.errors[name])
            return
        _end_spans(spans)
        if lane.failures >= AWAY_AFTER:
            self._log.info("a target takes effects again", target=redact(name))
        lane.failures = 0
        lane.answers = True
        self._note(name, "")
        letters = sum(bool(run.effects[0].refused) for run in runs)  # each is alone
        self._stats.effects += sum(len(run.effects) for run in runs) - letters
        self._stats.set_aside += letters
        if lane.took is not None:
            wall = self._host.clock.wall()
            for run in runs:
                for effect in run.effects:
                    lane.took.note(wall - effect.at)
        _tell(runs, "taken")

    def _begin_spans(self, name: str, outgoing: list[OutgoingEffect]) -> list[OpenSpan]:
        """Begin a span for each effect whose trace is recorded; it is passed on with the effect."""
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
    _tell(runs, "failed" if _may_pass(error) else "refused", redact(str(error)))


def _tell(runs: Sequence[WaitingRun], outcome: HandOverOutcome, reason: str = "") -> None:
    for run in runs:
        run.tell(outcome, reason)


def _may_pass(error: HoldfastError) -> bool:
    """Return whether the target may take the same effect later, perhaps once somebody has set it up."""
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
