"""Streams as a kind of work of a node: its queues, router, owners and slots."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from holdfast.cluster.deliverer import NO_TARGETS, Deliverer, Targets
from holdfast.cluster.host import Host
from holdfast.cluster.keeper import Keeper, expire, free
from holdfast.cluster.limits import Limits
from holdfast.cluster.pump import Pump, Seen
from holdfast.cluster.stats import BUSY, SLOTS_MAX, Numbers
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Place
from holdfast.common.protocol import (
    Answers,
    Busiest,
    Done,
    Explain,
    Forward,
    Move,
    Nudge,
    Parcel,
    ParcelAnswer,
    Poke,
    Query,
    QueryReply,
    SettleReport,
    Shed,
    Waiting,
    Warm,
)
from holdfast.common.redaction import redact
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.queue import Delivery
from holdfast.ports.slots import StreamSlotMaker
from holdfast.rules.cluster.balance import StreamLoad, pick
from holdfast.rules.cluster.placement import STREAMS, WorkLoad, acting_streams, spread
from holdfast.rules.streams.owner import MovedFrom
from holdfast.rules.streams.sequencer import Carried
from holdfast.streams.addressing import address
from holdfast.streams.archiver import Archiver
from holdfast.streams.asking import fault_of
from holdfast.streams.due import DueStreams
from holdfast.streams.loads import FIGURES, ROLL_S, StreamActivity
from holdfast.streams.owners import Owned, Owners
from holdfast.streams.queries import Queries
from holdfast.streams.reports import Reports
from holdfast.streams.requests import Requests
from holdfast.streams.reservations import Reservations
from holdfast.streams.router import Router
from holdfast.streams.slots import Seats, SlotWork
from holdfast.streams.spec import QUEUE_NUMBER, StreamSpec
from holdfast.streams.standstills import COMMIT_S, Standstills
from holdfast.streams.storage import StreamStorage

MOVES_A_SHED = 32
"""The most streams that a node moves away for one request to shed load."""

LOAD_COST = 8.0
"""The added cost of a move after which the new owner must load models."""

STATE_BYTES_A_COST = 1 << 20
"""How many bytes of state cost as much to send as the move itself."""

MOVE_AGAIN = Backoff(0.01, 1.0)
"""The pauses between rounds of moves. They grow while no node takes a stream."""

MOVES_AT_ONCE = 8
"""How many streams a draining node moves at once."""


LAG_TOLD_S = 1.0
"""A stream is behind if its node has had a message of it for so long."""

UNDECLARED = "(undeclared)"
"""The label of models that the app doesn't declare."""

HIDE_SHARE = 3
"""A received message is first hidden for at least this fraction of the visibility (1/3), in which the keeper
checks it several times."""


def first_hide_s(limits: Limits) -> float:
    """Return how long the queue hides a message that a node has just received: until the node has surely
    extended it, and no longer. If the node is paused with an open receive, the message is hidden in vain for
    this time."""
    return min(limits.visibility_s, max(2 * limits.ttl_s, limits.visibility_s / HIDE_SHARE))


