"""The owners of one node: carries out the commands of each owner's state machine, and gives it the
answers."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TypeVar

import msgspec

from holdfast.cluster.deliverer import Deliverer, HandOverOutcome
from holdfast.cluster.host import Host
from holdfast.cluster.keeper import Keeper, Settlement
from holdfast.cluster.limits import Limits
from holdfast.cluster.tracer import trace_of
from holdfast.common.effects import EffectLimits
from holdfast.common.held import Held
from holdfast.common.message import CommitPlace, Life
from holdfast.common.redaction import redact
from holdfast.common.trace import raised_at
from holdfast.errors import (
    ClaimLost,
    ConfigError,
    Fenced,
    HandlerFailed,
    HoldfastError,
    InvalidMessage,
    MembershipLost,
    ModelFailed,
    OperationRefused,
    OutcomeUnknown,
    Retry,
    StateRejected,
    TooLarge,
    Unavailable,
    ValueLost,
)
from holdfast.ports.coordinator import Claim
from holdfast.ports.queue import Delivery, Taken
from holdfast.ports.slots import MessageWork, Ran, SlotCall, StreamSlot
from holdfast.rules.streams import backlog, commands, ledger
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.owner import NOTHING_BROUGHT, MovedFrom, Owner, OwnerPhase, OwnerRules
from holdfast.rules.streams.sequencer import Gap, Rules
from holdfast.streams.addressing import STORED, stored_of
from holdfast.streams.loads import Loads
from holdfast.streams.obstacles import Obstacles, pause_s
from holdfast.streams.operations import MEMBER
from holdfast.streams.quarantine import Quarantine
from holdfast.streams.reservations import Reservations
from holdfast.streams.router import Router
from holdfast.streams.slots import Died, Seat, Seats
from holdfast.streams.spec import StreamSpec
from holdfast.streams.stalls import Stalls, waited_since
from holdfast.streams.storage import StreamStorage
from holdfast.streams.traces import HandlingSpans, begin_commit

T = TypeVar("T")

FAILURES_TOLD = 4
TELL_EVERY_S = 5.0

SILENT_LOOK_S = 2.0
"""How often owners that hold messages read the store while the coordinator is silent. An owner that commits
nothing would not notice that another node has opened its stream, and would keep messages from it."""

SPARE_TIMERS = 1000
"""So many times of owners that count no more are kept, and four for each owner."""

REMEMBERED_MAX = 100_000
"""For how many streams what is known of them is kept once they are no longer owned here."""


class Owned:
    """One owned key: its state machine, its claim and since when, its seat, and the slot in which its handler
    was last opened."""

    __slots__ = (
        "alone",
        "called_at",
        "claim",
        "committed_at",
        "failed_loads",
        "kept_waiting",
        "key",
        "last",
        "looks",
        "owner",
        "plain_key",
        "reopened",
        "seat",
        "since",
        "slot",
        "spec",
        "stands_since",
        "timer_at",
        "traced",
        "tries_alone",
    )

    def __init__(self, spec: StreamSpec, key: str, owner: Owner, claim: Claim, since: float) -> None:
        self.spec = spec
        self.key = key
        self.plain_key = key.partition("/")[2]
        """The key without the name of its stream."""
        self.owner = owner
        self.claim = claim
        self.since = since
        self.seat: Seat | None = None
        self.slot: StreamSlot | None = None
        self.called_at = 0.0
        """When its slot was last called for it, in monotonic seconds."""
        self.last: Checkpoint | None = None
        """The checkpoint that the last answered commit left at the store."""
        self.committed_at: float | None = None
        """When the last commit was answered, in monotonic seconds."""
        self.reopened = 0
        self.looks = 0
        """How many reads of the store aren't answered yet."""
        self.alone = ""
        """The head that has a turn in the node's quarantine, if one has."""
        self.kept_waiting = 0
        """How many of its calls wait for a suspect that has a turn there."""
        self.stands_since: float | None = None
        """Since when the stream stands still, as it changes nodes; None once there was a commit here."""
        self.timer_at: float | None = None
        self.failed_loads = 0
        """How many times an undeclared model has failed to load since a message was last handled."""
        self.traced: list[str] = []
        """The contexts of handled messages of recorded traces that no commit covers yet."""
        self.tries_alone = False
        """True while it waits for such a model, which perhaps no other stream needs."""


class Warming:
    """A stream that is about to move here: the seat that it will have, what it brings along, why it can't run
    here, once that is known, and when all was ready for the move."""

    __slots__ = ("brings", "obstacle", "ready_at", "seat")

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.brings = NOTHING_BROUGHT
        self.ready_at: float | None = None
        self.obstacle: asyncio.Future[str] = asyncio.get_running_loop().create_future()


def rules_of(spec: StreamSpec, limits: Limits, *, by_key: bool = False, fifo: bool = False) -> OwnerRules:
    """Return the settings of a declared stream that the owner's state machine needs. ``by_key``: its queue
    knows keys. ``fifo``: it keeps the order of each key."""
    return OwnerRules(
        order=Rules(
            kind=spec.seq_kind,
            first=spec.first_seq,
            start_timeout_s=spec.start_timeout_s,
            max_jump=spec.max_jump,
            restart_after_s=spec.restart_after_s,
            gap_timeout_s=spec.gap_timeout_s,
            on_gap=spec.on_gap,
            inbox_limit=spec.inbox_limit,
            window=spec.identity_window,
        ),
        max_tries=spec.max_tries,
        backoff=spec.backoff,
        max_starts=spec.max_starts,
        on_failure=spec.on_failure,
        on_late=spec.on_late,
        checkpoint_every=spec.checkpoint_every,
        checkpoint_after_s=spec.checkpoint_after_ms / 1000,
        idle_timeout_s=spec.idle_timeout_s or limits.idle_timeout_s,
        max_state_bytes=limits.max_state_bytes,
        needs_models=bool(spec.models),
        effects=EffectLimits(spec.max_pending_effects, spec.max_pending_bytes, spec.effect_timeout_s),
        max_timers=spec.max_timers,
        by_key=by_key,
        fifo=fifo,
    )


Bring = Callable[[str, Sequence[Delivery]], Awaitable[None]]
"""Brings deliveries of a stream to their owners."""


class ClientRequests(Protocol):
    """The requests of clients, as the owners see them."""

    def settled(self, key: str, held: Held, duplicate: bool) -> None:
        """Note that a commit covers the message of some requests."""

    def refused(self, key: str, command: commands.RefuseRequests) -> None:
        """Note that the owner handles no messages while a target is away."""

    def returned(self, key: str, held: Held, target: str, epoch: int) -> None:
        """Note that the owner gives up the message of some requests. The next owner, if known, is the
        membership ``target`` at ``epoch`` or a higher one."""


