"""Reports the attempts of a node to the store, and asks attempts to end that must not go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.cluster.deliveries import CHECKS_PER_VISIBILITY
from holdfast.cluster.host import Host
from holdfast.common.message import Life
from holdfast.common.redaction import redact
from holdfast.errors import Fenced, HoldfastError
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.attempt import Stop
from holdfast.rules.tasks.task import AttemptBeat
from holdfast.tasks.calls import STORE
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.held_tasks import HeldTask, HeldTasks
from holdfast.tasks.slots import TaskSlots
from holdfast.tasks.spec import TaskSpec

NEWS_S = 1.0
"""The shortest seconds between two beats of an attempt that makes progress."""

BEATS_A_LEASE = 3
"""The least number of beats in a lease."""

REST_S = 5.0
"""The longest seconds between two beats. The answer says whether the task is cancelled."""

GRANT_ENDS_S = 2.0
"""Seconds before the end of the node's grant at which its attempts are asked to end. They need the time."""


class TaskBeats:
    """Sends the beats of the attempts of ``held`` that run in ``slots``."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, TaskSpec],
        store: TaskStore,
        held: HeldTasks,
        slots: TaskSlots,
        limiter: ConcurrencyLimiter,
    ) -> None:
        self._host = host
        self._store = store
        self._held = held
        self._slots = slots
        self._limiter = limiter
        shortest_s = min(spec.visibility_s for spec in specs.values())
        self._pause_s = min(NEWS_S, shortest_s / CHECKS_PER_VISIBILITY)

    async def run(self) -> None:
        """Beat for ever. While this node is cut off, give back what waits."""
        while True:
            await self._host.clock.sleep(self._pause_s)
            if self._held.waiting and not self._host.membership.alive:
                self._host.tasks.spawn(self._held.give_back_waiting())
            await self._beat_once()

    def membership_lost(self) -> None:
        """Send beats once this node has joined again, so that the store knows all attempts by the new
        membership. Attempts of the old one are taken over without waiting until they lapse."""
        self._host.tasks.spawn(self._beat_as_new_member())

    def stop(self, item: HeldTask, why: Stop, cancel: str = "") -> None:
        """Ask an attempt to end. ``cancel`` is why its task is cancelled, if it is."""
        if item.stopping and why is not Stop.LAPSED:
            return
        reason = cancel or why.value
        self._host.log.warning("attempt stopped", task_id=item.task_id, type=item.type, reason=reason)
        item.stopping, item.cancel = why, cancel
        self._slots.cancel(item.task_id, reason)

    def cancel(self, task_id: str, why: str) -> bool:
        """Cancel a task that runs here now; return False if it doesn't run here."""
        item = self._held.by_id.get(task_id)
        if item is None or item.held.life is not Life.RUNNING:
            return False
        self.stop(item, Stop.CANCELLED, why)
        return True

    async def _beat_once(self) -> None:
        now = self._host.clock.monotonic()
        running = self._held.running()
        for item in running:
            if item.lapsed(now):
                self.stop(item, Stop.LAPSED)
            elif now >= self._limiter.until - GRANT_ENDS_S:
                self.stop(item, Stop.GRANT_ENDS)
            elif item.spec.resumable and item.holdable_s(now) <= 0:
                self.stop(item, Stop.REISSUE)
        member = self._host.membership.id
        await self._beat([item for item in running if _is_due(item, member, now)], now)

    async def _beat_as_new_member(self) -> None:
        await self._host.membership.joined.wait()
        await self._beat(self._held.running(), self._host.clock.monotonic())

    async def _beat(self, due: Sequence[HeldTask], now: float) -> None:
        member = self._host.membership.id
        beats = [
            AttemptBeat(
                item.task_id,
                item.attempt.epoch,
                item.visibility_s,
                item.progress,
                redact(item.note),
                member if item.attempt.member != member else "",
            )
            for item in due
            if item.attempt is not None
        ]
        if not beats:
            return
        try:
            answers = await self._store.beat(beats)
        except (HoldfastError, OSError) as error:
            self._host.log.warning("service does not answer", service=STORE, error=str(error))
            return  # the next round tries again
        for item, beat, answer in zip(due, beats, answers, strict=True):
            if item.attempt is None or item.attempt.epoch != beat.epoch or item.ending:
                continue  # it ended meanwhile, for which a beat is refused too
            if isinstance(answer, Fenced):
                self.stop(item, Stop.LAPSED)
                continue
            item.attempt, item.beat_at = answer, now
            item.news = False
            self._slots.renew(item.task_id, item.visibility_s)
            if answer.cancel:
                self.stop(item, Stop.CANCELLED, answer.cancel)


def _is_due(item: HeldTask, member: str, now: float) -> bool:
    since_s = now - item.beat_at
    has_news = item.news or (item.attempt is not None and item.attempt.member != member)
    return since_s >= min(NEWS_S if has_news else REST_S, item.visibility_s / BEATS_A_LEASE)