class StreamWork:
    """The streams of one app on one node. ``models`` are those that the app declares, and ``targets`` take
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
        self._models = models
        self._queues, self._state = storage.queues, storage.state
        self.reports = Reports(host)
        self._reservations = Reservations(host, self._queues, first_hide_s(host.limits))
        gaps = {name: spec.gap_timeout_s for name, spec in specs.items()}
        self.router = Router(host, self._queues, self.reports.tell, self._reservations, gaps)
        self.archivers = {
            name: Archiver(name, objects, host, on_change=partial(self._archive_changed, name))
            for name, objects in storage.archives.items()
        }
        self._keepers = {
            name: Keeper(
                name,
                queue,
                host,
                holding=self._holding,
                report=self.reports.tell,
                archive=self.archivers.get(name),
            )
            for name, queue in self._queues.items()
        }
        self.deliverer = Deliverer(host, targets, self._queues)
        self.due = DueStreams(host, self._state, self.router)
        self.pool = Seats(slots, host, on_death=self._slot_died)
        self.owners = Owners(
            host,
            specs,
            models,
            storage,
            self.pool,
            self._keepers,
            self.router,
            self._reservations,
            self.deliverer,
            on_obstacle=self._obstacle_changed,
        )
        self.requests = Requests(host, self._state, self.owners)
        self.queries = Queries(host, specs, self._state, self.pool, self.owners)
        self.router.owners, self.owners.requests = self.owners, self.requests
        self.owners.bring, self.owners.room = self._bring, self._room
        self._going: set[str] = set()
        self._going_room = asyncio.Semaphore(MOVES_AT_ONCE)
        self.standstills = Standstills(
            self.owners.with_messages, self.router.unplaced, self._archive_error, host.clock, host.log
        )
        self.pumps = {
            name: Pump(
                name,
                queue,
                host,
                take=self._taker(specs[name]),
                room=partial(self._room, name),
                is_crowded=partial(self.router.is_crowded, name),
                may=self._may_receive,
                hide_s=first_hide_s(host.limits),
                reception=self._keepers[name].reception,
            )
            for name, queue in self._queues.items()
        }
        self._pumping: list[asyncio.Task[Any]] = []
        self._listen()

    def _listen(self) -> None:
        news, inquiries = self._host.news, self._host.inquiries
        news.on_left.append(self._left)
        news.on_lost.append(self.owners.vanished)
        news.on_claim += [self.router.claim_changed, self.owners.claim_changed]
        news.on_missed.append(self._missed)
        inquiries.add(Forward, self._accept)
        # Custody outlives a membership, and reports on it name the membership that took it.
        inquiries.add(SettleReport, self._reported, outlives_membership=True)
        inquiries.add(Warm, self._warm)
        inquiries.add(Poke, self._poke)
        inquiries.add(Nudge, self._nudge)
        inquiries.add(Shed, self._shed)
        inquiries.add(Explain, self._explain)
        inquiries.add(Waiting, self._tell_waiting)
        inquiries.add(Busiest, self._tell_busiest)
        inquiries.add(Move, self._move)
        inquiries.add(Query, self._query)

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
            self._keepers[name].start()
            task = host.tasks.repeat(pump.run, host.clock, host.log)
            if task is not None:
                self._pumping.append(task)

    def _taker(self, spec: StreamSpec) -> Any:
        max_bytes = self._queues[spec.name].max_bytes
        linked = self._queues[spec.name].fifo and spec.seq == QUEUE_NUMBER

        def take(delivery: Delivery, receipt: Receipt, seen: Seen) -> None:
            if len(delivery.body) > max_bytes:
                raise InvalidMessage(
                    f"the body has {len(delivery.body)} bytes, over max_message_bytes = {max_bytes};"
                    " raise that on every node, or put what is large into the object store"
                )
            key, place = address(spec, delivery.body, delivery.attributes, delivery.id, delivery.number)
            held = Held(
                place, delivery.body, delivery.attributes, [receipt], delivery.receives, turn=delivery.turn
            )
            if linked:
                before = seen.setdefault(key, {})
                # One of a later run comes after this one, whatever its number is.
                held.after = max((seq for run, seq in before.items() if run <= place.run), default=None)
                before[place.run] = place.seq
            self.router.dispatch(spec.name, spec.full_key(key), held)

        return take

    async def _bring(self, stream: str, deliveries: Sequence[Delivery]) -> None:
        await self.pumps[stream].bring(deliveries)

    def _room(self, stream: str) -> int:
        if self.owners.obstacles.of(stream) and not self._others_for(stream):
            return 0  # messages that no node can run wait in the queue
        if self._keepers[stream].is_full:
            return 0
        return self._host.limits.max_held - self.owners.held - self.router.kept

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

    def _slot_died(self, seat: Any) -> None:
        self.owners.slot_died(seat)

    def _archive_changed(self, stream: str) -> None:
        self.owners.archive_changed(stream)

    def _archive_error(self, stream: str) -> str:
        """Return why the archive of a stream takes nothing; "" if it does, or if there is none."""
        archiver = self.archivers.get(stream)
        return archiver.error if archiver is not None else ""

    def gauges(self, memory_mb: Mapping[str, int]) -> Iterable[tuple[str, str, float]]:
        """Yield what the node holds of streams: the name of each number, what it means, and the number.
        ``memory_mb`` is what each declared model takes."""
        owned = list(self.owners)
        yield (
            "held",
            "Messages in inboxes (limit: inbox_limit a stream, max_held).",
            sum(o.owner.waiting for o in owned),
        )
        yield (
            "custody",
            "Messages in custody for other owners (limits: custody_limit, max_held).",
            self.router.custody,
        )
        yield (
            "model_memory_mb",
            "Memory of the models loaded in all slots, as declared (limit: model_memory_mb a slot).",
            sum(memory_mb[name] * count for name, count in self.pool.models.items()),
        )
        yield (
            "streams_without_models",
            "Declared streams that can't run here, for a model of theirs doesn't load.",
            len(self.owners.obstacles.streams),
        )
        yield (
            "archive_waiting",
            "Committed messages that wait for their archive (limit: half of max_held a stream).",
            sum(archiver.waiting for archiver in self.archivers.values()),
        )
        yield (
            "parked_streams",
            "Owned streams that are parked (the console lists those without an owner too).",
            sum(bool(o.owner.parked) for o in owned),
        )
        pending = [effects for o in owned if (effects := o.owner.pending_effects) is not None]
        yield (
            "pending_effects",
            "Effects of owned streams that no target has taken yet (limit: max_pending_effects a stream).",
            sum(effects.count for effects in pending),
        )
        now = self._host.clock.wall()
        yield (
            "pending_effects_seconds",
            "How long ago the oldest of these was committed; 0 if there is none.",
            max((max(0.0, now - effects.oldest_at) for effects in pending), default=0.0),
        )

    def numbers(self) -> Iterable[Numbers]:
        """Yield what the node counts and holds of streams, by names that the app declares."""
        pool = self.pool
        yield Numbers(
            "gauge",
            "oldest_message_seconds",
            "How long ago the oldest message was received that the node holds for a stream that it owns; 0 if"
            " it holds none.",
            "stream",
            self._oldest_s(),
        )
        yield Numbers(
            "gauge",
            "longest_wait_seconds",
            "For how long the stream has waited that waits longest, by what for; 0 if none does.",
            "reason",
            self.standstills.longest(),
        )
        yield Numbers("gauge", "slots_busy", BUSY, "work", {STREAMS: pool.busy})
        yield Numbers("gauge", "slots_max", SLOTS_MAX, "work", {STREAMS: self._host.limits.slots})
        yield Numbers(
            "gauge",
            "models_loaded",
            "Slots in which the model is loaded.",
            "model",
            self._by_model(pool.models),
        )
        yield Numbers(
            "counter", "model_loads", "Loads of models in slots.", "model", self._by_model(pool.model_loads)
        )
        yield Numbers(
            "counter",
            "model_load_failures",
            "Loads that failed, hung or ended their slot.",
            "model",
            self._by_model(pool.model_failures),
        )

    def _oldest_s(self) -> dict[str, float]:
        now, oldest_s = self._host.clock.monotonic(), dict.fromkeys(self._specs, 0.0)
        for entry in self.owners.with_messages():
            name = entry.spec.name
            oldest_s[name] = max(oldest_s[name], _oldest_s(entry, now))
        return oldest_s

    def _by_model(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Return counts by declared model. Handlers may ask for others under any name: these count
        together."""
        found = dict.fromkeys(self._models, 0.0)
        for name, count in counts.items():
            label = name if name in self._models else UNDECLARED
            found[label] = found.get(label, 0.0) + count
        return found

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
            busy=self.owners.loads.busy,
            serves=tuple(sorted(self._specs)),
            warm=tuple(sorted(warm)),
            models=tuple(sorted(models)),
            queues=tuple(self._queues),
            lacks=tuple(sorted(self.owners.obstacles.streams)),
            acting=tuple(sorted(self.owners.acting)),
            reads={name: spec.handler.version for name, spec in sorted(self._specs.items())},
            works=(
                WorkLoad(
                    STREAMS,
                    limits.slots,
                    self.owners.loads.busy,
                    self._host.stats.handled,
                    tuple(sorted(self._queues)),
                ),
            ),
        )

    def _left(self, member: str) -> None:
        self.router.left(member)
        self._host.tasks.spawn(free(self._queues.values(), member, self._host.log))

    def _missed(self) -> None:
        self.router.missed()
        self._host.tasks.spawn(self.owners.check_claims())

    # -- peers ------------------------------------------------------------------------------------------

    async def _reported(self, report: SettleReport) -> Done:
        self.router.reported(report)
        return Done()

    async def _poke(self, request: Poke) -> Done:
        self.owners.poke(request.key)
        return Done()

    async def _nudge(self, request: Nudge) -> Done:
        if self.owners.get(request.key) is None:
            await self._adopt_claimed(request.stream, request.key)
        return Done(self.owners.nudge(request.key))

    async def _move(self, request: Move) -> Done:
        obstacle = await self.move(request.key, request.target)
        return Done(obstacle == "", obstacle)

    async def _query(self, request: Query) -> QueryReply:
        try:
            answered = await self.queries.answer(
                request.stream, request.key, request.request, request.timeout_s
            )
        except HoldfastError as error:
            return QueryReply(fault=fault_of(error), error=str(error))
        return QueryReply(answered.body, answered.epoch, answered.number)

    async def _accept(self, forward: Forward) -> Answers:
        """Take parcels for streams that this node owns, or whose claim it finds to be its own."""
        strangers = {
            parcel.key: parcel.stream for parcel in forward.parcels if not self.owners.get(parcel.key)
        }
        await asyncio.gather(*(self._adopt_claimed(stream, key) for key, stream in strangers.items()))
        now = self._host.clock.monotonic()
        return Answers([self._offer(parcel, forward, now) for parcel in forward.parcels])

    async def _adopt_claimed(self, stream: str, key: str) -> None:
        try:
            claim = await self._host.coordinator.lookup(key)
        except HoldfastError as error:
            self._host.log.debug("could not look up a claim", key=key, error=str(error))
            return
        if claim is not None and claim.member == self._host.membership.id:
            self.owners.adopt(stream, key, claim)

    def _offer(self, parcel: Parcel, forward: Forward, now: float) -> ParcelAnswer:
        receipt = Receipt(
            parcel.receipt,
            now + parcel.expires_in_s,
            received_at=now - parcel.age_s,
            sender=forward.sender,
            number=parcel.number,
            reply_to=forward.reply_to,
        )
        place = Place(int(parcel.run), int(parcel.seq), parcel.id)
        after = None if parcel.after is None else int(parcel.after)
        held = Held(
            place,
            parcel.body,
            parcel.attributes,
            [receipt],
            parcel.receives,
            after,
            counted=parcel.counted,
            turn=None if parcel.turn is None else int(parcel.turn),
        )
        verdict = self.owners.offer(parcel.key, held)
        if verdict == "accepted":
            self._host.stats.accepted += 1
            return ParcelAnswer(parcel.number, verdict, held_back=self.owners.is_gapped(parcel.key))
        if verdict == "full":
            return ParcelAnswer(
                parcel.number,
                verdict,
                held_back=self.owners.waits_for_gap(parcel.key),
                reserved=self.owners.is_reserved(parcel.key),
            )
        hint = self.router.hint(parcel.key)
        return ParcelAnswer(parcel.number, "no", hint.member, hint.epoch)

    # -- moves ------------------------------------------------------------------------------------------

    async def _warm(self, request: Warm) -> Done:
        if self._host.draining:
            return Done(ok=False, text="this node is draining")
        since = self._host.clock.monotonic() - request.waited_s
        carried = Carried(request.missing, since) if request.missing else None
        brings = MovedFrom(request.deep, carried)
        obstacle = await self.owners.warm(request.stream, request.key, brings)
        return Done(obstacle == "", obstacle, reserves=True)

    async def move(self, key: str, target: str) -> str:
        """Move an owned stream to the membership ``target``, which warms up before this node stops. Returns
        why the move failed, or ""."""
        entry = self.owners.get(key)
        member = self._host.membership.view.get(target)
        if entry is None or member is None or member.foreign or target == self._host.membership.id:
            return f"{key} is not owned here, or {target} is no other living node"
        deep, waited = entry.owner.leaves_behind(self._host.clock.monotonic())
        missing, waited_s = waited or ("", 0.0)
        warm = Warm(target, entry.spec.name, key, deep, missing, max(0.0, waited_s))
        limits = self._host.limits
        timeout_s = limits.move_timeout_s + limits.model_timeout_s * len(entry.spec.models)
        try:
            reply = await self._host.peer.call(member.address, warm, timeout_s)
        except (Unavailable, OutcomeUnknown) as error:
            return str(error)
        if isinstance(reply, Done) and not reply.ok:
            return reply.text
        if not self._host.membership.alive and not self._host.draining:
            return "the coordinator is silent: nobody can be told that the stream moves"
        knows_deep = deep and isinstance(reply, Done) and reply.reserves
        return (
            ""
            if self.owners.move(key, target, knows_deep=knows_deep)
            else f"{key} is just being opened or released"
        )

    def _others_for(self, stream: str) -> list[Member]:
        """Return the other members that can own streams of that name."""
        me, acting = self._host.membership.id, self._acting()
        view = self._host.membership.view
        return [
            member
            for member in view.values()
            if member.id != me and not member.foreign and member.load.takes(f"{stream}/", acting)
        ]

    def _acting(self) -> set[str]:
        """Return the names of the streams that send effects or set timers, as far as this node knows."""
        return acting_streams(self._host.membership.view.values()) | self.owners.acting

    def _obstacle_changed(self, stream: str) -> None:
        """Report a changed obstacle to the others at once, and move streams that can't run here to a node
        that can."""
        self._host.membership.renew_now.set()
        if not self._host.draining:
            keys = _state_versions(self.owners.obstructed(stream))
            for key, to in spread(keys, self._others_for(stream)).items():
                if key in self._going:
                    continue
                self._going.add(key)
                self._host.tasks.spawn(self._bring_away(key, to))

    async def _bring_away(self, key: str, to: Member) -> None:
        try:
            await self._move_one(self._going_room, key, to)
        finally:
            self._going.discard(key)

    async def _measure(self) -> None:
        while True:
            await self._host.clock.sleep(ROLL_S)
            self.owners.loads.roll({work.of: work.for_s for work in self._works() if work.message})
            self.standstills.look()

    async def _shed(self, shed: Shed) -> Done:
        """Move streams that make up the requested load, and answer how many. Streams that moved here lately
        stay, and those that wait for a missing message."""
        rested = self._host.clock.monotonic() - self._host.limits.rest_s
        target, acting = self._host.membership.view.get(shed.target), self._acting()
        streams = [
            StreamLoad(entry.key, self.owners.loads.of(entry.key), _cost(entry, target))
            for entry in self.owners
            if entry.since <= rested
            and not entry.owner.leaving
            and not entry.owner.waits_for_gap
            and _may_go(entry, target, acting)
        ]
        picked = pick(streams, shed.amount, MOVES_A_SHED)
        moved = 0
        for start in range(0, len(picked), MOVES_AT_ONCE):
            some = picked[start : start + MOVES_AT_ONCE]
            obstacles = await asyncio.gather(*(self.move(stream.key, shed.target) for stream in some))
            moved += obstacles.count("")
        return Done(moved > 0, str(moved))

    async def _explain(self, request: Explain) -> Done:
        """Answer why a stream is here and where it may go."""
        key = request.key
        entry = self.owners.get(key)
        if entry is None:
            return Done(ok=False, text=f"{key} is not owned here")
        here_s = self._host.clock.monotonic() - entry.since
        told = {
            "busy": self.owners.loads.of(key),
            "here_s": here_s,
            "rests_s": max(0.0, self._host.limits.rest_s - here_s),
            "phase": entry.owner.phase.value,
            "waits": self.standstills.of(entry),
            "runs": next((work for work in self._works() if work.of == key and work.message), None),
            "archive": self._archive_error(entry.spec.name),
            "parked": entry.owner.parked,
            "state_bytes": len(entry.owner.state or b""),
        }
        return Done(text=msgspec.json.encode(told).decode())

    async def _tell_waiting(self, request: Waiting) -> Done:
        """Answer which owned streams wait, and for what, which are behind, which can't run here, and which
        have pending effects, those with the oldest first."""
        lacks = {name: known.reason for name, known in self.owners.obstacles.streams.items()}
        now = self._host.clock.wall()
        pending = [
            (now - effects.oldest_at, entry.key, effects)
            for entry in self.owners
            if (effects := entry.owner.pending_effects) is not None
        ]
        pending.sort(key=lambda each: -each[0])
        unsent = [
            {
                "key": key,
                "count": report.count,
                "oldest_s": max(0.0, age_s),
                "target": redact(report.target),
                "failures": report.failures,
                "error": report.error,
            }
            for age_s, key, report in pending[: request.most]
        ]
        lags = [
            {"key": entry.key, "lag_s": lag_s, "messages": entry.owner.waiting}
            for entry in self.owners.with_messages()
            if (lag_s := _oldest_s(entry, self._host.clock.monotonic())) >= LAG_TOLD_S
        ]
        told = {
            "lacks": lacks,
            "works": [work for work in self._works() if work.for_s >= COMMIT_S][: request.most],
            "archives": {
                name: f"{archiver.waiting} committed messages wait for it: {archiver.error}"
                for name, archiver in self.archivers.items()
                if archiver.error
            },
            "waits": self.standstills.all()[: request.most],
            "effects": unsent,
            "targets": {redact(name): error for name, error in self.deliverer.errors.items()},
            "lags": nlargest(request.most, lags, key=itemgetter("lag_s")),
            "took": self._host.timings.delivery_seconds.total(),
        }
        return Done(text=msgspec.json.encode(told).decode())

    def _works(self) -> list[SlotWork]:
        """Return what the slots work at, with the messages of streams."""
        works = self.pool.works()
        for work in works:
            if (entry := self.owners.get(work.of)) is not None:
                work.message = entry.owner.running
        return works

    async def _tell_busiest(self, request: Busiest) -> Done:
        """Answer which streams have most to do, of those that have anything."""
        if request.by not in FIGURES:
            return Done(ok=False, text=f"streams have no {request.by!r}; they have {', '.join(FIGURES)}")
        now, loads = self._host.clock.monotonic(), self.owners.loads
        found = []
        for key in sorted({*loads.active, *(entry.key for entry in self.owners.with_messages())}):
            entry = self.owners.get(key)
            if entry is None or (request.only and entry.spec.name not in request.only):
                continue
            slots_busy, messages_per_s = loads.measured(key)
            time_s = slots_busy / messages_per_s if messages_per_s else 0.0
            waiting, lag_s = entry.owner.waiting, _oldest_s(entry, now)
            found.append(StreamActivity(key, slots_busy, messages_per_s, time_s, waiting, lag_s))
        busiest = nlargest(request.most, found, key=attrgetter(request.by))
        return Done(text=msgspec.json.encode(busiest).decode())

    async def drain(self) -> None:
        for pump in self.pumps.values():
            pump.stopping = True
        for queue in self._queues.values():
            queue.wake()
        await self._within(self._end_pumps())
        await self._within(self._move_all())
        self.owners.drop_all()
        for keeper in self._keepers.values():
            await self._within(keeper.settled())
        await self._within(self.reports.flush())
        returned = await self.router.give_back_all()
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

    async def _move_all(self) -> None:
        """Move all streams to the other nodes by load, a few at a time."""
        failures = 0
        while before := len(self.owners):
            others = [m for m in self._host.membership.view.values() if m.id != self._host.membership.id]
            targets = spread(_state_versions(self.owners), others, self.owners.acting)
            if targets:
                room = asyncio.Semaphore(MOVES_AT_ONCE)
                await asyncio.gather(*(self._move_one(room, key, to) for key, to in targets.items()))
            else:
                self.owners.give_up_all()
            failures = 0 if len(self.owners) < before else failures + 1
            # A stream that is just being opened can't move yet: try again.
            await self._host.clock.sleep(MOVE_AGAIN.delay_s(max(1, failures), self._host.clock.random()))

    async def _move_one(self, room: asyncio.Semaphore, key: str, target: Member) -> None:
        async with room:
            obstacle = await self.move(key, target.id)
            if obstacle:
                self._host.log.debug("could not move", key=key, to=target.name, obstacle=obstacle)
                await self._host.clock.sleep(0.05)
            else:
                await self.owners.gone(key)

    async def close(self) -> None:
        await self.pool.close()

    async def maintain(self) -> None:
        """Delete results, dead letters and idle checkpoints that were kept long enough, by the store's
        clock."""
        limits = self._host.limits
        try:
            now = await self._state.now("")
            await self._state.expire(now - limits.results_keep_s, now - limits.idle_keep_s)
        except HoldfastError as error:
            self._host.log.warning("could not clean up", error=str(error))
            return
        await expire(self._queues.values(), now - limits.dead_keep_s, self._host.log)


def _oldest_s(entry: Owned, now: float) -> float:
    """For how long this node has had the oldest message of a stream."""
    return max(
        (now - receipt.received_at for held in entry.owner.holding() for receipt in held.receipts[:1]),
        default=0.0,
    )


def _may_go(entry: Owned, target: Member | None, acting: Collection[str]) -> bool:
    return target is None or target.load.takes(entry.key, acting, entry.owner.state_version)


def _state_versions(entries: Iterable[Owned]) -> dict[str, int]:
    """Return the version of the state of each key, 0 for one without state."""
    return {entry.key: entry.owner.state_version for entry in entries}


def _cost(entry: Owned, target: Member | None) -> float:
    """Return the cost of moving a stream: its handler opens again, models may have to be loaded, and its
    state is sent."""
    cold = entry.spec.models and target is not None and not target.load.is_warm(entry.key)
    return 1.0 + (LOAD_COST if cold else 0.0) + len(entry.owner.state or b"") / STATE_BYTES_A_COST
