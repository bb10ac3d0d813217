"""Hands over the effects of tasks that have ended.

They are stored with the outcome, in one write, and the message isn't deleted before all of them are taken. If
a target takes one later, the message goes back to its queue for a while, and its next receiver goes on. The
record notes what was taken, so that only the rest is sent again."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from holdfast.cluster.deliverer import Deliverer, HandOverOutcome
from holdfast.cluster.host import Host
from holdfast.common.acts import Effect, Send, decode_effects, encode_effects, hops_of
from holdfast.common.effects import EffectChanges, EffectLimits, EffectMaker, Effects
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import EffectsLeft, Task
from holdfast.tasks.calls import STORE, retry_unless_refused
from holdfast.tasks.held_tasks import HeldTask

WAIT_S = 1.0
"""If the next effect can't be handed over within this time, the message goes back to its queue."""

LIMITS = EffectLimits()


def effects_of(item: HeldTask, epoch: int, sends: tuple[Send, ...], wall: float) -> bytes:
    """Return the effects of a task that succeeds at ``epoch``, as its record holds them."""
    maker = EffectMaker(item.full_key, epoch, 0, wall)
    maker.add(sends, item.task_id, hops_of(item.held.attributes), item.held.traceparent)
    return encode_effects(maker.made)


class EffectSender:
    """Hands over the effects of a node's tasks."""

    def __init__(self, host: Host, store: TaskStore, deliverer: Deliverer) -> None:
        self._host = host
        self._clock = host.clock
        self._store = store
        self._deliverer = deliverer
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """From now on wait for no target that is away."""
        self._hurry.set()

    async def send(self, item: HeldTask, task: Task) -> float:
        """Hand over the pending effects of a task that has ended. Returns 0 once all are taken, or else after
        how many seconds to go on."""
        left, ahead_s = await self._by_the_store_s_clock(task)
        effects, news = Effects(LIMITS, left), asyncio.Event()
        while True:
            now = self._clock.monotonic()
            wall = now + ahead_s
            for run in effects.hand_over(now, wall):
                answer = partial(self._answered, effects, run[0].id, news, ahead_s)
                self._deliverer.hand_over(item.queue, f"{item.queue}/{item.task_id}", run, answer)
            next_at = effects.next_at(now, wall)
            if effects.is_out and not effects.has_refused:
                await news.wait()
            elif effects.has_refused:
                left = await self._note(task, left, effects)
            elif next_at is None or next_at > now + WAIT_S or self._hurry.is_set():
                break
            else:
                await self._clock.wait(self._hurry, next_at - now)
            news.clear()
        if effects.has_taken:
            await self._note(task, left, effects)
        if not effects.count:
            return 0.0
        now = self._clock.monotonic()
        return max(effects.rest_until(now, now + ahead_s) - now - ahead_s, WAIT_S)

    async def _by_the_store_s_clock(self, task: Task) -> tuple[tuple[Effect, ...], float]:
        """Return the pending effects, and how far the clock that dates them is ahead of this node's monotonic
        one. For a delay that is the store's clock: clocks of nodes may disagree, or be set meanwhile."""
        left = decode_effects(task.effects)
        if not any(effect.not_before for effect in left):
            return left, self._clock.wall() - self._clock.monotonic()
        now = await retry_unless_refused(self._host, STORE, self._store.now)
        dated = tuple(
            msgspec.structs.replace(
                each,
                at=task.ended_at,
                not_before=task.ended_at + each.not_before - each.at if each.not_before else 0.0,
            )
            for each in left
        )
        wall = self._clock.wall() if now is None else now
        return dated, wall - self._clock.monotonic()

    def _answered(
        self,
        effects: Effects,
        effect_id: str,
        news: asyncio.Event,
        ahead_s: float,
        outcome: HandOverOutcome,
        count: int,
        reason: str,
    ) -> None:
        now = self._clock.monotonic()
        if outcome == "taken":
            effects.taken(effect_id, count, now)
        elif outcome == "refused":
            effects.refused(effect_id, reason)
        else:
            effects.failed(effect_id, now, now + ahead_s, reason)
        news.set()

    async def _note(self, task: Task, left: tuple[Effect, ...], effects: Effects) -> tuple[Effect, ...]:
        """Store the effects that are still pending, and return them."""
        left = _without(left, effects.compose())
        change = EffectsLeft(task.task_id, task.epoch, encode_effects(left))
        await retry_unless_refused(self._host, STORE, lambda: self._store.handed_over([change]))
        effects.committed(())
        return left


def _without(effects: tuple[Effect, ...], changes: EffectChanges) -> tuple[Effect, ...]:
    """Return the pending effects; a refused one says why."""
    refused = {each.id: each.reason for each in changes.refused}
    return tuple(
        msgspec.structs.replace(each, refused=refused.get(each.id, each.refused))
        for each in effects
        if each.id not in changes.dropped
    )
