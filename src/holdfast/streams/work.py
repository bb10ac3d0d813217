"""Streams as a kind of work of a node: makes its queues, router, owners and slots, and starts and ends
them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.cluster.deliverer import NO_TARGETS, Deliverer, Targets
from holdfast.cluster.deliveries import DeliveryTracker, expire, free
from holdfast.cluster.host import Host
from holdfast.cluster.limits import Limits
from holdfast.cluster.pump import Pump
from holdfast.cluster.stats import Numbers
from holdfast.common.held import Held
from holdfast.errors import HoldfastError
from holdfast.ports.coordinator import Load
from holdfast.ports.queue import Delivery
from holdfast.ports.slots import StreamSlotMaker
from holdfast.rules.cluster.placement import STREAMS, WorkLoad
from holdfast.streams.archiver import Archiver
from holdfast.streams.due import DueStreams
from holdfast.streams.inquiries import StreamInquiries
from holdfast.streams.intake import Intake
from holdfast.streams.loads import ROLL_S, Loads
from holdfast.streams.metrics import StreamMetrics
from holdfast.streams.moves import Moves
from holdfast.streams.obstacles import Obstacles
from holdfast.streams.owners import OwnerRegistry, rules_of
from holdfast.streams.performers.backlogs import Backlogs
from holdfast.streams.performers.committing import Committer
from holdfast.streams.performers.loading import Loader
from holdfast.streams.performers.moving import Mover
from holdfast.streams.performers.opening import Opener
from holdfast.streams.performers.running import Runner
from holdfast.streams.quarantine import Quarantine
from holdfast.streams.queries import Queries
from holdfast.streams.reports import Reports
from holdfast.streams.requests import Requests
from holdfast.streams.reservations import Reservations
from holdfast.streams.router import Router
from holdfast.streams.slot_assignment import SlotAssignment
from holdfast.streams.slots import SlotHandle, SlotHandles
from holdfast.streams.spec import StreamSpec
from holdfast.streams.storage import StreamStorage
from holdfast.streams.waiting_streams import WaitingStreams

HIDE_SHARE = 3
"""A received message is first hidden for at least this fraction of the visibility (1/3), in which the
delivery tracker checks it several times."""


def first_hide_s(limits: Limits) -> float:
    """Return how long the queue hides a message that a node has just received: until the node has surely
    extended it, and no longer. If the node is paused with an open receive, the message is hidden in vain for
    this time."""
    return min(limits.visibility_s, max(2 * limits.ttl_s, limits.visibility_s / HIDE_SHARE))


class StreamWork:
    """The streams of one app on one node. ``models`` names the declared models, and ``targets`` take
    effects."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, StreamSpec],
        storage: StreamStorage,
        slots: StreamSlotMaker,
        *,
        models: Collection[str] = (),
        targets: Targets = NO_TARGETS,
    ) -> None:
        self._host = host
        self._specs = specs
        self._storage = storage
        self._queues = storage.queues
        self.reports = Reports(host)
        self._reservations = Reservations(host, self._queues, first_hide_s(host.limits))
        self.archivers = {
            name: Archiver(name, objects, host, on_change=partial(self._archive_changed, name))
            for name, objects in storage.archives.items()
        }
        self._deliveries = {name: self._track_deliveries(name) for name in self._queues}
        deliverer = Deliverer(host, targets, self._queues)
        self.loads = Loads(host.clock)
        self.quarantine = Quarantine(
            host.clock, max((spec.timeout_s for spec in specs.values()), default=0.0)
        )
        self.owners = self._make_owners()
        gaps = {name: spec.gap_timeout_s for name, spec in specs.items()}
        self.router = Router(host, self._queues, self.reports.report, self._reservations, gaps, self.owners)
        self.due = DueStreams(host, storage.state, self.router.placing)
        self.pool = SlotHandles(slots, host, on_death=self._slot_died)
        self.obstacles = Obstacles(specs, self.pool, host, on_change=self._obstacle_changed)
        self.assignment = SlotAssignment(
            self.owners, host, specs, models, storage.state, self.pool, self.obstacles
        )
        self.requests = Requests(host, storage.state, self.owners, self.obstacles)
        self.queries = Queries(
            host, specs, storage.state, self.pool, self.owners, self.obstacles, self.quarantine
        )
        self.moves = Moves(host, self.owners, self.assignment, self.loads)
        self.loader = Loader(
            self.owners,
            host,
            models,
            self.pool,
            self.assignment,
            self.obstacles,
            on_obstacle=self.moves.obstacle_changed,
        )
        self.moves.loader = self.loader
        self._make_performers(deliverer)
        self.waiting_streams = WaitingStreams(
            self.owners.with_messages, self.router.placing.unplaced, self._archive_error, host.clock, host.log
        )
        self.intake = Intake(host, self._queues, self.owners, self.router)
        self.inquiries = StreamInquiries(
            host,
            self.owners,
            self.pool,
            self.loads,
            self.obstacles,
            self.waiting_streams,
            self.archivers,
            deliverer,
            self.queries,
        )
        self._metrics = StreamMetrics(
            host,
            specs,
            models,
            self.owners,
            self.router.forwards,
            self.pool,
            self.obstacles,
            self.waiting_streams,
            self.archivers,
        )
        self.pumps = {name: self._make_pump(name) for name in self._queues}
        self._pumping: list[asyncio.Task[Any]] = []
        self._listen()

    # -- assembly ---------------------------------------------------------------------------------------

    def _track_deliveries(self, stream: str) -> DeliveryTracker:
        return DeliveryTracker(
            stream,
            self._queues[stream],
            self._host,
            holding=self._holding,
            report=self.reports.report,
            archive=self.archivers.get(stream),
        )

    def _make_owners(self) -> OwnerRegistry:
        rules = {
            name: rules_of(
                spec,
                self._host.limits,
                by_key=self._reservations.knows_keys(name),
                fifo=self._queues[name].fifo,
            )
            for name, spec in self._specs.items()
        }
        return OwnerRegistry(self._host, self._specs, rules, self._deliveries, self.quarantine)

    def _make_performers(self, deliverer: Deliverer) -> None:
        """Make the performers of the owners' commands, without the loader."""
        owners, host, storage = self.owners, self._host, self._storage
        Opener(owners, host, storage.state)
        Runner(
            owners,
            host,
            self._specs,
            storage,
            self.pool,
            self.assignment,
            self.loader,
            self.loads,
            self.quarantine,
        )
        Committer(owners, host, self._specs, storage.state, self._deliveries, deliverer, self.requests)
        Mover(owners, host, self.router, self.requests, self._reservations, self.assignment, self.loads)
        self.backlogs = Backlogs(
            owners, host, self._reservations, self.router.waiting, bring=self._bring, room=self._room
        )

    def _make_pump(self, stream: str) -> Pump:
        return Pump(
            stream,
            self._queues[stream],
            self._host,
            take=self.intake.taker(self._specs[stream]),
            room=partial(self._room, stream),
            is_crowded=partial(self.router.waiting.is_crowded, stream),
            may=self._may_receive,
            hide_s=first_hide_s(self._host.limits),
            reception=self._deliveries[stream].reception,
        )

    def _listen(self) -> None:
        news = self._host.news
        news.on_left.append(self._left)
        news.on_lost.append(self.owners.vanished)
        news.on_claim += [self.router.placing.claim_changed, self.owners.claim_changed]
        news.on_missed.append(self._missed)
        self.intake.listen()
        self.moves.listen()
        self.inquiries.listen()

    # -- the life of the node -----------------------------------------------------------------------------

    async def prepare(self) -> None:
        await self.pool.start()

    def begin(self, address: str) -> None:
        host = self._host
        self.router.start(address)
        self.owners.start()
        self._reservations.start()
        host.tasks.repeat(self._measure, host.clock, host.log)
        host.tasks.repeat(self.due.run, host.clock, host.log)
        for name, pump in self.pumps.items():
            self._deliveries[name].start()
            task = host.tasks.repeat(pump.run, host.clock, host.log)
            if task is not None:
                self._pumping.append(task)

    async def drain(self) -> None:
        for pump in self.pumps.values():
            pump.stopping = True
        for queue in self._queues.values():
            queue.wake()
        await self._within(self._end_pumps())
        await self._within(self.moves.move_all())
        self.owners.drop_all()
        for tracker in self._deliveries.values():
            await self._within(tracker.settled())
        await self._within(self.reports.flush())
        returned = await self.router.waiting.give_back_all()
        for name in self._queues:
            await self._within(self._reservations.all_back(name))
        self._host.log.info("drained", given_back=returned, left=len(self.owners))

    async def _within(self, work: Any) -> None:
        """Await ``work``, at most as long as a drain may take."""
        task = self._host.tasks.spawn(work)
        if task is not None:
            done = asyncio.Event()
            task.add_done_callback(lambda _: done.set())
            if not await self._host.clock.wait(done, self._host.limits.drain_timeout_s):
                task.cancel()

    async def _end_pumps(self) -> None:
        for task in self._pumping:
            await asyncio.wait((task,))

    async def close(self) -> None:
        await self.pool.close()

    async def maintain(self) -> None:
        """Delete results, dead letters and idle checkpoints that were kept long enough, by the store's
        clock."""
        limits, state = self._host.limits, self._storage.state
        try:
            now = await state.now("")
            await state.expire(now - limits.results_keep_s, now - limits.idle_keep_s)
        except HoldfastError as error:
            self._host.log.warning("cannot clean up", error=str(error))
            return
        await expire(self._queues.values(), now - limits.dead_keep_s, self._host.log)

    async def _measure(self) -> None:
        while True:
            await self._host.clock.sleep(ROLL_S)
            works = self.inquiries.works()
            self.loads.roll({work.of: work.for_s for work in works if work.message})
            self.waiting_streams.look()

    # -- messages ---------------------------------------------------------------------------------------

    async def _bring(self, stream: str, deliveries: Sequence[Delivery]) -> None:
        await self.pumps[stream].bring(deliveries)

    def _room(self, stream: str) -> int:
        if self.obstacles.of(stream) and not self.moves.others_for(stream):
            return 0  # messages that no node can run wait in the queue
        if self._deliveries[stream].is_full:
            return 0
        return self._host.limits.max_held - self.owners.held - self.router.forwards.kept

    def _may_receive(self) -> bool:
        return self._host.membership.stands

    def _holding(self, stream: str) -> list[tuple[str, Held]]:
        """Return the messages whose deliveries must be extended. A node without a membership extends nothing,
        because others may hold the messages by now. While the coordinator is silent, it extends what its
        owners may go on with, and nothing that waits for an owner."""
        membership = self._host.membership
        if not membership.stands:
            return []
        kept = self.owners.holding(stream, opened=not membership.alive)
        return [*kept, *self.router.holding(stream)] if membership.alive else list(kept)

    # -- news -------------------------------------------------------------------------------------------

    def _left(self, member: str) -> None:
        self.router.left(member)
        self._host.tasks.spawn(free(self._queues.values(), member, self._host.log))

    def _missed(self) -> None:
        self.router.placing.missed()
        self._host.tasks.spawn(self.owners.check_claims())

    def _slot_died(self, handle: SlotHandle) -> None:
        self.assignment.slot_died(handle)

    def _obstacle_changed(self, stream: str) -> None:
        if not self.obstacles.of(stream):
            self.loader.unblock(stream)
        self.moves.obstacle_changed(stream)

    def _archive_changed(self, stream: str) -> None:
        self.owners.archive_changed(stream)

    def _archive_error(self, stream: str) -> str:
        """Return the error of a stream's archive; "" without one."""
        archiver = self.archivers.get(stream)
        return archiver.error if archiver is not None else ""

    # -- reports ----------------------------------------------------------------------------------------

    def gauges(self, memory_mb: Mapping[str, int]) -> Iterable[tuple[str, str, float]]:
        """Yield what the node holds of streams: the name of each number, what it means, and the number.
        ``memory_mb`` is what each declared model takes."""
        return self._metrics.gauges(memory_mb)

    def numbers(self) -> Iterable[Numbers]:
        """Yield what the node counts and holds of streams, by names that the app declares."""
        return self._metrics.numbers()

    def load(self) -> Load:
        limits, streams = self._host.limits, len(self.owners)
        room = max(0, limits.streams_max - streams)
        models = self.pool.models
        warm = (name for name, spec in self._specs.items() if spec.models and models.keys() >= {*spec.models})
        return Load(
            streams,
            limits.slots,
            room,
            self._host.draining,
            busy=self.loads.busy,
            serves=tuple(sorted(self._specs)),
            warm=tuple(sorted(warm)),
            models=tuple(sorted(models)),
            queues=tuple(self._queues),
            lacks=tuple(sorted(self.obstacles.streams)),
            acting=tuple(sorted(self.owners.acting)),
            reads={name: spec.handler.version for name, spec in sorted(self._specs.items())},
            works=(
                WorkLoad(
                    STREAMS,
                    limits.slots,
                    self.loads.busy,
                    self._host.stats.handled,
                    tuple(sorted(self._queues)),
                ),
            ),
        )
