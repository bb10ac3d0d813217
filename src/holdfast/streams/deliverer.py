"""Hands effects over to their targets, those of many streams in one call where the target allows that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.redaction import redact
from holdfast.errors import Busy, ConfigError, HoldfastError, OperationRefused, Retry
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.ports.target import OutgoingEffect, Target
from holdfast.streams.message import StreamMessage
from holdfast.streams.producer import StreamProducer
from holdfast.streams.rules.ledger import Effect
from holdfast.streams.rules.owner import HOPS
from holdfast.streams.spec import StreamSpec

HandOverOutcome = Literal["taken", "refused", "failed"]
Answer = Callable[[HandOverOutcome, str], None]

CALLS_AT_ONCE = 8
"""The most calls to one target under way at once."""


class WaitingEffect(msgspec.Struct, frozen=True):
    """An effect that waits for a call to its target."""

    stream: str
    key: str
    effect: Effect
    answer: Answer


LANES_MAX = 1000
"""With more lanes than this, those that are idle are dropped: handlers may make up URLs without end."""

PAUSE_MAX_S = 300.0
"""The longest time for which a target that asks for a pause isn't called."""


class TargetLane:
    """What waits for one target, and how many calls to it are under way. ``away``: its last call failed.
    Until ``paused_until``, in monotonic seconds, it isn't called, as it has asked."""

    __slots__ = ("away", "calls", "paused_until", "target", "waiting")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.waiting: list[WaitingEffect] = []
        self.calls = 0
        self.away = False
        self.paused_until = -math.inf


class Deliverer:
    """Hands over the effects of one node. ``targets`` are those that it knows by name, and ``open_url`` opens
    those at URLs; ``queues`` are those of the streams, whose dead letters get what is refused."""

    def __init__(
        self,
        host: Host,
        targets: Mapping[str, Target],
        queues: Mapping[str, Queue],
        open_url: Callable[[str], Target] | None = None,
    ) -> None:
        self._host = host
        self._open_url = open_url
        self._tasks, self._stats, self._log = host.tasks, host.stats, host.log
        letters = {
            f"letters of {name}": LettersTarget(name, queue, host.clock) for name, queue in queues.items()
        }
        self._targets: dict[str, Target] = {**targets, **letters}
        self._lanes: dict[str, TargetLane] = {}

    def hand_over(self, stream: str, key: str, effect: Effect, answer: Answer) -> None:
        """Hand over one effect of the full ``key``; ``answer`` is called with the outcome, and why it was
        refused."""
        name = f"letters of {stream}" if effect.refused else effect.target
        waiting = WaitingEffect(stream, key, effect, answer)
        try:
            lane = self._lane(name)
        except HoldfastError as error:
            self._tasks.spawn(self._not_opened(waiting, name, error))
            return
        if self._host.clock.monotonic() < lane.paused_until:
            self._tasks.spawn(self._fail(waiting))
            return
        lane.waiting.append(waiting)
        if lane.calls < CALLS_AT_ONCE:
            lane.calls += 1
            self._tasks.spawn(self._empty(name, lane))

    def _lane(self, name: str) -> TargetLane:
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._lanes = {each: lane for each, lane in self._lanes.items() if lane.calls}
            lane = self._lanes[name] = TargetLane(self._target(name))
        return lane

    def _target(self, name: str) -> Target:
        if name in self._targets:
            return self._targets[name]
        if "://" in name and self._open_url is not None:
            return self._open_url(name)
        raise ConfigError("it is not declared on this node")

    async def _not_opened(self, waiting: WaitingEffect, name: str, error: HoldfastError) -> None:
        self._log.warning(
            "a target can't be opened", key=waiting.key, target=redact(name), error=redact(str(error))
        )
        self._judge([waiting], error)

    async def _fail(self, waiting: WaitingEffect) -> None:
        waiting.answer("failed", "")

    async def _empty(self, name: str, lane: TargetLane) -> None:
        """Call the target until nothing waits for it; what gathers meanwhile goes in the next call."""
        try:
            while lane.waiting:
                batch = lane.waiting[: lane.target.max_batch]
                del lane.waiting[: len(batch)]
                await self._call(name, lane, batch)
        finally:
            lane.calls -= 1

    async def _call(self, name: str, lane: TargetLane, batch: Sequence[WaitingEffect]) -> None:
        now = self._host.clock.monotonic()
        if not self._host.membership.alive or now < lane.paused_until:
            # Somebody else may own the stream by now, or the target has its pause.
            self._tell(batch, "failed")
            return
        try:
            await lane.target.take([_outgoing(waiting) for waiting in batch])
        except HoldfastError as error:
            said = {"target": redact(name), "error": redact(str(error))}
            if isinstance(error, Busy):
                lane.paused_until = now + min(error.retry_after_s, PAUSE_MAX_S)
            if _may_pass(error):
                if not lane.away:
                    self._log.warning("a target takes nothing, and is tried again", **said)
                lane.away = True
            elif len(batch) > 1:
                for waiting in batch:
                    await self._call(name, lane, [waiting])
                return
            else:
                self._log.warning("an effect was refused", key=batch[0].key, **said)
            self._judge(batch, error)
            return
        except Exception as error:  # noqa: BLE001 - a target of another package may raise anything
            self._log.error("a target fails", target=redact(name), error=redact(repr(error)))
            self._tell(batch, "failed")
            return
        if lane.away:
            self._log.info("a target takes effects again", target=redact(name))
            lane.away = False
        letters = sum(bool(waiting.effect.refused) for waiting in batch)
        self._stats.effects += len(batch) - letters
        self._stats.set_aside += letters
        self._tell(batch, "taken")

    def _judge(self, batch: Sequence[WaitingEffect], error: HoldfastError) -> None:
        if _may_pass(error):
            self._tell(batch, "failed")
        else:
            self._tell(batch, "refused", redact(str(error)))

    def _tell(self, batch: Sequence[WaitingEffect], outcome: HandOverOutcome, reason: str = "") -> None:
        for waiting in batch:
            waiting.answer(outcome, reason)


