"""Tasks as a kind of work of a node.

A task goes from :mod:`~holdfast.tasks.intake` to :mod:`~holdfast.tasks.attempts`, then to
:mod:`~holdfast.tasks.completer`, or back to its queue by :mod:`~holdfast.tasks.held_tasks`. While it runs,
:mod:`~holdfast.tasks.beats` reports to the store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from holdfast.cluster.deliverer import NO_TARGETS, Deliverer, Targets
from holdfast.cluster.deliveries import expire, free
from holdfast.cluster.host import Host
from holdfast.cluster.stats import BUSY, SLOTS_MAX, Numbers
from holdfast.common.protocol import Done, LookAtTask, RunningTasks
from holdfast.common.redaction import redact
from holdfast.errors import HoldfastError
from holdfast.ports.coordinator import Load
from holdfast.ports.queue import Outgoing
from holdfast.ports.slots import TaskSlotMaker
from holdfast.rules.cluster.placement import TASKS, WorkLoad
from holdfast.rules.tasks.attempt import Stop
from holdfast.rules.tasks.fair_queue import Permits
from holdfast.tasks.attempts import TaskAttempts
from holdfast.tasks.beats import TaskBeats
from holdfast.tasks.completer import Completer
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.delayed import DelayedTasks
from holdfast.tasks.discovery import Announcer
from holdfast.tasks.held_tasks import HeldTasks, TaskActivity
from holdfast.tasks.intake import TaskIntake
from holdfast.tasks.names import event_queue, task_queue
from holdfast.tasks.periodic import Scheduler
from holdfast.tasks.producer import Producer, drop_old_events
from holdfast.tasks.schedule import ScheduleFollower
from holdfast.tasks.slots import TaskSlots
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.storage import TaskStorage

DRAIN_CHECK_S = 0.02
"""Seconds between two checks of a stopping node whether its attempts have ended."""


class TaskWork:
    """The tasks of one app on one node.

    ``task_slots`` and ``limiter`` bound how many tasks run at once. ``scheduler`` runs periodics,
    ``producer`` sends follow-ups, ``announcer`` writes this node's address to the registry, and ``targets``
    take effects.

    Attributes:
        held: the tasks that the node holds.
        slots: run their attempts.
    """

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, TaskSpec],
        storage: TaskStorage,
        slots: TaskSlotMaker,
        limiter: ConcurrencyLimiter,
        producer: Producer,
        *,
        scheduler: Scheduler | ScheduleFollower | None = None,
        announcer: Announcer | None = None,
        targets: Targets = NO_TARGETS,
    ) -> None:
        def rate_of(name: str) -> float:
            return limiter.limits.rates.get(name, specs[name].rate)

        self._host = host
        self._storage = storage
        self._limiter = limiter
        self._scheduler = scheduler
        self._announcer = announcer
        queues, store = storage.queues, storage.store
        self._delayed: DelayedTasks | None = None
        if any(queue.delay_max_s < math.inf for queue in queues.values()):
            self._delayed = DelayedTasks(host, store, producer)
        permits = Permits(rate_of)
        self.held = held = HeldTasks(host, specs, queues, store, permits)
        self.slots = TaskSlots(slots, host, limit=host.limits.task_slots)
        self._intake = TaskIntake(host, storage.app, specs, held, self.slots, limiter, rate_of)
        deliverer = Deliverer(host, targets, queues)
        self._completer = Completer(host, storage, self._intake.deliveries, producer, deliverer, held)
        self._attempts = TaskAttempts(
            host, specs, storage, held, self.slots, limiter, self._completer, permits, rate_of
        )
        self._beats = TaskBeats(host, specs, store, held, self.slots, limiter)
        limiter.holder = self._attempts
        host.news.on_left.append(self._left)
        host.news.on_lost.append(self._beats.membership_lost)
        host.inquiries.add(LookAtTask, self._look_at)
        host.inquiries.add(RunningTasks, self._list_running)

    async def prepare(self) -> None:
        await self.slots.start()

    def begin(self, address: str) -> None:
        host, intake = self._host, self._intake
        self._completer.start()
        self._limiter.start()
        loops = [
            self._attempts.run,
            self._beats.run,
            intake.measure,
            intake.make_way,
            self._attempts.rates.run,
        ]
        if self._delayed is not None:
            loops.append(self._delayed.run)
        if self._scheduler is not None:
            loops.append(self._scheduler.run)
        if self._announcer is not None:
            loops.append(partial(self._announcer.run, address))
        for loop in loops:
            host.tasks.repeat(loop, host.clock, host.log)
        intake.start()

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """Yield the name, the meaning and the value of each gauge."""
        yield "tasks_held", "Tasks in hand (limit: max_held).", len(self.held.by_id)
        yield "tasks_running", "Attempts that run (limit: task_slots).", len(self.slots.running)

    def numbers(self) -> Iterable[Numbers]:
        """Yield the gauges that have labels."""
        yield Numbers("gauge", "slots_busy", BUSY, "work", {TASKS: self.slots.busy})
        yield Numbers("gauge", "slots_max", SLOTS_MAX, "work", {TASKS: self._host.limits.task_slots})

    def run_here(self, queue: str, message: Outgoing) -> None:
        """See TaskIntake.run_here."""
        self._intake.run_here(queue, message)

    def cancel(self, task_id: str, why: str) -> bool:
        """See TaskBeats.cancel."""
        return self._beats.cancel(task_id, why)

    async def drain(self) -> None:
        """Begin nothing new, give back waiting tasks, and let running ones finish; after the time for that,
        end them."""
        self._attempts.stopping = True
        await self._intake.stop()
        given_back = await self.held.give_back_waiting()
        await self._run_out()
        await self._completer.settled()
        for tracker in self._intake.deliveries.values():
            await tracker.settled()
        await self._limiter.leave()
        if self._announcer is not None:
            await self._announcer.leave()
        self._host.log.info(
            "tasks drained", given_back=given_back + self.held.given_back, left=len(self.held.by_id)
        )

    async def _run_out(self) -> None:
        clock = self._host.clock
        until = clock.monotonic() + self._host.limits.drain_timeout_s
        has_stopped = False
        while (
            self.held.running()
            or self.held.returning
            or (self._attempts.starting and clock.monotonic() < until)  # the store may be away for longer
        ):
            if clock.monotonic() >= until and not has_stopped:
                has_stopped = True
                for item in self.held.running():
                    self._beats.stop(item, Stop.DRAIN)
            await clock.sleep(DRAIN_CHECK_S)

    async def close(self) -> None:
        await self.slots.close()

    def load(self) -> Load:
        busy, stats = float(len(self.slots.running)), self._host.stats
        ended = stats.tasks_succeeded + stats.tasks_failed + stats.tasks_timed_out
        queues = tuple(task_queue(self._storage.app, name) for name in self._storage.queues)
        return Load(
            slots=self._host.limits.task_slots,
            room=0,
            draining=self._host.draining,
            busy=busy,
            queues=(*queues, event_queue(self._storage.app)),
            works=(WorkLoad(TASKS, self._host.limits.task_slots, busy, ended, queues),),
        )

    async def maintain(self) -> None:
        """Delete tasks, dead letters and unread outcome events that were kept long enough, by the store's
        clock."""
        limits, log, storage = self._host.limits, self._host.log, self._storage
        try:
            now = await storage.store.now()
            await storage.store.expire(now - limits.results_keep_s)
        except HoldfastError as error:
            log.warning("cannot clean up", error=str(error))
            return
        await expire((*storage.queues.values(), storage.events), now - limits.dead_keep_s, log)
        before, member = now - limits.results_keep_s, self._host.membership.id
        try:
            dropped = await drop_old_events(storage.events, before, member)
        except HoldfastError as error:
            log.warning("cannot drop old outcome events", error=str(error))
            return
        if dropped:
            log.info("unread outcome events dropped", app=storage.app, events=dropped)

    # --- what other nodes ask

    async def _look_at(self, request: LookAtTask) -> Done:
        """Answer where a task is that runs here."""
        found = await self.slots.look(request.task_id)
        if found is None or found[1] == "":
            return Done(ok=False, text=f"task {request.task_id!r} doesn't run here, or not any more")
        run, stacks = found
        now = self._host.clock.monotonic()
        found_there = {
            "stacks": stacks,
            "ran_s": now - run.begun_at if run.begun_at is not None else 0.0,
            "quiet_s": now - run.advanced_at,
            "progress": run.progress.fraction or 0.0,
            "note": redact(run.progress.note),
            "numbers": run.progress.numbers,
        }
        return Done(text=msgspec.json.encode(found_there).decode())

    async def _list_running(self, request: RunningTasks) -> Done:
        """Answer which attempts run here, the oldest first."""
        now = self._host.clock.monotonic()
        found = [
            TaskActivity(task_id, item.type, item.group, now - run.begun_at, item.progress, redact(item.note))
            for task_id, run in self.slots.running.items()
            if run.begun_at is not None and (item := self.held.by_id.get(task_id)) is not None
        ]
        found.sort(key=lambda each: -each.runs_s)
        return Done(text=msgspec.json.encode(found[: request.most]).decode())

    def _left(self, member: str) -> None:
        """Free the deliveries of a dead node, if the queue can do that, so that its tasks may begin at
        once."""
        self._attempts.member_left(member)
        self._host.tasks.spawn(free(self._storage.queues.values(), member, self._host.log))
