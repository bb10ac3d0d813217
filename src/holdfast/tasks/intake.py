"""Receives tasks from the queue of each type, as many as will begin soon."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.cluster.deliveries import REISSUE_VISIBILITIES, DeliveryTracker
from holdfast.cluster.host import Host
from holdfast.cluster.pump import Pump, Seen
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life, Place
from holdfast.errors import InvalidMessage
from holdfast.ports.queue import Delivery, Outgoing, Queue
from holdfast.rules.tasks.attempt import Stop
from holdfast.tasks.body import Body
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.held_tasks import HeldTask, HeldTasks
from holdfast.tasks.slots import TaskSlots
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import Envelope, SentTask, Unreadable, decode_task

AHEAD_S = 1.0
"""Seconds of work, at its recent rate, that a node receives ahead."""

MAKE_WAY_S = 1.0
"""Seconds between two checks whether tasks that can't begin fill the node."""

NEARLY_FULL = 0.9
"""The part of ``max_held`` above which tasks of limited groups make way for others."""

AWAY_S = 60.0
"""Mean seconds for which these are given back. Queues deliver the oldest first, so they would come back at
once."""


class TaskIntake:
    """Receives the tasks of an app, and holds them in ``held``. ``rate_of`` returns how many tasks of a type
    may begin per second on all nodes; 0: any number.

    Attributes:
        deliveries: extend and settle the deliveries of each queue.
        stopping: true once nothing more is received.
    """

    def __init__(
        self,
        host: Host,
        app: str,
        specs: Mapping[str, TaskSpec],
        held: HeldTasks,
        slots: TaskSlots,
        limiter: ConcurrencyLimiter,
        rate_of: Callable[[str], float],
    ) -> None:
        self._host = host
        self._app = app
        self._specs = specs
        self._queues = held.queues
        self._held = held
        self._slots = slots
        self._limiter = limiter
        self._rate_of = rate_of
        self.deliveries = {
            name: DeliveryTracker(
                name,
                queue,
                host,
                holding=self._holding,
                report=_no_report,
                may_reissue=_may_reissue,
                visibility_s=specs[name].visibility_s,
            )
            for name, queue in self._queues.items()
        }
        self.stopping = False
        self._pumps: list[Pump] = []
        self._pumping: list[asyncio.Task[Any]] = []
        self._begin_rate = 0.0

    def start(self) -> None:
        """Begin to receive."""
        host = self._host
        for name, queue in self._queues.items():
            self.deliveries[name].start()
            pump = Pump(
                name,
                queue,
                host,
                take=partial(self._take, name),
                room=partial(self._room_of, name),
                may=self._may_receive,
                hide_s=self._specs[name].visibility_s,
            )
            self._pumps.append(pump)
            task = host.tasks.repeat(pump.run, host.clock, host.log)
            if task is not None:
                self._pumping.append(task)

    async def stop(self) -> None:
        """Receive nothing more."""
        self.stopping = True
        for pump in self._pumps:
            pump.stopping = True
        for queue in self._queues.values():
            queue.wake()
        if self._pumping:
            await asyncio.wait(self._pumping)

    def run_here(self, queue: str, message: Outgoing) -> None:
        """Begin a task as soon as a slot is free, before all tasks that wait here. Its ``message`` is in the
        queue too, in case this node can't."""
        if not self.stopping:
            item = self._read(queue, Delivery("", message.key, message.body, message.attributes))
            item.here = True
            self._held.hold(item)

    async def measure(self) -> None:
        """Measure at what rate attempts begin."""
        while True:
            await self._host.clock.sleep(AHEAD_S / 4)
            begun, self._held.begun = self._held.begun, 0
            self._begin_rate += (begun * 4 / AHEAD_S - self._begin_rate) / 2

    async def make_way(self) -> None:
        """While the node is nearly full and slots are free, give back some tasks of limited groups. Nothing
        else could be received, of any type."""
        held = self._held
        while True:
            await self._host.clock.sleep(MAKE_WAY_S)
            max_held = self._host.limits.max_held
            in_slots = len(self._slots.running) + held.fetching + held.storing
            could_begin = in_slots + held.waiting.ready < self._host.limits.task_slots
            if len(held.by_id) >= NEARLY_FULL * max_held and could_begin and not self.stopping:
                removed = held.waiting.shed(math.ceil((1.0 - NEARLY_FULL) * max_held))
                held.give_back_some(removed, AWAY_S)

    # --- how many

    def _may_receive(self) -> bool:
        return self._host.membership.alive

    def _room(self) -> int:
        """Return how many more tasks to receive: as many as can begin now or within ``AHEAD_S``. Held tasks
        of limited groups don't count, or they would block the tasks behind them."""
        held = self._held
        ahead = self._slots.room - held.storing + round(self._begin_rate * AHEAD_S) - held.waiting.ready
        # A grant depends on the work that waits, so receive tasks for twice the present grant.
        to_ask_for = min(self._host.limits.task_slots, max(1, 2 * self._limiter.granted))
        ahead = max(ahead, to_ask_for - len(held.by_id))
        return min(ahead, self._host.limits.max_held - len(held.by_id))

    def _room_of(self, name: str) -> int:
        """Return how many more tasks of one type to receive. A node leaves tasks of a type with a rate to
        other nodes, if they can't begin soon."""
        room, rate = self._room(), self._rate_of(name)
        if not rate:
            return room
        return min(room, math.ceil(max(1.0, rate * 2 * AHEAD_S)) - self._held.waiting.waiting(name))

    def _holding(self, queue: str) -> list[tuple[str, Held]]:
        """Return the tasks whose deliveries must be extended. A hung attempt is ended by its slot."""
        return [
            (item.task_id, item.held)
            for item in self._held.by_id.values()
            if item.queue == queue and item.stopping is not Stop.LAPSED
        ]

    # --- one task

    def _take(self, queue: str, delivery: Delivery, receipt: Receipt, seen: Seen) -> None:
        item = self._read(queue, delivery)
        item.held.receipts.append(receipt)
        self._held.hold(item)

    def _read(self, queue: str, delivery: Delivery) -> HeldTask:
        spec = self._specs[queue]
        default = Envelope(
            app=self._app, task_id=delivery.attributes.get("id", delivery.id), task_type=spec.name
        )
        held = Held(Place(0, 0, default.task_id), delivery.body, delivery.attributes, [])
        held.receives = delivery.receives
        try:
            message = decode_task(delivery.body, default, text=spec.takes_text)
            refusal = ""
        except Unreadable as error:
            if error.envelope is None:
                raise
            message = SentTask(error.envelope, Body(b""), error.follow_ups, batch=error.batch)
            refusal = str(error)
        envelope = message.envelope
        if envelope.task_type not in self._specs and not refusal:
            known = ", ".join(sorted(self._specs))
            refusal = f"the app has no task type {envelope.task_type!r}; it has {known}"
        spec = self._specs.get(envelope.task_type, spec)
        if not envelope.group and not refusal and message.body.stored is None:
            try:
                group = spec.group_of(message.body)
                message = msgspec.structs.replace(
                    message, envelope=msgspec.structs.replace(envelope, group=group)
                )
            except InvalidMessage as error:
                refusal = str(error)
        held.place = Place(0, 0, envelope.task_id)
        return HeldTask(queue, spec, message, held, refusal, _hold_max_s(self._queues[queue], spec))


def _hold_max_s(queue: Queue, spec: TaskSpec) -> float:
    """Return for how many seconds a new delivery of a task may be held before it is reissued."""
    return queue.hold_max_s - min(REISSUE_VISIBILITIES * spec.visibility_s, queue.hold_max_s / 2)


def _may_reissue(held: Held) -> bool:
    return held.life is Life.WAITING


async def _no_report(receipts: list[Receipt], done: bool) -> None:
    """Do nothing: tasks aren't forwarded, so no other node waits for a report."""