class LettersTarget:
    """The dead letters of a stream, for effects that were refused and timers that were skipped."""

    def __init__(self, stream: str, queue: Queue, clock: Clock) -> None:
        self.max_batch = queue.max_batch
        self._stream = stream
        self._queue = queue
        self._clock = clock

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        await self._queue.bury([self._letter(effect) for effect in effects])

    def _letter(self, effect: OutgoingEffect) -> DeadLetter:
        sent_to = {"target": effect.target, "target_key": effect.key} if effect.target else {}
        return DeadLetter(
            effect.id,
            effect.body,
            effect.refused,
            sent_to,
            stream=self._stream,
            key=effect.sender.partition("/")[2],
            seq=effect.cause,
            at=self._clock.wall(),
        )


class StreamTarget:
    """A stream, which takes effects as messages in its queue. An effect's id is the message's."""

    def __init__(self, spec: StreamSpec, queue: Queue) -> None:
        self.max_batch = queue.max_batch
        self._producer = StreamProducer(spec.name, queue, spec)

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        await self._producer.send_outgoing([self._outgoing(effect) for effect in effects])

    def _outgoing(self, effect: OutgoingEffect) -> Outgoing:
        message = StreamMessage(effect.body, key=effect.key or None, message_id=effect.id)
        made = self._producer.outgoing(message)
        attributes = {**made.attributes, HOPS: str(effect.hops)}
        return msgspec.structs.replace(made, attributes=attributes, dedupe_id=effect.id)


def _may_pass(error: HoldfastError) -> bool:
    """Return whether the target may take the same effect later, perhaps once somebody has set it up."""
    return error.retry in (Retry.SAFE, Retry.SAME) or isinstance(error, ConfigError | OperationRefused)


def _outgoing(waiting: WaitingEffect) -> OutgoingEffect:
    effect = waiting.effect
    return OutgoingEffect(
        effect.id,
        effect.target,
        effect.key,
        effect.body,
        waiting.key,
        effect.cause,
        effect.hops,
        redact(effect.refused),
    )
