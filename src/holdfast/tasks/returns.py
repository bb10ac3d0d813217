"""Gives tasks back: an attempt without an outcome to the store, and a delivery to its queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.message import Life
from holdfast.common.progress import chunks
from holdfast.common.redaction import redact
from holdfast.errors import Fenced, HoldfastError
from holdfast.ports.queue import Outgoing, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.attempt import Stop
from holdfast.rules.tasks.task import ReturnAttempt
from holdfast.tasks.calls import STORE, retry_service
from holdfast.tasks.held_tasks import HeldTask, HeldTasks


class TaskReturns:
    """Gives back tasks of ``held``, each to the one of ``queues`` that delivered it.

    Attributes:
        host: the node's host.
        held: the tasks of the node.
        queues: those that have delivered them, by name.
        count: how many tasks were given back.
        pending: how many attempts the store is yet to be told of.
    """

    def __init__(self, host: Host, held: HeldTasks, queues: Mapping[str, Queue], store: TaskStore) -> None:
        self.host = host
        self.held = held
        self.queues = queues
        self._store = store
        self.count = 0
        self.pending = 0

    def hold(self, item: HeldTask) -> None:
        """Hold a task that was delivered, or give it back if it can't be held now."""
        if not self.held.add(item):
            self.give_back(item, self.host.limits.give_back_s)

    def return_attempt(
        self,
        item: HeldTask,
        *,
        spent: bool,
        delay_s: float | None,
        detail: str = "",
        pause_s: float = 0.0,
    ) -> None:
        """Return an attempt to the store, and then its delivery, which comes again after ``delay_s``. If that
        is None, there is none to give back. With ``pause_s``, the store lets no attempt begin before that."""
        assert item.attempt is not None
        wish = ReturnAttempt(item.task_id, item.attempt.epoch, spent, redact(detail), pause_s)
        item.end()
        self.pending += 1
        self.host.tasks.spawn(self._return_to_store(item, wish, delay_s))

    async def _return_to_store(self, item: HeldTask, wish: ReturnAttempt, delay_s: float | None) -> None:
        """Return the attempt to the store before the delivery to the queue, so that the next receiver may
        begin at once."""
        [answer] = await retry_service(self.host, STORE, lambda: self._store.give_back([wish]))
        if isinstance(answer, Fenced):
            self.host.stats.fenced += 1
        reissue = item.stopping is Stop.REISSUE or (item.here and not item.held.receipts)
        item.come_back()
        if delay_s is None:
            self.drop(item)
        elif reissue:
            await self.reissue(item, delay_s)
        else:
            self.give_back(item, delay_s)
        self.pending -= 1

    async def reissue(self, item: HeldTask, delay_s: float) -> None:
        """Reissue the task under its task id, then delete the delivery that can't be held any longer."""
        self.held.forget(item)  # the copy may arrive before its sending is answered
        queue = self.queues[item.queue]
        names = [receipt.receipt for receipt in item.held.receipts if not receipt.stale]
        delay_s, priority = min(delay_s, queue.delay_max_s), max(0, item.message.envelope.priority)
        copy = Outgoing(item.held.body, item.held.again, delay_s, item.task_id, priority=priority)
        await retry_service(self.host, "the queue", lambda: queue.send([copy]))
        self.host.stats.reissued += 1
        await retry_service(self.host, "the queue", lambda: queue.delete(names))

    def give_back(self, item: HeldTask, delay_s: float) -> None:
        """Give the task back to the queue, which delivers it to any node after ``delay_s``."""
        self.held.forget(item)
        item.held.come_back()
        self._come_again(item, delay_s)

    def rest(self, item: HeldTask, rest_s: float) -> None:
        """Give back the message of a task that has ended, until its effects can be handed over. If there is
        no delivery, its message is in the queue."""
        self.held.forget(item)
        self._come_again(item, min(rest_s, self.queues[item.queue].hold_max_s / 2))

    def give_back_later(self, item: HeldTask, seen: int) -> None:
        """Give back the deliveries of a task that has ended, but for the first ``seen``: they came after the
        store was asked for it. It may have been sent again since, and they must not be deleted."""
        if later := item.held.receipts[seen:]:
            del item.held.receipts[seen:]
            held = msgspec.structs.replace(item.held, receipts=later, life=Life.RECEIVED)
            self.give_back(msgspec.structs.replace(item, held=held), self.host.limits.give_back_s)

    def give_back_some(self, items: Sequence[HeldTask], away_s: float) -> None:
        """Give back tasks that waited, for about ``away_s``."""
        for item in items:
            self.held.forget(item)
            item.held.come_back()
            item.give_back()
        self.count += len(items)
        self.host.stats.given_back += len(items)
        for name, queue in self.queues.items():
            if some := [item for item in items if item.queue == name]:
                delay_s = min(away_s * (0.5 + self.host.clock.random()), queue.hold_max_s / 2)
                self.host.tasks.spawn(self._give_back_all(name, some, delay_s))

    async def give_back_waiting(self) -> int:
        """Give all waiting tasks back at once; return how many. A node that is cut off begins nothing, so it
        must not keep tasks that others could run."""
        waiting = self.held.waiting.drain()
        for item in waiting:
            self.held.forget(item)
        for name in self.queues:
            await self._give_back_all(name, [item for item in waiting if item.queue == name], 0.0)
        return len(waiting)

    def drop(self, item: HeldTask) -> None:
        """Forget a task whose deliveries have lapsed, or whose outcome was refused; its next delivery
        decides. A delivery that came meanwhile gives the right to try again."""
        self.held.forget(item)
        item.held.receipts = [
            receipt
            for receipt in item.held.receipts
            if not receipt.stale and receipt.expires_at > self.host.clock.monotonic()
        ]
        if item.held.receipts:
            item.come_back()
            self.hold(item)
        else:
            self.host.stats.tasks_lapsed += 1

    def _come_again(self, item: HeldTask, delay_s: float) -> None:
        item.give_back()
        self.count += 1
        self.host.stats.given_back += 1
        self.host.tasks.spawn(self._give_back_all(item.queue, [item], delay_s))

    async def _give_back_all(self, queue: str, items: Sequence[HeldTask], delay_s: float) -> None:
        names = [r.receipt for item in items for r in item.held.receipts if not r.stale]
        try:
            for some in chunks(names, self.queues[queue].max_batch):
                await self.queues[queue].give_back(some, delay_s)
        except HoldfastError as error:  # the queue shows them again when their visibility ends
            self.host.log.warning("could not give back", queue=queue, error=str(error))
