"""The owners of one node: finds the owner of a key, gives it events, and has performers carry out the
commands that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

from holdfast.cluster.deliveries import DeliveryTracker
from holdfast.cluster.host import Host
from holdfast.cluster.limits import Limits
from holdfast.common.effects import EffectLimits
from holdfast.common.held import Held
from holdfast.common.recent import remember
from holdfast.errors import ConfigError, Fenced, HoldfastError, OperationRefused, Retry
from holdfast.ports.coordinator import Claim
from holdfast.rules.streams.options import NOTHING_BROUGHT, OwnerOptions
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.rules.streams.sequencer import Rules
from holdfast.streams.alarms import Alarms
from holdfast.streams.owned import ArrivingStream, OwnedStream
from holdfast.streams.quarantine import Quarantine
from holdfast.streams.spec import StreamSpec

T = TypeVar("T")

FAILURES_LOGGED = 4
LOG_EVERY_S = 5.0
"""Seconds between logged failures of all streams; a call is logged after ``FAILURES_LOGGED`` in a row."""

SILENT_LOOK_S = 2.0
"""Seconds between reads of the store by owners that hold messages while the coordinator is silent: an owner
that commits nothing would not notice that another node has opened its stream."""

REMEMBERED_MAX = 100_000
"""The most streams that are remembered after this node owned them."""

Performer = Callable[[OwnedStream, int, Any], Coroutine[Any, Any, None] | None]
"""Carries out a command that an owner gave in a generation; returns the work that remains for the
background."""


def rules_of(spec: StreamSpec, limits: Limits, *, by_key: bool = False, fifo: bool = False) -> OwnerOptions:
    """Return the settings of a declared stream that the owner's state machine needs. ``by_key``: its queue
    knows keys. ``fifo``: it keeps the order of each key."""
    return OwnerOptions(
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


class OwnerRegistry:
    """The owners of a node. ``rules`` has the options of each stream's owners. Add the performers of all
    commands before the start."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, StreamSpec],
        rules: Mapping[str, OwnerOptions],
        deliveries: Mapping[str, DeliveryTracker],
        quarantine: Quarantine,
    ) -> None:
        self._host = host
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._specs = specs
        self._rules = rules
        self._deliveries = deliveries
        self._quarantine = quarantine
        self._performers: dict[type, Performer] = {}
        self._entries: dict[str, OwnedStream] = {}
        self._holding: dict[str, OwnedStream] = {}  # with messages: idle keys cost nothing
        self._alarms = Alarms(host.clock, self._entries)
        self.arriving: dict[str, ArrivingStream] = {}
        """The streams that are about to move here."""
        self.commits_known: dict[str, int] = {}
        """By key: the number of commits of a stream when this node last owned it."""
        self._survived: dict[str, Mapping[str, int]] = {}
        """By key: the openings by head that this node has outlived, as the last owner here counted them."""
        self._logged_at = -LOG_EVERY_S
        self._went = asyncio.Event()
        self._claims_asked = 0
        self.acting = {name for name, spec in specs.items() if spec.acts}
        """The streams that send effects or set timers, as declared or seen."""

    def perform_by(self, performers: Mapping[type, Performer]) -> None:
        """Add the performers of some kinds of commands."""
        self._performers.update(performers)

    @property
    def performed(self) -> set[type]:
        """The kinds of commands that have a performer."""
        return {*self._performers}

    def start(self) -> None:
        """Begin to serve alarms."""
        self._tasks.repeat(self._serve_alarms, self._clock, self._log)
        self._tasks.repeat(self._look_in_silence, self._clock, self._log)

    # -- events and commands ----------------------------------------------------------------------------

    def feed(self, entry: OwnedStream, event: Callable[[float], T]) -> T:
        """Give an event to an owner, at the monotonic time now, and carry out the commands that follow."""
        owner, agenda, now = entry.owner, entry.owner.agenda, self._clock.monotonic()
        agenda.wall_ahead_s = self._clock.wall() - now
        outcome = event(now)
        inbox, issued, agenda.commands = owner.inbox, agenda.commands, []
        is_holding = bool(inbox.held or inbox.unjudged or inbox.doubts.covered)
        for command in issued:
            # The answer to a command doesn't count in a later generation.
            work = self._performers[type(command)](entry, owner.generation, command)
            if work is not None:
                self._tasks.spawn(work)
        if entry.alone and owner.runs.at_risk != entry.alone:
            entry.alone = ""
            self._quarantine.leave()
        if is_holding:
            self._holding[entry.key] = entry
        elif self._holding.get(entry.key) is entry:
            del self._holding[entry.key]
        at = agenda.wake_at
        if at is not None and (entry.timer_at is None or at < entry.timer_at):
            self._alarms.set(entry, at)
        return outcome

    def answer(self, entry: OwnedStream, generation: int, event: Callable[[float], None]) -> None:
        """Give an answer to an owner, unless it belongs to an opening that is over."""
        if entry.owner.generation == generation:
            self.feed(entry, event)

    async def retry(
        self,
        entry: OwnedStream,
        generation: int,
        call: Callable[[], Awaitable[T]],
        retried: Collection[Retry] = (Retry.SAFE, Retry.SAME),
    ) -> T:
        """Repeat a call while it fails in a way that may be ``retried``, and the opening is current. A
        refused login is retried too: it had no effect, and people can correct it. Raises Fenced once the
        opening is over."""
        failures = 0
        while entry.owner.generation == generation:
            try:
                return await call()
            except HoldfastError as error:
                if error.retry not in retried and not isinstance(error, ConfigError | OperationRefused):
                    raise
                failures += 1
                self.note_failure(entry, error, failures)
            await self._clock.sleep(self._host.limits.retry.delay_s(failures, self._clock.random()))
        raise Fenced(f"{entry.key}: the opening is over", 0)

    def note_failure(self, entry: OwnedStream, error: HoldfastError, failures: int = FAILURES_LOGGED) -> None:
        """Log a failure that lasts, at intervals and for all streams together."""
        now = self._clock.monotonic()
        if failures >= FAILURES_LOGGED and now >= self._logged_at + LOG_EVERY_S:
            self._logged_at = now
            self._log.warning("service call failed", key=entry.key, error=str(error))
        else:
            self._log.debug("service call failed", key=entry.key, error=str(error))

    async def _serve_alarms(self) -> None:
        await self._alarms.serve(self._ring)

    def _ring(self, entry: OwnedStream, now: float) -> None:
        if (at := entry.owner.agenda.wake_at) is None:
            return
        if at <= now:
            self.feed(entry, entry.owner.ticked)
        else:
            self._alarms.set(entry, at)

    async def _look_in_silence(self) -> None:
        while True:
            await self._clock.sleep(SILENT_LOOK_S)
            if not self._host.membership.alive:
                for entry in self.with_messages():
                    if not entry.looks:
                        self._poke(entry)

    # -- the owned keys ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[OwnedStream]:
        return iter(list(self._entries.values()))

    def of(self, stream: str) -> list[OwnedStream]:
        return [entry for entry in self._entries.values() if entry.spec.name == stream]

    def with_messages(self) -> list[OwnedStream]:
        return list(self._holding.values())

    def get(self, key: str) -> OwnedStream | None:
        return self._entries.get(key)

    @property
    def held(self) -> int:
        """The number of messages in inboxes. Messages behind a gap don't count: the missing one must get
        in."""
        return sum(
            len(entry.owner.inbox) for entry in self._holding.values() if not entry.owner.runs.is_gapped
        )

    def is_gapped(self, key: str) -> bool:
        """Return True if the owner here holds messages behind a gap, or behind effects that no target
        takes."""
        entry = self._entries.get(key)
        return entry is not None and entry.owner.runs.is_gapped

    def waits_for_gap(self, key: str) -> bool:
        """Return True if the key's owner here waits for a missing message, as long as the timeout allows."""
        entry = self._entries.get(key)
        return entry is not None and entry.owner.runs.misses

    def is_reserved(self, key: str) -> bool:
        """Return True if the key's owner here has reserved it at the queue."""
        entry = self._entries.get(key)
        return entry is not None and entry.owner.backlog.is_reserved

    def holding(self, stream: str, *, opened: bool = False) -> Iterator[tuple[str, Held]]:
        """Yield the messages of ``stream`` whose deliveries must be extended, each with its key. With
        ``opened``, only messages of owners that have opened the stream and know of no other opening."""
        for entry in self._holding.values():
            if entry.spec.name != stream:
                continue
            owner = entry.owner
            is_open = owner.phase in (OwnerPhase.OWNER, OwnerPhase.MOVING) and not owner.suspended
            if is_open or not opened:
                for held in entry.owner.inbox.to_extend():
                    yield entry.plain_key, held

    def offer(self, key: str, held: Held) -> Literal["accepted", "full", "no", "unknown"]:
        """Offer a delivery to the key's owner here."""
        entry = self._entries.get(key)
        if entry is None:
            return "unknown"
        return self.feed(entry, partial(entry.owner.offer, held))

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
        tracker = self._deliveries[stream]
        arriving = self.arriving.get(key)
        brings = NOTHING_BROUGHT if arriving is None else arriving.brings
        owner = OwnerMachine(key, self._rules[stream], now, survived, tracker.reception, brings)
        owner.is_held_back = tracker.is_full
        entry = self._entries[key] = OwnedStream(spec, key, owner, claim, now)
        if arriving is not None:
            entry.stands_since = arriving.ready_at
        self.feed(entry, lambda _: None)
        if self._host.news.overtook(claim):
            self._vanished(entry)  # what it has begun to open doesn't count
        return True

    def forget(self, entry: OwnedStream) -> bool:
        """Forget an owner at its end; return False if a later one has its key."""
        if self._entries.get(entry.key) is not entry:
            return False
        del self._entries[entry.key]
        if survived := +entry.owner.blame.survived:
            remember(self._survived, entry.key, survived, REMEMBERED_MAX)
        if entry.last is not None:
            self.note_number(entry.key, entry.last.number)
        self.wake_waiting()
        return True

    def note_number(self, key: str, number: int) -> None:
        """Remember how many commits a stream had that is no longer owned here."""
        remember(self.commits_known, key, number, REMEMBERED_MAX)

    # -- claims -----------------------------------------------------------------------------------------

    def vanished(self) -> None:
        """Note that the membership is lost. Each owner accepts messages again once it has found its own epoch
        at the store."""
        for entry in self:
            self._vanished(entry)

    def _vanished(self, entry: OwnedStream) -> None:
        self.feed(entry, lambda _: entry.owner.vanished())

    def claim_changed(self, claim: Claim) -> None:
        """Note that a claim has changed at the coordinator. If its owner is here and isn't giving it up, the
        owner checks what happened."""
        entry = self._entries.get(claim.key)
        if entry is None or entry.owner.leaving or claim.version <= entry.claim.version:
            return
        if claim.member == self._host.membership.id:
            entry.claim = claim  # it is ours again
        else:
            self._vanished(entry)

    async def check_claims(self) -> None:
        """Ask the coordinator which claims are ours, as changes may have been missed, until it answers or
        this is called again. OwnerRegistry of other keys check what happened."""
        self._claims_asked += 1
        number, tries = self._claims_asked, 0
        before: dict[str, OwnedStream] = {}
        ours: set[str] | None = None
        while ours is None:
            before = dict(self._entries)
            try:
                claims = await self._host.coordinator.claims(self._host.membership.id)
                ours = {claim.key for claim in claims}
            except HoldfastError as error:
                self._log.debug("cannot read claims", error=str(error))
                tries += 1
                await self._clock.sleep(self._host.limits.retry.delay_s(tries, self._clock.random()))
                if number != self._claims_asked:
                    return
        for key, entry in before.items():
            if key not in ours and self._entries.get(key) is entry and not entry.owner.leaving:
                self._vanished(entry)

    # -- what happens to owners ---------------------------------------------------------------------------

    def poke(self, key: str) -> None:
        """Note that an operator has changed the stream at the store."""
        if (entry := self._entries.get(key)) is not None:
            self._poke(entry)

    def _poke(self, entry: OwnedStream) -> None:
        self.feed(entry, lambda _: entry.owner.poked())

    def nudge(self, key: str) -> bool:
        """Note that the store says that a stream is due; return False if it isn't owned here."""
        if (entry := self._entries.get(key)) is None:
            return False
        self.feed(entry, entry.owner.nudged)
        return True

    def archive_changed(self, stream: str) -> None:
        """Hold the owners of a stream back while too much waits for its archive."""
        self._tasks.spawn(self._hold_back(stream))  # one of these owners may be the caller

    async def _hold_back(self, stream: str) -> None:
        for entry in self.of(stream):
            self.feed(entry, partial(entry.owner.hold_back, self._deliveries[stream].is_full))

    def reservation_lost(self, stream: str, key: str) -> None:
        """Note that the queue has no reservation of a plain key any more."""
        entry = self._entries.get(self._specs[stream].full_key(key))
        if entry is not None:
            self.feed(entry, entry.owner.reservation_lost)

    def move(self, key: str, target: str, *, knows_deep: bool = False) -> bool:
        """Begin to move an owned stream to the membership ``target``; if that is empty, release it.
        ``knows_deep``: the target knows that the key is reserved."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        return self.feed(entry, lambda now: entry.owner.move(target, now, knows_deep=knows_deep))

    async def gone(self, key: str) -> None:
        """Wait until ``key`` is no longer owned here, or its move has failed."""
        while (entry := self._entries.get(key)) is not None and entry.owner.phase is not OwnerPhase.OWNER:
            await self._went.wait()

    def wake_waiting(self) -> None:
        """Wake up the callers of ``gone``."""
        self._went.set()
        self._went = asyncio.Event()

    def give_up_all(self) -> None:
        """Finish the running messages, commit, and release every key."""
        for entry in self:
            self.move(entry.key, "")

    def drop_all(self) -> None:
        """Drop every key at once. Held messages go back to their senders and to the queue."""
        for entry in self:
            self._drop(entry)

    def _drop(self, entry: OwnedStream) -> None:
        self.feed(entry, lambda _: entry.owner.drop())