class Owners:
    """All owners of a node. ``models`` are those that the app declares. ``on_obstacle`` is called with a
    stream that can't run here (see ``Obstacles``), or can again. Set ``requests``, ``bring`` and ``room``
    before the start; ``room`` returns how many further messages of a stream the node has room for."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, StreamSpec],
        models: Collection[str],
        storage: StreamStorage,
        pool: Seats,
        keepers: Mapping[str, Keeper],
        router: Router,
        reservations: Reservations,
        deliverer: Deliverer,
        *,
        on_obstacle: Callable[[str], None],
    ) -> None:
        self._host = host
        self._coordinator, self._clock, self._limits = host.coordinator, host.clock, host.limits
        self._tasks, self._stats, self._log = host.tasks, host.stats, host.log
        self._specs = specs
        self._models = models
        self._rules = {
            name: rules_of(
                spec, host.limits, by_key=reservations.knows_keys(name), fifo=storage.queues[name].fifo
            )
            for name, spec in specs.items()
        }
        self._state, self._values = storage.state, storage.values
        self._pool = pool
        self._keepers = keepers
        self._router = router
        self._reservations = reservations
        reservations.on_lost = self._reservation_lost
        self._deliverer = deliverer
        self.requests: ClientRequests
        self.bring: Bring
        self.room: Callable[[str], int]
        self._entries: dict[str, Owned] = {}
        self._holding: dict[str, Owned] = {}  # those with messages, so that idle keys cost nothing
        self._warm: dict[str, Warming] = {}
        self._timers: list[tuple[float, str]] = []
        self._timer_set = asyncio.Event()
        self.quarantine = Quarantine(
            host.clock, max((spec.timeout_s for spec in specs.values()), default=0.0)
        )
        self._numbers: dict[str, int] = {}
        """How many commits each stream had when this node last saw it."""
        self._survived: dict[str, Mapping[str, int]] = {}
        """What each stream's last owner here knew of openings that this node has outlived."""
        self._told_at = -TELL_EVERY_S
        self._went = asyncio.Event()
        self._claims_asked = 0
        self.loads = Loads(host.clock)
        self._on_obstacle = on_obstacle
        self.obstacles = Obstacles(specs, pool, host, on_change=self._obstacle_changed)
        timings = host.timings
        self._took_delivery = timings.delivery_seconds.each(specs)
        self._took_handler = timings.handler_seconds.each(specs)
        self._took_commit = timings.commit_seconds.each(specs)
        self._took_stall = timings.stall_seconds.each(specs)
        self._stalls = Stalls()
        host.news.on_left.append(self._left)
        self.acting = {name for name, spec in specs.items() if spec.acts}
        """The streams that send effects or set timers. Of some it is known only once they do so."""

    def _left(self, member: str) -> None:
        """Note that a membership has ended. A stream that comes here after a death waits anew for what is
        missing, though its owner may have been about to move it here. That its key was reserved may still be
        so."""
        self._stalls.left(member, self._clock.monotonic())
        for warming in self._warm.values():
            warming.brings = MovedFrom(warming.brings.deep)

    def start(self) -> None:
        """Begin to serve timers."""
        self._tasks.repeat(self._serve_timers, self._clock, self._log)
        self._tasks.repeat(self._look_in_silence, self._clock, self._log)

    # -- what others ask --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Owned]:
        return iter(list(self._entries.values()))

    def with_messages(self) -> list[Owned]:
        """The owned keys that hold messages."""
        return list(self._holding.values())

    def get(self, key: str) -> Owned | None:
        """The entry of an owned key."""
        return self._entries.get(key)

    @property
    def held(self) -> int:
        """The number of messages in inboxes, without those that wait behind a gap: the missing message must
        get in."""
        return sum(entry.owner.waiting for entry in self._holding.values() if not entry.owner.gapped)

    def is_gapped(self, key: str) -> bool:
        """Return True if the messages that the key's owner here holds wait behind a gap, or behind effects
        that nobody takes."""
        entry = self._entries.get(key)
        return entry is not None and entry.owner.gapped

    def waits_for_gap(self, key: str) -> bool:
        """Return True if the key's owner here waits for a missing message, as long as the timeout allows."""
        entry = self._entries.get(key)
        return entry is not None and entry.owner.waits_for_gap

    def holding(self, stream: str, *, opened: bool = False) -> Iterator[tuple[str, Held]]:
        """Yield the messages of ``stream`` whose deliveries must be extended, each with its key. With
        ``opened``, only those of owners that have opened the stream, and know of no other opening."""
        for entry in self._holding.values():
            if entry.spec.name != stream or entry.owner.suspended:
                continue
            if not opened or entry.owner.phase in (OwnerPhase.OWNER, OwnerPhase.MOVING):
                for held in entry.owner.holding():
                    yield entry.plain_key, held

    def offer(self, key: str, held: Held) -> Literal["accepted", "full", "no", "unknown"]:
        """Offer a delivery to the key's owner here."""
        entry = self._entries.get(key)
        if entry is None:
            return "unknown"
        verdict = entry.owner.offer(held, self._now(entry))
        self._perform(entry)
        return verdict

    def adopt(self, stream: str, key: str, claim: Claim) -> bool:
        """Begin to own a key whose claim is ours."""
        if (known := self._entries.get(key)) is not None:
            if claim.version > known.claim.version:
                known.claim = claim
            return True
        spec = self._specs.get(stream)
        if spec is None:
            return False
        now = self._clock.monotonic()
        survived = self._survived.pop(key, None)
        keeper = self._keepers[stream]
        warming = self._warm.get(key)
        brings = NOTHING_BROUGHT if warming is None else warming.brings
        owner = Owner(key, self._rules[stream], now, survived, keeper.reception, brings)
        owner.is_held_back = keeper.is_full
        entry = self._entries[key] = Owned(spec, key, owner, claim, now)
        if warming is not None:
            entry.stands_since = warming.ready_at
        self._perform(entry)
        if self._host.news.overtook(claim):
            owner.vanished()  # what it has begun to open doesn't count
            self._perform(entry)
        return True

    def is_reserved(self, key: str) -> bool:
        """Return True if the key's owner here has reserved it at the queue."""
        entry = self._entries.get(key)
        return entry is not None and entry.owner.is_reserved

    def vanished(self) -> None:
        """Note that the membership is lost: every owner must find its own epoch at the store before it
        accepts messages again."""
        for entry in self:
            entry.owner.vanished()
            self._perform(entry)

    def claim_changed(self, claim: Claim) -> None:
        """Note that a claim has changed at the coordinator. If its owner is here and isn't giving it up, the
        owner checks what happened."""
        entry = self._entries.get(claim.key)
        if entry is None or entry.owner.leaving or claim.version <= entry.claim.version:
            return
        if claim.member == self._host.membership.id:
            entry.claim = claim  # it is ours again, whoever has set it
        else:
            entry.owner.vanished()
            self._perform(entry)

    async def check_claims(self) -> None:
        """Ask the coordinator which claims are ours, as changes may have been missed, until it answers or
        this is called again. Owners of other keys check what happened."""
        self._claims_asked += 1
        number, tries = self._claims_asked, 0
        before: dict[str, Owned] = {}
        ours: set[str] | None = None
        while ours is None:
            before = dict(self._entries)
            try:
                ours = {claim.key for claim in await self._coordinator.claims(self._host.membership.id)}
            except HoldfastError as error:
                self._log.debug("could not read claims", error=str(error))
                tries += 1
                await self._clock.sleep(self._limits.retry.delay_s(tries, self._clock.random()))
                if number != self._claims_asked:
                    return
        for key, entry in before.items():
            if key not in ours and self._entries.get(key) is entry and not entry.owner.leaving:
                entry.owner.vanished()
                self._perform(entry)

    def poke(self, key: str) -> None:
        """Note that an operator has changed the stream at the store."""
        if (entry := self._entries.get(key)) is not None:
            entry.owner.poked()
            self._perform(entry)

    def nudge(self, key: str) -> bool:
        """Note that the store says that a stream is due; return False if it isn't owned here."""
        if (entry := self._entries.get(key)) is None:
            return False
        entry.owner.nudged(self._now(entry))
        self._perform(entry)
        return True

    def slot_died(self, seat: Seat) -> None:
        """Note that the slot of a seat has died. A call that ran in it fails by itself."""
        for entry in self:
            if entry.seat is seat:
                entry.slot = None
                entry.owner.unloaded()

    def archive_changed(self, stream: str) -> None:
        """Note that too much waits for the archive of a stream, or no longer does."""
        self._tasks.spawn(self._hold_back(stream))  # an owner may be just at work, for which too much waits

    async def _hold_back(self, stream: str) -> None:
        """Hold all owners of a stream back while too much waits for its archive."""
        for entry in self:
            if entry.spec.name == stream:
                entry.owner.hold_back(self._keepers[stream].is_full, self._now(entry))
                self._perform(entry)

    # -- models -----------------------------------------------------------------------------------------

    def _obstacle_changed(self, stream: str) -> None:
        if not self.obstacles.of(stream):
            for entry in self.obstructed(stream):
                entry.owner.unblocked(self._now(entry))
                self._perform(entry)
        self._on_obstacle(stream)

    def obstructed(self, stream: str) -> list[Owned]:
        """Return the owned keys of a stream that this node can't run and another may: a declared model does
        not load here, or their state is newer than the handler."""
        return [
            entry
            for entry in self
            if entry.spec.name == stream and entry.owner.obstacle and not entry.tries_alone
        ]

    async def _load_models(self, entry: Owned, generation: int) -> None:
        owner = entry.owner
        if owner.generation != generation:
            return  # it may have been released, and would then keep a seat for ever
        seat = self._seat(entry)
        async with seat.loads:
            if owner.generation == generation:
                await self._load_in(entry, generation, seat)

    async def _load_in(self, entry: Owned, generation: int, seat: Seat) -> None:
        owner, spec = entry.owner, entry.spec
        if obstacle := self._known_obstacle(spec, seat):
            self._obstructed(entry, generation, obstacle)
            return
        try:
            _, slot = await self._pool.call(
                seat,
                spec.timeout_s,
                lambda slot, call: slot.load(spec.name, entry.plain_key, spec.models, call=call),
                of=entry.key,
            )
            self._is_in(entry, slot)
        except ModelFailed as error:
            self._is_in(entry, seat.slot)
            self.obstacles.found(spec.name, error.model, redact(str(error)), seat)
            self._obstructed(entry, generation, redact(str(error)))
        except Died as error:
            if error.model:
                self.obstacles.found(spec.name, error.model, _died_loading(error), seat)
                self._obstructed(entry, generation, _died_loading(error))
            else:
                text, detail = redact(str(error)), redact(error.detail)
                self._answer(entry, generation, lambda now: owner.slot_died(False, text, detail, now))
        else:
            self._answer(entry, generation, owner.models_loaded)

    def _known_obstacle(self, spec: StreamSpec, seat: Seat) -> str:
        """Return the known obstacle. A failed load is tried again once for all streams, not for each of
        them."""
        loaded = seat.slot.models if seat.slot is not None else ()
        return "" if {*spec.models} <= {*loaded} else self.obstacles.of(spec.name)

    def _model_failed(self, entry: Owned, generation: int, model: str, reason: str, handled: int = 0) -> None:
        """Note that a handler asked for a model that doesn't load, after it had handled ``handled`` messages
        of its run."""
        if model not in self._models:
            self._wait_alone(entry, generation, reason, handled)
            return
        if entry.seat is not None:  # else the stream was released meanwhile
            self.obstacles.found(entry.spec.name, model, reason, entry.seat)
        self._obstructed(entry, generation, reason, handled)

    def _obstructed(self, entry: Owned, generation: int, obstacle: str, handled: int = 0) -> None:
        """Note that this node can't run the stream, which waits here or moves to a node that can."""
        entry.tries_alone = False
        self._answer(entry, generation, lambda now: entry.owner.models_failed(obstacle, now, handled))
        self._on_obstacle(entry.spec.name)

    def _wait_alone(self, entry: Owned, generation: int, reason: str, handled: int) -> None:
        """Have the stream wait for what its next message needs, a model that isn't declared or a stored body.
        Only a message can show whether that loads, and nobody knows which other streams need it, so this
        stream waits here alone."""
        self._answer(entry, generation, lambda now: entry.owner.models_failed(reason, now, handled))
        if entry.owner.generation != generation or not entry.owner.obstacle or entry.seat is None:
            return
        entry.failed_loads += 1
        entry.tries_alone = True
        if entry.failed_loads == 1:
            self._log.error(
                "what the next message needs does not load here; the stream waits",
                key=entry.key,
                error=reason,
            )
        self._tasks.spawn(self._try_alone(entry, generation, entry.seat))

    def _can_be_read(self, entry: Owned) -> bool:
        """Return True if another living node has told that its handler reads the stream's state."""
        membership, version = self._host.membership, entry.owner.state_version
        return any(
            member.load.tells_it_reads(entry.spec.name, version)
            for member in membership.view.values()
            if member.id != membership.id
        )

    def _wait_for_reader(self, entry: Owned, generation: int, reason: str) -> None:
        """Have a stream whose state is newer than the handler here move to a node that reads it. Until one
        takes it, it is looked at again with pauses: that node may be full now, or leave."""
        self._answer(entry, generation, lambda now: entry.owner.models_failed(reason, now))
        if entry.owner.generation != generation or not entry.owner.obstacle or entry.seat is None:
            return
        entry.failed_loads += 1
        if entry.failed_loads == 1:
            self._log.warning(
                "the state is newer than the handler here; the stream moves to a node that reads it",
                key=entry.key,
                error=reason,
            )
        self._on_obstacle(entry.spec.name)
        self._tasks.spawn(self._try_alone(entry, generation, entry.seat))

    async def _try_alone(self, entry: Owned, generation: int, seat: Seat) -> None:
        waiting = sum(other.tries_alone and other.seat is seat for other in self)
        await self._clock.sleep(pause_s(entry.failed_loads, seat.took_s, self._clock.random(), waiting))
        entry.tries_alone = False
        self._answer(entry, generation, entry.owner.unblocked)

    def _seat(self, entry: Owned) -> Seat:
        if entry.seat is None:
            warming = self._warm.pop(entry.key, None)
            entry.seat = warming.seat if warming else self._pool.assign(entry.spec.models)
        return entry.seat

    # -- moves ------------------------------------------------------------------------------------------

    async def warm(self, stream: str, key: str, brings: MovedFrom = NOTHING_BROUGHT) -> str:
        """Prepare to own a key, which ``brings`` something along: load its models and open its handler from
        the present state, in the seat that the stream will have. Returns why that failed, or ""."""
        spec = self._specs.get(stream)
        if spec is None:
            return f"stream {stream!r} is not declared here"
        if key in self._entries:
            return ""
        warming = self._warm.get(key)
        if warming is None:
            warming = self._warm[key] = Warming(self._pool.assign(spec.models))
            self._tasks.spawn(self._keep_warm(spec, key, warming))
        warming.brings = brings
        return await asyncio.shield(warming.obstacle)

    async def _keep_warm(self, spec: StreamSpec, key: str, warming: Warming) -> None:
        seat, plain = warming.seat, key.partition("/")[2]
        try:
            obstacle = await self._open_warm(spec, key, warming)
        except BaseException:
            warming.obstacle.cancel()
            raise
        warming.obstacle.set_result(obstacle)
        if not obstacle:
            warming.ready_at = self._clock.monotonic()
            await self._clock.sleep(self._limits.move_timeout_s * 2)
        if self._warm.get(key) is warming:
            del self._warm[key]
            self._pool.leave(seat, spec.models)
            entry = self._entries.get(key)
            if (entry is None or entry.seat is not seat) and seat.slot is not None:
                await self._pool.close_stream(seat.slot, spec.name, plain, spec.timeout_s)

    async def _open_warm(self, spec: StreamSpec, key: str, warming: Warming) -> str:
        try:
            checkpoint = await self._state.peek(key)
        except HoldfastError as error:
            return f"the state can't be read: {error}"
        seat = warming.seat
        async with seat.loads:
            if obstacle := self._known_obstacle(spec, seat):
                return obstacle
            return await self._open_in(spec, key, warming, checkpoint)

    async def _open_in(
        self, spec: StreamSpec, key: str, warming: Warming, checkpoint: Checkpoint | None
    ) -> str:
        plain, seat = key.partition("/")[2], warming.seat
        state, version = (checkpoint.state, checkpoint.state_version) if checkpoint else (None, 0)

        def begin(slot: StreamSlot, call: SlotCall) -> Awaitable[None]:
            if self._warm.get(key) is not warming:  # its owner here may have opened it from newer state
                raise HandlerFailed(f"{key} is no longer prepared here")
            return slot.open(spec.name, plain, state, version, call=call)

        try:
            await self._pool.call(seat, spec.timeout_s, begin, of=key)
        except ModelFailed as error:
            if error.model in self._models:
                self.obstacles.found(spec.name, error.model, redact(str(error)), seat)
            return redact(str(error))
        except Died as error:
            if error.model in spec.models:
                self.obstacles.found(spec.name, error.model, _died_loading(error), seat)
            return redact(str(error))
        except (StateRejected, HandlerFailed) as error:
            return redact(str(error))
        return ""

    def move(self, key: str, target: str, *, knows_deep: bool = False) -> bool:
        """Begin to move an owned stream to the membership ``target``; if that is empty, release it.
        ``knows_deep``: the target knows that the key is reserved."""
        entry = self._entries.get(key)
        if entry is None or not entry.owner.move(target, self._now(entry), knows_deep=knows_deep):
            return False
        self._perform(entry)
        return True

    async def gone(self, key: str) -> None:
        """Wait until ``key`` is no longer owned here, or its move has failed."""
        while (entry := self._entries.get(key)) is not None and entry.owner.phase is not OwnerPhase.OWNER:
            await self._went.wait()

    def _tell_went(self) -> None:
        self._went.set()
        self._went = asyncio.Event()

    def give_up_all(self) -> None:
        """Finish the running messages, commit, and release every key."""
        for entry in self:
            self.move(entry.key, "")

    def drop_all(self) -> None:
        """Drop every key at once. Held messages go back to their senders and to the queue."""
        for entry in self:
            entry.owner.drop()
            self._perform(entry)

    # -- timers -----------------------------------------------------------------------------------------

    def _set_timer(self, entry: Owned, at: float) -> None:
        entry.timer_at = at
        heapq.heappush(self._timers, (at, entry.key))
        if len(self._timers) > SPARE_TIMERS + 4 * len(self._entries):
            self._forget_old_timers()
        if self._timers[0][0] == at:
            self._timer_set.set()

    def _forget_old_timers(self) -> None:
        """Keep one time of each owner. What was set before would stay until its time, which may be days."""
        self._timers = [
            (entry.timer_at, entry.key) for entry in self._entries.values() if entry.timer_at is not None
        ]
        heapq.heapify(self._timers)

    async def _serve_timers(self) -> None:
        while True:
            self._timer_set.clear()
            timeout_s = None
            if self._timers:
                timeout_s = max(0.0, self._timers[0][0] - self._clock.monotonic())
            await self._clock.wait(self._timer_set, timeout_s)
            self._ring_due()

    def _ring_due(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            at, key = heapq.heappop(self._timers)
            entry = self._entries.get(key)
            if entry is not None and entry.timer_at == at:
                self._ring(entry, now)

    def _ring(self, entry: Owned, now: float) -> None:
        entry.timer_at = None
        if (at := entry.owner.wake_at) is None:
            return
        if at <= now:
            entry.owner.ticked(self._now(entry))
            self._perform(entry)
        else:
            self._set_timer(entry, at)

    # -- commands ---------------------------------------------------------------------------------------

    def _perform(self, entry: Owned) -> None:
        for command in entry.owner.commands():
            generation = entry.owner.generation  # an answer doesn't count in a later generation
            match command:
                case commands.Run():
                    entry.called_at = self._clock.monotonic()
                    self._tasks.spawn(self._run(entry, generation, command))
                case commands.Write():
                    self._tasks.spawn(self._write(entry, generation, command))
                case commands.Settle():
                    self._settle(entry, command)
                case commands.Start():
                    self._tasks.spawn(self._start_head(entry, generation, command))
                case commands.HandOver():
                    self._hand_over(entry, command)
                case commands.RefuseRequests():
                    self.requests.refused(entry.key, command)
                case commands.Return():
                    self._return_requests(entry, command.messages, "")
                    self._router.take_back(entry.spec.name, entry.key, command.messages)
                case commands.HandOff():
                    self._stats.moved_out += 1
                    self._reservations.leave(entry.spec.name, entry.plain_key)
                    self._return_requests(entry, command.messages, command.target)
                    self._router.departed(entry.key, command.target, entry.owner.epoch)
                    self._router.take_back(entry.spec.name, entry.key, command.messages, command.target)
                    if entry.owner.is_reserved:
                        self._tasks.spawn(self._router.call_up(entry.spec.name, entry.key, command.target))
                case backlog.Reserve():
                    self._tasks.spawn(self._reserve(entry, generation))
                case backlog.Take():
                    self._tasks.spawn(self._take(entry, generation, command))
                case backlog.Unreserve():
                    self._tasks.spawn(self._reservations.unreserve(entry.spec.name, entry.plain_key))
                case commands.PutBack():
                    self._tasks.spawn(self._put_back(entry, generation, command))
                case commands.Dropped():
                    self._forget(entry)
                case commands.Peek():
                    self._tasks.spawn(self._peek(entry, generation))
                case commands.Open():
                    self._tasks.spawn(self._open(entry, generation, command.expect))
                case commands.LoadModels():
                    entry.called_at = self._clock.monotonic()
                    self._tasks.spawn(self._load_models(entry, generation))
                case commands.CheckClaim():
                    self._tasks.spawn(self._check_claim(entry, generation))
                case commands.Reclaim():
                    self._tasks.spawn(self._reclaim(entry, generation, command.epoch))
                case commands.Transfer():
                    self._tasks.spawn(self._transfer(entry, generation, command.target))
                case commands.Release():
                    self._tasks.spawn(self._release(entry, generation))
        if entry.alone and entry.owner.at_risk != entry.alone:
            entry.alone = ""
            self.quarantine.leave()
        if entry.owner.waiting:
            self._holding[entry.key] = entry
        elif self._holding.get(entry.key) is entry:
            del self._holding[entry.key]
        at = entry.owner.wake_at
        if at is not None and (entry.timer_at is None or at < entry.timer_at):
            self._set_timer(entry, at)

    def _answer(self, entry: Owned, generation: int, feed: Callable[[float], None]) -> None:
        """Give an answer to the state machine, unless it belongs to an opening that is over."""
        if entry.owner.generation == generation:
            feed(self._now(entry))
            self._perform(entry)

    def _now(self, entry: Owned) -> float:
        """Return the monotonic time, after the owner was told the wall time."""
        now = self._clock.monotonic()
        entry.owner.wall_ahead_s = self._clock.wall() - now
        return now

    async def _insist(
        self, entry: Owned, generation: int, call: Callable[[], Awaitable[T]], *retried: Retry
    ) -> T:
        """Repeat a call while it fails in a way that may be retried, and the opening is current. A refused
        login, such as after a change of password, is retried too: it had no effect, and people can correct
        it.

        Raises Fenced once the opening is over."""
        failures = 0
        while entry.owner.generation == generation:
            try:
                return await call()
            except HoldfastError as error:
                if error.retry not in retried and not isinstance(error, ConfigError | OperationRefused):
                    raise
                failures += 1
                self._note_failure(entry, error, failures)
            await self._clock.sleep(self._limits.retry.delay_s(failures, self._clock.random()))
        raise Fenced(f"{entry.key}: the opening is over", 0)

    def _note_failure(self, entry: Owned, error: HoldfastError, failures: int) -> None:
        """Log a failure that lasts, at intervals and for all streams together."""
        now = self._clock.monotonic()
        if failures >= FAILURES_TOLD and now >= self._told_at + TELL_EVERY_S:
            self._told_at = now
            self._log.warning("a service fails; trying again", key=entry.key, error=str(error))
        else:
            self._log.debug("trying again", key=entry.key, error=str(error))

    async def _look_in_silence(self) -> None:
        while True:
            await self._clock.sleep(SILENT_LOOK_S)
            if not self._host.membership.alive:
                self._look_at_all()

    def _look_at_all(self) -> None:
        for entry in self.with_messages():
            if not entry.looks:
                entry.owner.poked()
                self._perform(entry)

    async def _peek(self, entry: Owned, generation: int) -> None:
        entry.looks += 1
        try:
            checkpoint = await self._insist(
                entry, generation, lambda: self._state.peek(entry.key), Retry.SAFE, Retry.SAME
            )
        except Fenced:
            return
        finally:
            entry.looks -= 1
        if entry.stands_since is None and entry.last is None and checkpoint is not None:
            entry.stands_since = self._stalls.since(checkpoint.member)
        self._answer(entry, generation, lambda now: entry.owner.peeked(checkpoint, now))

    async def _open(self, entry: Owned, generation: int, expect: int) -> None:
        try:
            checkpoint = await self._insist(
                entry,
                generation,
                lambda: self._state.open(entry.key, expect, self._host.membership.id),
                Retry.SAFE,
            )
        except (Fenced, OutcomeUnknown):
            self._answer(entry, generation, entry.owner.open_failed)
            return
        self._stats.opened += 1
        if checkpoint.acts:
            self.acting.add(entry.spec.name)
        if entry.owner.generation != generation:
            return  # a later opening may have found what was committed since
        standing, recalled = self._recall(entry, checkpoint)
        try:
            quiet_s = await self._quiet_s(entry, generation, standing, recalled)
        except Fenced:
            return
        self._answer(
            entry, generation, lambda now: entry.owner.opened(standing, now, quiet_s, recalled=recalled)
        )
        self._tell_went()  # a move that an opening has ended has failed

    async def _quiet_s(self, entry: Owned, generation: int, standing: Checkpoint, recalled: bool) -> float:
        """Return how many seconds ago the last message was committed, where that matters. The clock of the
        store is used, which dated the commit, because this host's clock may have been set. A recalled commit
        is dated by this node."""
        if entry.owner.rules.order.restart_after_s is None:
            return 0.0
        before_s = standing.log.quiet_s if standing.log is not None else 0.0
        if recalled and entry.committed_at is not None:
            return before_s + self._clock.monotonic() - entry.committed_at
        now = await self._insist(
            entry, generation, lambda: self._state.now(entry.key), Retry.SAFE, Retry.SAME
        )
        return before_s + max(0.0, now - standing.at)

    def _recall(self, entry: Owned, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
        """Return the checkpoint that an opening found, or the last one of this owner if the store has lost it
        (with True). If the store has nothing at all, nobody has committed since, so the stream goes on from
        this owner's last commit. If the store has an older checkpoint, another owner may have gone on from
        it, so it counts."""
        last, known = entry.last, self._numbers.get(entry.key, 0)
        entry.last = checkpoint
        if checkpoint.number >= known:
            self._note_number(entry.key, checkpoint.number)
            return checkpoint, False
        self._stats.states_lost += 1
        nothing = checkpoint.number == 0 and checkpoint.log is None
        recalled = nothing and last is not None and last.number == known
        follows = (
            "it goes on from what its owner knows; results of before are lost"
            if recalled
            else "it begins anew: frames that were committed before are not waited for or known"
            if nothing
            else "it goes on from the older checkpoint"
        )
        self._log.error(
            "the state store has lost commits of a stream",
            key=entry.key,
            commits_known=known,
            commits_found=checkpoint.number,
            follows=follows,
        )
        self._note_number(entry.key, checkpoint.number)
        if recalled:
            assert last is not None
            checkpoint = msgspec.structs.replace(
                last, epoch=checkpoint.epoch, member=checkpoint.member, number=0, started=None, suspects=()
            )
            entry.last = checkpoint
        return checkpoint, recalled

    def _note_number(self, key: str, number: int) -> None:
        """Remember how many commits a stream had, even after it is no longer owned here."""
        _remember(self._numbers, key, number)

    async def _check_claim(self, entry: Owned, generation: int) -> None:
        entry.reopened += 1
        if entry.reopened > 1:
            await self._clock.sleep(self._limits.retry.delay_s(entry.reopened, self._clock.random()))
        try:
            claim = await self._insist(
                entry, generation, lambda: self._standing_claim(entry), Retry.SAFE, Retry.SAME
            )
        except Fenced:
            return
        ours = claim is not None and claim.member == self._host.membership.id
        if claim is not None and ours:
            entry.claim = claim
        self._answer(entry, generation, lambda now: entry.owner.claim_checked(ours, now))

    async def _standing_claim(self, entry: Owned) -> Claim | None:
        """Return the claim on a key; None if the coordinator has been silent for so long that our membership
        may have ended."""
        try:
            return await self._coordinator.lookup(entry.key)
        except (Unavailable, OutcomeUnknown):
            if self._host.membership.alive:
                raise
        await self._see_who_opened(entry)
        return None

    async def _see_who_opened(self, entry: Owned) -> None:
        """Check who opened the stream last, while the coordinator is silent. If another node did, the
        coordinator must have answered that node, so only this node is cut off. An operator can open a stream
        without it."""
        try:
            standing = await self._state.peek(entry.key)
        except HoldfastError as error:
            self._log.debug("could not see who opened a stream", key=entry.key, error=str(error))
            return
        if standing is None or not 0 < entry.owner.epoch < standing.epoch:
            return
        if standing.member not in ("", MEMBER, self._host.membership.id):
            self._host.membership.cut_off()

    async def _reclaim(self, entry: Owned, generation: int, epoch: int | None) -> None:
        """Claim the key again after a lost membership, if the store shows that this opening is still
        current."""
        membership = self._host.membership
        await membership.joined.wait()
        try:
            ours = await self._insist(
                entry, generation, lambda: self._claim_again(entry, epoch), Retry.SAFE, Retry.SAME
            )
        except (Fenced, MembershipLost):
            ours = False
        self._answer(entry, generation, lambda now: entry.owner.claim_checked(ours, now))

    async def _claim_again(self, entry: Owned, epoch: int | None) -> bool:
        if not await self._epoch_stands(entry, epoch):
            return False
        claim = await self._coordinator.claim(entry.key, self._host.membership.id)
        ours = claim.member == self._host.membership.id
        if ours:
            entry.claim = claim
        return ours

    async def _epoch_stands(self, entry: Owned, epoch: int | None) -> bool:
        if epoch is None:
            return True
        checkpoint = await self._state.peek(entry.key)
        return checkpoint is not None and checkpoint.epoch == epoch

    async def _start_head(self, entry: Owned, generation: int, command: commands.Start) -> None:
        epoch = entry.owner.epoch
        if command.alone and entry.alone != command.head:
            with self._kept_waiting(entry):
                await self.quarantine.enter(last=command.last)
            if entry.owner.generation != generation:
                self.quarantine.leave()  # a later opening of this stream may be next
                return
            entry.alone = command.head
        elif not entry.alone and not self.quarantine.is_open:
            with self._kept_waiting(entry):
                await self.quarantine.opened()  # what doesn't run yet is not to be counted
        try:
            openings = await self._insist(
                entry,
                generation,
                lambda: self._state.start(entry.key, epoch, command.head),
                Retry.SAFE,
                Retry.SAME,
            )
        except Fenced:
            self._stats.fenced += 1
            self._answer(entry, generation, entry.owner.fenced)
            return
        self._answer(entry, generation, lambda now: entry.owner.started(openings, now))

    @contextmanager
    def _kept_waiting(self, entry: Owned) -> Iterator[None]:
        entry.kept_waiting += 1
        try:
            yield
        finally:
            entry.kept_waiting -= 1

    async def _write(self, entry: Owned, generation: int, command: commands.Write) -> None:
        """Send a commit, and repeat it unchanged while its outcome is unknown."""
        commit, sent_at = command.commit, self._clock.monotonic()
        span = None
        if entry.traced and self._host.tracer is not None:
            span = begin_commit(self._host.tracer, entry.spec.name, entry.plain_key, entry.traced)
            entry.traced = []
        try:
            await self._insist(entry, generation, lambda: self._state.commit(commit), Retry.SAFE, Retry.SAME)
        except Fenced:
            if span is not None:
                span.end("another opening of the stream has fenced this one")
            self._stats.fenced += 1
            self._answer(entry, generation, entry.owner.fenced)
            return
        except TooLarge as error:
            text = str(error)
            if span is not None:
                span.end(text)
            self._log.error("a commit is too large", key=entry.key, error=text)
            self._answer(entry, generation, lambda now: entry.owner.refused(text, now))
            return
        self._took_commit[entry.spec.name].note(self._clock.monotonic() - sent_at)
        if span is not None:
            span.end()
        self._stats.commits += 1
        self._stats.committed += commit.done
        if entry.last is not None and entry.last.epoch == commit.epoch:
            entry.last = ledger.commit(entry.last, commit, entry.last.at) or entry.last
            entry.committed_at = self._clock.monotonic()
            self._note_number(entry.key, commit.number)
        if command.gaps:
            self._tell_gaps(entry, command.gaps)
        entry.reopened = 0
        self._answer(entry, generation, entry.owner.committed)

    def _hand_over(self, entry: Owned, command: commands.HandOver) -> None:
        owner, epoch, effect_id = entry.owner, entry.owner.epoch, command.effects[0].id

        def answer(outcome: HandOverOutcome, count: int, reason: str) -> None:
            now = self._now(entry)
            if outcome == "taken":
                owner.effects_taken(effect_id, count, epoch, now)
            elif outcome == "refused":
                owner.effect_refused(effect_id, epoch, reason, now)
            else:
                owner.effect_failed(effect_id, epoch, now, reason)
            self._perform(entry)

        self._deliverer.hand_over(entry.spec.name, entry.key, command.effects, answer)

    def _tell_gaps(self, entry: Owned, gaps: Sequence[Gap]) -> None:
        """Log the gaps that a commit has skipped for good."""
        for gap in gaps:
            self._stats.gaps_skipped += 1
            self._stats.seqs_missed += gap.span.last - gap.span.first + 1
            self._log.warning(
                "gap skipped", key=entry.key, run=gap.run, first=gap.span.first, last=gap.span.last
            )

    async def _run(self, entry: Owned, generation: int, command: commands.Run) -> None:
        owner, spec = entry.owner, entry.spec
        spans = HandlingSpans(self._host.tracer, spec.name, entry.plain_key, command.messages)
        if (works := await self._works(entry, generation, command, spans)) is None:
            return
        if not entry.alone and not self.quarantine.is_open:
            with self._kept_waiting(entry):
                await self.quarantine.opened()
        try:
            with self.quarantine.running:
                ran = await self._handle(entry, generation, command, works)
        except StateRejected as error:
            reason = redact(str(error))
            spans.failed(reason)
            if command.version > spec.handler.version and self._can_be_read(entry):
                self._wait_for_reader(entry, generation, reason)
                return
            self._log.error("state does not load; the stream is parked", key=entry.key, error=reason)
            self._answer(entry, generation, lambda now: owner.rejected(reason, now))
            return
        except ModelFailed as error:
            spans.failed(redact(str(error)))
            self._model_failed(entry, generation, error.model, redact(str(error)))
            return
        except HandlerFailed as error:
            text, detail = redact(str(error)), redact(error.detail)
            spans.failed(text)
            self._log.warning(
                "handler failed", key=entry.key, error=text, at=raised_at(detail), exception=detail
            )
            self._answer(entry, generation, lambda now: owner.load_failed(text, detail, now))
            return
        except Died as error:
            spans.failed(redact(str(error)))
            if error.model in spec.models:
                self._model_failed(entry, generation, error.model, _died_loading(error))
                return
            text, detail, guilty = redact(str(error)), redact(error.detail), error.guilty
            self._answer(entry, generation, lambda now: owner.slot_died(guilty, text, detail, now))
            return
        if ran is None:
            return
        took_s = entry.seat.took_s if entry.seat is not None else 0.0
        count = len(ran.results) + bool(ran.error)
        self.loads.note(entry.key, took_s, count)
        if count:
            self._took_handler[spec.name].note(took_s / count, count)
        entry.traced += spans.ran(ran)
        self._stats.handled += len(ran.results)
        if any(ran.acts):
            self.acting.add(spec.name)
        if ran.model:
            self._pool.model_failures[ran.model] += 1
            self._model_failed(entry, generation, ran.model, ran.error, len(ran.results))
            return
        if ran.results:
            entry.failed_loads = 0
        if ran.error:
            at = raised_at(ran.detail)
            self._log.warning("handler failed", key=entry.key, error=ran.error, at=at, exception=ran.detail)
        self._answer(
            entry,
            generation,
            lambda now: owner.ran(
                ran.results, ran.state, ran.version, ran.error, ran.detail, ran.permanent, now, ran.acts
            ),
        )

    async def _handle(
        self, entry: Owned, generation: int, command: commands.Run, works: list[MessageWork]
    ) -> Ran | None:
        """Have the slot handle messages; return None if the opening is over."""
        spec = entry.spec
        if command.fresh and entry.owner.generation == generation:
            await self._open_handler(entry, command)
        if entry.owner.generation != generation:
            return None  # its handler may be open in the slot by now: run nothing in it
        seat, slot = entry.seat, entry.slot
        if seat is None or slot is None:
            raise Died("the slot was replaced", "", guilty=False)
        ran, _ = await self._pool.call(
            seat,
            spec.timeout_s,
            lambda slot, call: slot.run(
                spec.name,
                entry.plain_key,
                works,
                command.limit,
                spec.checkpoint_after_ms / 1000,
                call=call,
            ),
            slot,
            of=entry.key,
        )
        return ran

    async def _works(
        self, entry: Owned, generation: int, command: commands.Run, spans: HandlingSpans
    ) -> list[MessageWork] | None:
        """Return what the slot gets of a run; None if the body of its first message can't be read, for now or
        for ever. A message with a stored body goes alone, so that a run needs memory for one of them."""
        messages, body = command.messages, command.messages[0].body
        is_stored = [STORED in held.attributes for held in messages]
        if is_stored[0]:
            try:
                body = await self._stored_body(messages[0])
            except (ValueLost, InvalidMessage) as error:
                reason = redact(str(error))
                spans.unread(reason)
                self._log.warning("a stored body is lost", key=entry.key, error=reason)
                self._answer(
                    entry,
                    generation,
                    lambda now: entry.owner.ran([], None, 0, reason, "", True, now),
                )
                return None
            except (HoldfastError, OSError) as error:
                reason = f"a stored body can't be read: {redact(str(error))}"
                spans.unread(reason)
                if entry.owner.generation == generation:
                    self._seat(entry)
                    self._wait_alone(entry, generation, reason, 0)
                return None
        count = 1 if is_stored[0] else is_stored.index(True) if True in is_stored else len(messages)
        return [
            MessageWork(
                held.place.run,
                held.place.seq,
                body if place == 0 else held.body,
                held.tries + 1,
                held.place.timer,
                held.traceparent,
            )
            for place, held in enumerate(messages[:count])
        ]

    async def _stored_body(self, held: Held) -> bytes:
        stored = stored_of(held.attributes)
        assert stored is not None
        return await self._values.get(stored.value)

    async def _open_handler(self, entry: Owned, command: commands.Run) -> None:
        spec, key = entry.spec, entry.plain_key
        _, slot = await self._pool.call(
            self._seat(entry),
            spec.timeout_s,
            lambda slot, call: slot.open(spec.name, key, command.state, command.version, call=call),
            of=entry.key,
        )
        entry.called_at = self._clock.monotonic()
        self._is_in(entry, slot)

    def _is_in(self, entry: Owned, slot: StreamSlot | None) -> None:
        """Note that a slot has a stream's models or handler. If the stream was released meanwhile, close it
        there, unless a later owner of it uses the same slot."""
        standing = self._entries.get(entry.key)
        if standing is entry:
            entry.slot = slot
        elif slot is not None and (
            standing is None or standing.seat is None or standing.seat.slot is not slot
        ):
            self._close(entry, slot)

    def _close(self, entry: Owned, slot: StreamSlot) -> None:
        """Have a stream closed in a slot."""
        spec = entry.spec
        self._tasks.spawn(self._pool.close_stream(slot, spec.name, entry.plain_key, spec.timeout_s))

    def _settle(self, entry: Owned, command: commands.Settle) -> None:
        owner, keeper = entry.owner, self._keepers[entry.spec.name]
        asked = [held for held in command.messages if held.is_asked]

        def archived() -> None:
            self._answer_requests(entry, command, [held for held in asked if not held.aside])

        if asked and not keeper.archives:
            archived()
        self._stats.duplicates -= 0 if command.duplicate else len(command.messages)
        for held in command.messages:
            self._stats.duplicates += len(held.receipts)

        def done() -> None:
            if asked:  # only now that the dead letter is sent: the client may then delete the message
                self._answer_requests(entry, command, [held for held in asked if held.aside])
            owner.settled(self._now(entry))
            self._perform(entry)

        if not command.duplicate:
            self._note_times(entry, command)
            if command.letters:
                self._tell_dead_letters(entry, command)
        commit = CommitPlace(owner.epoch, owner.number, self._clock.wall()) if keeper.archives else None
        settlement = Settlement(entry.key, command.letters, command.messages, done, commit, archived)
        keeper.settle(settlement, at_once=bool(asked) and keeper.archives)

    def _note_times(self, entry: Owned, command: commands.Settle) -> None:
        """Note how long the messages of an accepted commit were under way."""
        now, took = self._clock.monotonic(), self._took_delivery[entry.spec.name]
        for held in command.messages:
            if held.receipts and (received_at := held.receipts[0].received_at) != math.inf:
                took.note(now - received_at)
        if entry.stands_since is not None:
            since = max(entry.stands_since, waited_since(command.messages, entry.since))
            self._took_stall[entry.spec.name].note(now - since)
            entry.stands_since = None

    def _tell_dead_letters(self, entry: Owned, command: commands.Settle) -> None:
        for letter in command.letters:
            if letter.held is not None:
                self._log.warning(
                    "message set aside",
                    key=entry.key,
                    message=letter.held.place.name,
                    reason=letter.reason,
                    **trace_of(letter.held.traceparent),
                )

    def _answer_requests(self, entry: Owned, command: commands.Settle, messages: Sequence[Held]) -> None:
        for held in messages:
            self.requests.settled(entry.key, held, command.duplicate)

    def _return_requests(self, entry: Owned, messages: tuple[Held, ...], target: str) -> None:
        for held in messages:
            if held.is_asked:
                self.requests.returned(entry.key, held, target, entry.owner.epoch + 1 if target else 0)

    # -- backlogs ---------------------------------------------------------------------------------------

    async def _reserve(self, entry: Owned, generation: int) -> None:
        stream, key, owner = entry.spec.name, entry.plain_key, entry.owner
        try:
            granted = await self._insist(
                entry,
                generation,
                lambda: self._reservations.reserve(stream, key, owner.epoch),
                Retry.SAFE,
                Retry.SAME,
            )
        except Fenced:
            return  # what may have been reserved is reserved again, or lapses
        except HoldfastError as error:
            self._note_failure(entry, error, FAILURES_TOLD)
            granted = False
        if owner.generation != generation and owner.phase is OwnerPhase.DROPPED:
            await self._reservations.unreserve(stream, key)
            return
        self._answer(entry, generation, lambda now: owner.reserved(granted, now))
        if owner.is_reserved:
            self._router.reserved(entry.key)

    async def _take(self, entry: Owned, generation: int, command: backlog.Take) -> None:
        stream, owner = entry.spec.name, entry.owner
        taken: Taken | None = Taken([], more=True)
        if (limit := min(command.limit, self.room(stream))) > 0:
            try:
                taken = await self._reservations.take(stream, entry.plain_key, limit, command.after)
            except (HoldfastError, OSError) as error:
                self._log.debug("could not take messages", key=entry.key, error=str(error))
        if taken is None:
            self._answer(entry, generation, owner.reservation_lost)
            return
        try:
            await self.bring(stream, taken.deliveries)
        except (HoldfastError, OSError) as error:
            self._log.warning("could not set a message aside", stream=stream, error=str(error))
        count, more = len(taken.deliveries), taken.more
        highest = max((delivery.turn or 0 for delivery in taken.deliveries), default=0)
        self._answer(entry, generation, lambda now: owner.took(count, highest, more, now))

    async def _put_back(self, entry: Owned, generation: int, command: commands.PutBack) -> None:
        """Put messages back before their stream moves. Those that don't get there show again by
        themselves."""
        stream = entry.spec.name
        for held in command.messages:
            held.become(Life.GIVEN_BACK)
        self._reservations.put_back(stream, entry.plain_key, command.messages)
        await self._reservations.all_back(stream)
        self._answer(entry, generation, entry.owner.were_put_back)

    def _reservation_lost(self, stream: str, key: str) -> None:
        entry = self._entries.get(self._specs[stream].full_key(key))
        if entry is not None:
            entry.owner.reservation_lost(self._now(entry))
            self._perform(entry)

    # -- moves and releases -----------------------------------------------------------------------------

    async def _transfer(self, entry: Owned, generation: int, target: str) -> None:
        try:
            outcome = await self._insist(
                entry, generation, lambda: self._try_transfer(entry, target), Retry.SAFE, Retry.SAME
            )
        except Fenced:
            return
        self._answer(entry, generation, lambda now: entry.owner.transferred(outcome, now))
        self._tell_went()

    async def _try_transfer(self, entry: Owned, target: str) -> Literal["done", "kept", "refused"]:
        try:
            await self._coordinator.transfer(entry.claim, target)
        except MembershipLost:
            return "kept"
        except ClaimLost:
            # Perhaps an earlier try took effect, and its answer was lost.
            claim = await self._coordinator.lookup(entry.key)
            return "done" if claim is not None and claim.member == target else "refused"
        except (Unavailable, OutcomeUnknown):
            if self._host.membership.alive:
                raise
            return "kept"  # if it took effect, the next commit or read shows who has opened the stream
        return "done"

    async def _release(self, entry: Owned, generation: int) -> None:
        try:
            await self._coordinator.release(entry.claim)
        except HoldfastError as error:
            self._log.debug("could not release", key=entry.key, error=str(error))
        self._answer(entry, generation, lambda now: entry.owner.released())

    def _forget(self, entry: Owned) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            if survived := entry.owner.survived:
                _remember(self._survived, entry.key, survived)
            self.loads.forget(entry.key)
            self._tell_went()
        if entry.seat is not None:
            self._pool.leave(entry.seat, entry.spec.models)
            if entry.slot is not None:
                self._close(entry, entry.slot)
            entry.seat = entry.slot = None


def _remember(known: dict[str, T], key: str, value: T) -> None:
    """Keep a value as the newest one, and forget the oldest of too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]


def _died_loading(error: Died) -> str:
    return redact(f"model {error.model!r} did not load: {error}")
