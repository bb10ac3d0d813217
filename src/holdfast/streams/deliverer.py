"""Hands effects over to their targets, those of many streams in one call where the target allows that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.redaction import redact
from holdfast.errors import ConfigError, HoldfastError, OperationRefused, Retry
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.ports.target import OutgoingEffect, Target
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


class TargetLane:
    """What waits for one target, and how many calls to it are under way."""

    __slots__ = ("calls", "target", "waiting")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.waiting: list[WaitingEffect] = []
        self.calls = 0


class Deliverer:
    """Hands over the effects of one node. ``targets`` are those that it knows by name; ``queues`` those of
    the streams, whose dead letters get what is refused."""

    def __init__(self, host: Host, targets: Mapping[str, Target], queues: Mapping[str, Queue]) -> None:
        self._host = host
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
        target = self._targets.get(name)
        if target is None:
            self._log.warning("a target is not declared on this node", key=key, target=redact(name))
            self._tasks.spawn(self._fail(answer))
            return
        lane = self._lanes.setdefault(name, TargetLane(target))
        lane.waiting.append(WaitingEffect(stream, key, effect, answer))
        if lane.calls < CALLS_AT_ONCE:
            lane.calls += 1
            self._tasks.spawn(self._empty(name, lane))

    async def _fail(self, answer: Answer) -> None:
        answer("failed", "")

    async def _empty(self, name: str, lane: TargetLane) -> None:
        """Call the target until nothing waits for it; what gathers meanwhile goes in the next call."""
        try:
            while lane.waiting:
                batch = lane.waiting[: lane.target.max_batch]
                del lane.waiting[: len(batch)]
                await self._call(name, lane.target, batch)
        finally:
            lane.calls -= 1

    async def _call(self, name: str, target: Target, batch: Sequence[WaitingEffect]) -> None:
        if not self._host.membership.alive:
            self._tell(batch, "failed")  # somebody else may own the stream by now
            return
        try:
            await target.take([_outgoing(waiting) for waiting in batch])
        except HoldfastError as error:
            if error.retry in (Retry.SAFE, Retry.SAME) or isinstance(error, ConfigError | OperationRefused):
                self._log.debug("a target takes nothing", target=redact(name), error=redact(str(error)))
                self._tell(batch, "failed")
            elif len(batch) > 1:
                for waiting in batch:
                    await self._call(name, target, [waiting])
            else:
                self._log.warning(
                    "an effect was refused", key=batch[0].key, target=redact(name), error=redact(str(error))
                )
                self._tell(batch, "refused", redact(str(error)))
            return
        self._stats.effects += len(batch)
        self._tell(batch, "taken")

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
        made = self._producer.outgoing_raw(effect.body, effect.key, effect.id)
        return msgspec.structs.replace(made, attributes={**made.attributes, HOPS: str(effect.hops)})


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
