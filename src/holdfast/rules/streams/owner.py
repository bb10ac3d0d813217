"""The owner of one key, as a state machine: events in, commands out.

============  ===============================================================================
CLAIMED       the claim is ours; messages are held unjudged. Peek, open at that epoch: OPENING
OPENING       opened: OWNER, judge what was held. Refused or unknown, and the claim still ours:
              CLAIMED, else DROPPED
OWNER         deliveries are judged by the last answered checkpoint; the head runs, results
              are appended and committed; an accepted commit settles (dead letters, then
              deletes, then reports)
MOVING        nothing new is run; once all is answered: TRANSFERRING, or RELEASING if there is
              nobody to take it
TRANSFERRING  the claim is handed over. Done: hand off what is held, DROPPED; target gone:
              OWNER; refused: DROPPED
RELEASING     idle, the claim is given up; what came meanwhile goes back to the router, DROPPED
DROPPED       over; everything held goes back to its senders
============  ===============================================================================

While a commit is in flight the handler may go on, but no other commit is composed. A commit of unknown
outcome is repeated unchanged. A refused one means that another opening exists: everything since the answered
checkpoint is then judged again under a new epoch, or left to the new owner.

Before a head's handler first runs in an opening, the head is marked at the store: by a ``Start``, which is
counted, or by the commit before (``starting``). The mark stays until a commit after which nothing runs, so
one mark covers a steady stream. An opening that finds a mark is cautious, because its predecessor died at
work. The messages that may have been begun under that mark run one at a time, each counted by its own name,
and one that was begun too often is skipped. Where messages have no order, every message that may have been
delivered before runs in this way.

A commit may hold effects, which are handed over once it is answered, and timers. A timer that is due is a
head like a message: it is marked, tried, skipped and committed as one, and takes turns with messages.

What an owner has no room for stays in the queue, or goes back there; ``backlog`` decides when the owner takes
it. Before such a stream moves, the owner puts what it holds back too, and the next owner takes it in order.

A stream that uses models has them loaded first (``LoadModels``), before any start is counted. While a model
doesn't load, the stream waits unchanged, because no message is to blame.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec

from holdfast.common.acts import Acts, Effect, hops_of
from holdfast.common.due import AHEAD_S
from holdfast.common.effects import UNCHANGED, EffectLimits, EffectMaker, Effects, PendingReport
from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import NO_RUN, TIMER_RUN, Life, Place, Span, is_timer_name
from holdfast.common.reception import Reception
from holdfast.common.retry import Backoff
from holdfast.common.traceparent import checked
from holdfast.rules.streams.backlog import Backlog, Order, Unreserve
from holdfast.rules.streams.commands import (
    CheckClaim,
    Command,
    Dropped,
    HandOff,
    HandOver,
    LoadModels,
    Open,
    Peek,
    PutBack,
    Reclaim,
    RefuseRequests,
    Release,
    Return,
    Run,
    Settle,
    Start,
    Transfer,
    Write,
)
from holdfast.rules.streams.ledger import (
    COUNT_MAX,
    EARLIEST,
    Aside,
    Checkpoint,
    Commit,
    Result,
    RunLog,
    Timer,
)
from holdfast.rules.streams.sequencer import (
    ALWAYS,
    Carried,
    Composed,
    Gap,
    Ready,
    Rules,
    Sequencer,
    Verdict,
)
from holdfast.rules.streams.timers import REARM_S, TIMERS, Timers, place_of

ALONE_OPENINGS = 2
"""A head that so many openings have begun and not finished runs while no other suspect runs on its node."""

NOTHING = Place(TIMER_RUN, 0, "nothing")
"""Marked instead of a head that waits in its last turn. A start of another head takes this opening off the
head's count."""

REACH = 4
"""How many calls of the slot a mark may cover: one whose commit's answer was lost, one in the batch, one that
made the batch larger, and one in the slot. The message that killed an opening is at most that far behind the
marked one."""

LOOK_S = 30.0
"""How often an owner that is parked, or holds at a gap, reads the store: an operator who changed the stream
there may not have been able to notify it."""

RUN_LIMIT = 32
"""The most messages in one call of a slot, where each is to be committed soon anyway."""


DROP_AFTER_S = 0.25
"""How long effects that were taken wait for another reason to commit, before a commit drops them."""

DUE_GRACE_S = 10.0
"""How long after its time something must still be due before another node looks for the owner: while the
owner lives, it serves its timers and effects itself."""

DUE_STEP_S = 5.0
"""By how much the stored due time may be too early before it is written again."""

WALL_LOOK_S = 60.0
"""How often the wall clock is looked at while a timer waits for it: the clock may have been set."""

SET_ASIDE = (Verdict.LATE, Verdict.FAR)
"""The verdicts of messages that don't run. A commit records such a message before it becomes a dead
letter."""


class OwnerPhase(enum.Enum):
    """The phase of an owner; the table above says what happens in each."""

    CLAIMED = "claimed"
    OPENING = "opening"
    OWNER = "owner"
    MOVING = "moving"
    TRANSFERRING = "transferring"
    RELEASING = "releasing"
    DROPPED = "dropped"


class OwnerRules(msgspec.Struct, frozen=True):
    """The settings of a stream that its owner needs; see ``App.stream``."""

    order: Rules
    max_tries: int = 3
    backoff: Backoff = Backoff()
    max_starts: int = 5
    on_failure: Literal["skip", "park"] = "skip"
    on_late: Literal["dead-letter", "discard"] = "dead-letter"
    checkpoint_every: int = 1
    checkpoint_after_s: float = 0.02
    idle_timeout_s: float = 60.0
    max_state_bytes: int = 8 << 20
    needs_models: bool = False
    effects: EffectLimits = EffectLimits()
    max_timers: int = TIMERS
    by_key: bool = False
    fifo: bool = False

    @property
    def keeps_overflow(self) -> bool:
        """Return True if the queue keeps what a parked stream has no room for, in order."""
        return self.by_key or self.fifo


class MovedFrom(msgspec.Struct, frozen=True):
    """The things that a stream that moves here brings along: whether its key is reserved, and its wait for a
    missing message."""

    deep: bool = False
    carried: Carried | None = None


NOTHING_BROUGHT = MovedFrom()
"""Brought along by a stream that didn't move here."""


StandstillKind = Literal[
    "room",
    "opening",
    "membership",
    "moving",
    "parked",
    "slot",
    "model",
    "store",
    "archive",
    "effects",
    "retry",
    "gap",
    "suspect",
]


class Standstill(msgspec.Struct, frozen=True):
    """The reason why a stream waits. ``until`` is when the wait ends and ``since`` when it began, in
    monotonic seconds, if that is known."""

    kind: StandstillKind
    text: str
    until: float | None = None
    since: float | None = None


class BatchEntry(msgspec.Struct, frozen=True):
    """One entry of a batch: what the next commit records of a message or a gap."""

    kind: Literal["done", "skip", "late", "far", "parked", "gap", "park"]
    held: Held | None = None
    result: bytes | None = None
    reason: str = ""
    run: int = 0
    span: Span | None = None
    acts: Acts | None = None


class Covered:
    """The parts of a commit that tell of the entries which it covers: results and reasons, each under its
    message's name, the gaps, and how many messages were handled and skipped."""

    __slots__ = ("aside", "done", "gaps", "results", "skipped")

    def __init__(self, entries: Iterable[BatchEntry]) -> None:
        self.results: list[Result] = []
        self.aside: list[Aside] = []
        self.gaps: list[Gap] = []
        self.done = self.skipped = 0
        for entry in entries:
            if entry.kind == "done":
                self.done += 1
            elif entry.held is not None:
                self.aside.append(Aside(entry.held.place.name, entry.reason))
                self.skipped += entry.kind == "skip"
            elif entry.span is not None:
                self.gaps.append(Gap(entry.run, entry.span))
                self.skipped += entry.span.last - entry.span.first + 1
            if entry.held is not None and entry.result is not None:
                self.results.append(Result(entry.held.place.name, entry.result))


class Owner:
    """The owner of one key. Call an event method, then carry out what ``commands`` returns; call ``ticked``
    at ``wake_at``.

    ``now`` is monotonic seconds. A command belongs to the ``generation`` in which it was taken. Its answer
    must not be given in a later generation, except for ``settled`` and the answers to ``HandOver``. Set
    ``wall_ahead_s``, by how much the wall clock is ahead of ``now``, before every event."""

    __slots__ = (
        "_asked_at",
        "_backlog",
        "_batch",
        "_batch_at",
        "_begun",
        "_busy_at",
        "_carried",
        "_cautious",
        "_commit",
        "_composed",
        "_counted",
        "_covered",
        "_dirty",
        "_due",
        "_effects",
        "_equipped",
        "_firing",
        "_firings",
        "_flying",
        "_found_mark",
        "_heard_at",
        "_held",
        "_loaded",
        "_loading",
        "_look_at",
        "_looked",
        "_looking",
        "_looks_again",
        "_lost_effects",
        "_marked",
        "_next_head",
        "_nudged",
        "_out",
        "_putting_back",
        "_recalled",
        "_reception",
        "_refused",
        "_resting",
        "_run_cap",
        "_run_max",
        "_run_now",
        "_running",
        "_seq",
        "_settling",
        "_starting",
        "_stored",
        "_survived",
        "_suspect",
        "_target",
        "_target_knows",
        "_timer_first",
        "_timers",
        "_timers_changed",
        "_timers_stored",
        "_unjudged",
        "epoch",
        "generation",
        "is_held_back",
        "key",
        "number",
        "obstacle",
        "parked",
        "phase",
        "rules",
        "state",
        "state_version",
        "suspended",
        "wake_at",
        "wall_ahead_s",
    )

    def __init__(
        self,
        key: str,
        rules: OwnerRules,
        now: float,
        survived: Mapping[str, int] | None = None,
        reception: Reception = ALWAYS,
        moved_from: MovedFrom = NOTHING_BROUGHT,
    ) -> None:
        self.key = key
        self.rules = rules
        self.phase = OwnerPhase.CLAIMED
        self.generation = 0
        self.suspended = False
        self.is_held_back = False
        self.wake_at: float | None = None
        self.wall_ahead_s = 0.0
        self.epoch = 0
        self.number = 0
        self.parked = ""
        self.state: bytes | None = None
        self.state_version = 0
        self._reception = reception
        self._run_max = max(RUN_LIMIT, rules.checkpoint_every)
        self._carried = moved_from.carried
        self._backlog = Backlog(
            by_key=rules.by_key, is_deep=moved_from.deep, by_turn=rules.order.kind == "absent"
        )
        self._seq = Sequencer(rules.order, Checkpoint(key), reception, self._backlog)
        self._held: dict[Place, Held] = {}
        self._unjudged: dict[Place, Held] = {}
        self._covered: dict[Place, tuple[Held, Verdict]] = {}  # until the store shows that it still knows it
        self._out: list[Command] = [Peek()]
        self._target = ""
        self._target_knows = False  # that the key is reserved
        self._putting_back = False
        self._settling = 0
        self._busy_at = self._heard_at = now
        self._run_now = 0
        # By head: how many openings that began it ended without the death of this node.
        self._survived = Counter(survived or {})
        self._forget_opening()

    def _forget_opening(self) -> None:
        self._loaded = False
        self._equipped = not self.rules.needs_models
        self._loading = False
        self.obstacle = ""
        self._dirty = self._recalled = False
        self._running: tuple[Place, ...] = ()
        self._starting: Place | None = None
        self._asked_at = 0.0  # when the state store was asked for the start or the commit under way
        self._marked = ""
        self._counted: Place | None = None
        self._suspect = ""
        self._next_head = ""
        self._found_mark = False
        self._cautious = 0  # so many more messages run one at a time
        self._begun: dict[str, int] = {}
        self._refused = 0
        self._stored: tuple[bytes | None, int] = (None, 0)
        self._run_cap = 0
        self._look_at = 0.0
        self._looked = 0
        self._looking: set[Place] | None = None  # those of the covered that a look under way decides
        self._looks_again = False
        self._batch: list[BatchEntry] = []
        self._batch_at = 0.0
        self._flying: list[BatchEntry] = []
        self._commit: Commit | None = None
        self._composed: Composed | None = None
        self._effects = Effects(self.rules.effects)
        self._lost_effects: tuple[Effect, ...] = ()
        self._timers = Timers()
        self._timers_stored: tuple[Timer, ...] = ()
        self._timers_changed = False
        self._timer_first = self._resting = False
        self._firing: Held | None = None
        self._firings: dict[Place, Held] = {}  # until their commit is answered
        self._due = 0.0
        self._nudged = False

    def commands(self) -> list[Command]:
        """Return the commands to carry out now, in order, and empty the list."""
        out, self._out = self._out, []
        return out

    # -- what the shell may ask -----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of messages held, in any state."""
        return len(self._held) + len(self._unjudged) + len(self._covered)

    @property
    def gapped(self) -> bool:
        """True while the waiting messages are behind a missing one, or behind effects that nobody takes."""
        return bool(self._seq.inbox) and not self._running and (not self._next_head or self._effects.is_full)

    def leaves_behind(self, now: float) -> tuple[bool, tuple[str, float] | None]:
        """Return what the next owner must know if the stream moves: whether its key is reserved, and what it
        waits for and for how many seconds."""
        return self.is_reserved, self._seq.waited(now)

    @property
    def waits_for_gap(self) -> bool:
        """True while the stream waits for a missing message, as long as the timeout allows."""
        return self._misses

    @property
    def pending_effects(self) -> PendingReport | None:
        """The effects that no target has taken yet; None if there are none."""
        return self._effects.report()

    @property
    def running(self) -> str:
        """The first message that its handler is called for; "" if it isn't called."""
        return self._running[0].name if self._running else ""

    @property
    def needs_slot(self) -> bool:
        """True while its slot is called, which may work at others first."""
        return bool(self._running) or self._loading

    def standstill(self) -> Standstill | None:
        """Return what the stream waits for; None while its handler works, or while there is nothing to do."""
        if self.parked:
            return Standstill("parked", f"parked: {self.parked}")
        if not self.waiting or self._running:
            return None
        if self.suspended:
            return Standstill("membership", "its node's membership or claim was lost, and is looked into")
        if self.phase in (OwnerPhase.CLAIMED, OwnerPhase.OPENING):
            return Standstill("opening", "the state store or the coordinator, to open it")
        if self.phase is not OwnerPhase.OWNER:
            return Standstill("moving", f"its move to {self._target}" if self._target else "its release")
        if self.obstacle:
            return Standstill("model", self.obstacle)
        if self._loading:
            return Standstill("model", "its models, which are being loaded")
        if self._commit is not None or self._starting is not None:
            text = "the state store, which has not answered yet"
            return Standstill("store", text, since=self._asked_at)
        if self.is_held_back:
            return Standstill("archive", "its archive, which has yet to take what is committed")
        if self._effects.is_full:
            pending = self._effects.report()
            assert pending is not None
            text = f"targets that take none of its {pending.count} effects, such as {pending.target}"
            text += f": {pending.error}" if pending.error else ""
            return Standstill("effects", text)
        if (missing := self._seq.missing()) is not None:
            return Standstill("gap", missing.text, missing.until, missing.since)
        for held in self._held.values():
            if held.tries and held.place.name == self._next_head:
                text = f"the next try of {held.place.name}, which failed: {held.error}"
                return Standstill("retry", text, held.retry_at)
        return None

    @property
    def leaving(self) -> bool:
        """True while the claim is being transferred or released, so that a change of the claim is
        expected."""
        return self.phase in (OwnerPhase.TRANSFERRING, OwnerPhase.RELEASING)

    @property
    def at_risk(self) -> str:
        """The head that is blamed if the node dies now, or "". It is at risk from its Start until the store
        has answered the commit that covers it, or that takes its mark away."""
        if self._starting not in (None, NOTHING):
            return self._starting.name
        counted = self._counted
        return counted.name if counted is not None and self._is_held(counted) else ""

    def _is_held(self, place: Place) -> bool:
        return place in (self._firings if place.run == TIMER_RUN else self._held)

    def holding(self) -> Iterator[Held]:
        """Yield the messages whose deliveries must be extended. Left out are those that wait for a message
        which the queue hasn't delivered: it delivers that one only when it may deliver these again too."""
        behind = set(self._seq.behind_gap())
        for held in self._all_held():
            if held.place not in behind:
                yield held

    def _all_held(self) -> tuple[Held, ...]:
        covered = [held for held, _ in self._covered.values()]
        return (*self._held.values(), *covered, *self._unjudged.values())

    # -- deliveries -----------------------------------------------------------------------------------------

    def offer(self, held: Held, now: float) -> Literal["accepted", "full", "no"]:
        """Take a delivery. ``full``: there is no room now. ``no``: this node may no longer be the owner."""
        if self.phase is OwnerPhase.DROPPED or self.suspended:
            return "no"
        self._busy_at = now
        if self.phase in (OwnerPhase.OWNER, OwnerPhase.MOVING):
            self._place_in_run(held, now)
        if self._joins(held):
            self._advance(now)
            return "accepted"
        taken = self._take_in(held, now)
        if not taken:
            self._come_back(held)
            self._turn_away(held, now)
        self._advance(now)
        return "accepted" if taken else "full"

    def _take_in(self, held: Held, now: float) -> bool:
        """Take a new delivery in; return False if there is no room."""
        if self.phase in (OwnerPhase.OWNER, OwnerPhase.MOVING):
            is_leaving = self.phase is OwnerPhase.MOVING and self.is_reserved and not _is_request(held)
            return not is_leaving and self._judge(held, now)
        if len(self._unjudged) >= self.rules.order.inbox_limit:
            return False
        self._unjudged[held.place] = held
        return True

    @property
    def is_reserved(self) -> bool:
        """True while the queue keeps for this owner what finds no room here."""
        return self._backlog.is_reserved

    def _turn_away(self, held: Held, now: float) -> None:
        """Note that a message finds no room. What the queue keeps for this owner comes in order, so a dense
        stream, which waits for each seq anyhow, awaits nothing then."""
        if _is_request(held):
            return  # its client asks again, or not
        is_awaited = self.rules.order.kind != "dense" or not self.is_reserved
        self._backlog.turned_away(self._order_of(held) if is_awaited else None, now)

    def _order_of(self, held: Held) -> Order | None:
        """Return the place of a message in the order of the stream; None if it has none yet."""
        if self.rules.order.kind == "absent":
            return None if held.turn is None else (0, held.turn)
        return None if self.rules.order.restart_after_s is not None else (held.place.run, held.place.seq)

    def _joins(self, held: Held) -> bool:
        """Merge another delivery of a message that is held; return False if it isn't."""
        standing = self._held.get(held.place) or self._unjudged.get(held.place)
        if standing is None and held.place in self._covered:
            standing, _ = self._covered[held.place]
            if not _is_request(held):
                self._doubt(held.place)
        if standing is None:
            return False
        if self._backlog.away:
            self._backlog.came(self._order_of(held))
        self._merge(standing, held)
        return True

    def _merge(self, standing: Held, again: Held) -> None:
        """Add the receipt of another delivery of a held message. All its deliveries are deleted after the
        commit."""
        if standing.after is not None:  # the message before it may be finished by now
            standing.after = None if again.after is None else min(standing.after, again.after)
        self._seq.loosen(standing.place, standing.after)
        known = {receipt.receipt for receipt in standing.receipts}
        standing.receipts.extend(receipt for receipt in again.receipts if receipt.receipt not in known)
        for receipt in again.receipts:
            if receipt.receipt in known and receipt.sender:
                self._adopt(standing, receipt)

    @staticmethod
    def _adopt(standing: Held, receipt: Receipt) -> None:
        """Update the sender of a delivery that is offered again, perhaps by another node: reports go to the
        newest one."""
        for known in standing.receipts:
            if known.receipt == receipt.receipt:
                known.sender, known.number, known.reply_to = receipt.sender, receipt.number, receipt.reply_to

    def _place_in_run(self, held: Held, now: float) -> None:
        """Give a message without a run the run that the owner counts. A lower seq begins the next run if no
        message came for ``restart_after_s`` and none waits. A repeat of the last seq doesn't."""
        after_s = self.rules.order.restart_after_s
        if after_s is None:
            return
        self._run_now = max(self._run_now, self._run_answered)
        if held.place.run != NO_RUN:
            self._go_on_from(held)
            return
        held.counted = True
        held.place = Place(self._run_now, held.place.seq)
        if self._seq.has_fallen(held.place) and self._is_quiet(now - after_s):
            self._run_now += 1
            self._seq.quiet_run = self._run_now
            held.place = Place(self._run_now, held.place.seq)

    def _go_on_from(self, held: Held) -> None:
        """Continue with a run that was counted before and that no commit has recorded yet."""
        if held.counted and held.place.run > self._run_now:
            self._run_now = self._seq.quiet_run = held.place.run

    @property
    def _run_answered(self) -> int:
        return self._seq.log.run if self._seq.log is not None else 0

    def _is_quiet(self, since: float) -> bool:
        return not self._held and self._heard_at <= since

    def _come_back(self, held: Held) -> None:
        """Undo what was decided about a message, so that it can be judged again. Only a new run that no
        commit has recorded is kept: a commit may have ended the quiet time that showed the new run."""
        held.come_back()
        if held.counted and held.place.run <= self._run_answered:
            held.place = Place(NO_RUN, held.place.seq)

    def _judge(self, held: Held, now: float, *, just_opened: bool = False) -> bool:
        if self._backlog.away:
            self._backlog.came(self._order_of(held))
        verdict = self._seq.judge(held.place)
        if verdict is Verdict.NEW:
            rejected = self._seq.offer(held.place, held.after, held.turn)
            if rejected != held.place:
                self._heard_at = now
                held.become(Life.WAITING)
                self._held[held.place] = held
                if rejected is not None:
                    self._evict(self._held.pop(rejected), now)
                return True
            stays = self.rules.keeps_overflow and not _is_request(held)  # in the queue
            if not self.parked or self._crowded or stays:
                return False
            self._held[held.place] = held
            self._append(BatchEntry("parked", held, reason=f"parked: {self.parked}"), now)
        elif verdict in SET_ASIDE:
            if self._crowded:
                return False
            self._held[held.place] = held
            self._append(self._set_aside(held, verdict), now)
        elif just_opened or _is_request(held):  # of a request there is nothing to delete
            self._settle_judged(held, verdict)
        elif len(self._covered) >= self.rules.order.inbox_limit:
            return False
        else:
            self._covered[held.place] = held, verdict
            self._doubt(held.place)
        return True

    def _doubt(self, place: Place) -> None:
        """Have the store show that it still knows the commit that covers a message. A standby that has taken
        over may not have had it, and then neither the deletion of the message, which is to run again."""
        if self._looking is None:
            self._look()
        else:
            self._looking.discard(place)

    def _set_aside(self, held: Held, verdict: Verdict) -> BatchEntry:
        if verdict is Verdict.LATE:
            return BatchEntry("late", held, reason="late: the stream had passed this place")
        at, most = self._seq.stands_at(held.place), self.rules.order.max_jump
        reason = f"malformed: seq {held.place.seq} is more than {most} (max_jump) beyond {at}"
        return BatchEntry("far", held, reason=f"{reason}, where the stream stood")

    @property
    def _crowded(self) -> bool:
        """True while the store is slow to answer and the next commit is already full."""
        return self._commit is not None and len(self._batch) >= self.rules.order.inbox_limit

    def _evict(self, held: Held, now: float) -> None:
        """Give back a message that finds no room any more."""
        self._turn_away(held, now)
        self._come_back(held)
        self._out.append(Return((held,)))

    def _settle_judged(self, held: Held, verdict: Verdict) -> None:
        held.become(Life.COMMITTED)
        held.aside = held.skipped_before if verdict is Verdict.SKIPPED else ""
        letters = (PendingDeadLetter(held.aside, held),) if held.aside else ()
        self._settle(letters, (held,), duplicate=True)

    def _settle(
        self, letters: tuple[PendingDeadLetter, ...], messages: tuple[Held, ...], *, duplicate: bool = False
    ) -> None:
        self._settling += 1
        self._out.append(Settle(letters, messages, duplicate))

    def _append(self, entry: BatchEntry, now: float) -> None:
        if entry.held is not None:
            entry.held.become(Life.APPENDED)
        if entry.kind in ("done", "skip"):
            self._cautious = max(0, self._cautious - 1)
        self._change_timers(entry, now)
        self._resting = False
        if not self._batch:
            self._batch_at = now
        self._batch.append(entry)

    def _change_timers(self, entry: BatchEntry, now: float) -> None:
        rearmed_at = 0.0
        if entry.held is not None and entry.held.place.run == TIMER_RUN:
            self._timers.fired(entry.held)
            self._firing = None
            self._timers_changed = True
            rearmed_at = now + self.wall_ahead_s + REARM_S
        if entry.acts is not None and entry.acts.timers:
            self._timers.change(entry.acts.timers, rearmed_at)
            self._timers_changed = True

    # -- opening --------------------------------------------------------------------------------------------

    def peeked(self, checkpoint: Checkpoint | None, now: float) -> None:
        """Answer to Peek."""
        epoch = checkpoint.epoch if checkpoint else 0
        if self.phase is OwnerPhase.CLAIMED:
            self.phase = OwnerPhase.OPENING
            self._out.append(Open(epoch))
        elif checkpoint is None or epoch != self.epoch or checkpoint.number < self._looked:
            self.fenced(now)
        else:
            known, self._looking = self._looking or set(), None
            for place in [place for place in self._covered if place in known]:
                self._settle_judged(*self._covered.pop(place))
            if self._covered or self._looks_again:
                self._look()
            self._advance(now)

    def opened(
        self, checkpoint: Checkpoint, now: float, quiet_s: float = 0.0, *, recalled: bool = False
    ) -> None:
        """Answer to Open: the stream is ours under ``checkpoint.epoch``; its last message came ``quiet_s``
        ago. ``recalled``: the store has lost the checkpoint, and this one is what the owner remembered."""
        self.phase = OwnerPhase.OWNER
        self.epoch, self.number, self.parked = checkpoint.epoch, checkpoint.number, checkpoint.parked
        self.state, self.state_version = self._stored = checkpoint.state, checkpoint.state_version
        self._dirty = self._recalled = recalled
        self._seq = Sequencer(self.rules.order, checkpoint, self._reception, self._backlog, self._carried)
        self._carried = None
        self._run_now = 0
        self._heard_at = now - quiet_s
        begun = {head.head: head.openings for head in checkpoint.suspects}
        if checkpoint.started is not None:
            self._found_mark, self._suspect = True, checkpoint.started.head
            self._cautious = REACH * self._limit()
            begun[checkpoint.started.head] = checkpoint.started.openings
        self._survived = Counter({head: self._survived[head] for head in begun})
        self._begun = {head: openings - self._survived[head] for head, openings in begun.items()}
        self._effects = Effects(self.rules.effects, () if recalled else checkpoint.effects)
        self._lost_effects = checkpoint.effects if recalled else ()
        self._timers = Timers(self.epoch, checkpoint.timers)
        self._timers_stored, self._due = checkpoint.timers, checkpoint.due
        self._timers_changed = recalled
        self._nudged = recalled or (not self._due and checkpoint.acts)
        self._busy_at = now
        self._look_at = now + LOOK_S
        self._judge_held(now, just_opened=True)
        self._advance(now)

    def hold_back(self, is_held_back: bool, now: float) -> None:
        """Begin no further message, because too much that is committed waits for its archive; or go on. A
        node receives nothing meanwhile, so the wait for a missing message begins anew."""
        self.is_held_back = is_held_back
        self._seq.wait_anew()
        self._advance(now)

    def nudged(self, now: float) -> None:
        """The store says that the stream is due, so it is to be told when that will be so again."""
        if self.phase is OwnerPhase.OWNER:
            self._nudged = True
            self._advance(now)

    def _judge_held(self, now: float, *, just_opened: bool = False) -> None:
        unjudged, self._unjudged = self._unjudged, {}
        arrived = list(unjudged.values())
        if self.rules.order.restart_after_s is not None:
            arrived.sort(key=lambda held: held.place)  # low numbers show a new run, so they come first
            self._run_now = max(self._run_now, self._run_answered)
            for held in arrived:
                self._go_on_from(held)
        for held in arrived:
            self._place_in_run(held, now)
            # Its place was different before its run was known.
            if not self._joins(held) and not self._judge(held, now, just_opened=just_opened):
                self._evict(held, now)

    def open_failed(self, now: float) -> None:
        """Answer to Open: refused, or of unknown outcome."""
        self.phase = OwnerPhase.CLAIMED
        self._out.append(CheckClaim())

    def claim_checked(self, ours: bool, now: float) -> None:
        """Answer to CheckClaim and Reclaim."""
        if not ours:
            self.drop()
            return
        self.suspended = False
        if self.phase is OwnerPhase.CLAIMED:
            self._out.append(Peek())
        self._advance(now)  # no effect was handed over meanwhile

    def fenced(self, now: float) -> None:
        """The store has refused a write, because another opening exists. Open again if the claim is still
        ours."""
        self._outlive()
        covered = [held for held, _ in self._covered.values()]
        for held in (*self._held.values(), *covered):
            held.tries, held.spent, held.retry_at = 0, False, 0.0
            self._come_back(held)
        unjudged = self._unjudged
        self._unjudged = {held.place: held for held in (*self._held.values(), *covered)}
        for held in unjudged.values():
            if held.place in self._unjudged:  # it had another name as long as its run was known
                self._merge(self._unjudged[held.place], held)
            else:
                self._unjudged[held.place] = held
        self._held, self._covered = {}, {}
        self._forget_opening()
        self._backlog.reopened()
        self._putting_back = False
        self.generation += 1
        self.phase = OwnerPhase.CLAIMED
        self._out.append(CheckClaim())

    def vanished(self) -> None:
        """The claim or the membership is lost: accept nothing until the store shows our epoch."""
        if self.phase is OwnerPhase.DROPPED:
            return
        self.suspended = True
        self._backlog.reopened()  # a reservation is of one membership
        if self.phase in (OwnerPhase.CLAIMED, OwnerPhase.OPENING):
            self.phase = OwnerPhase.CLAIMED
            self.generation += 1  # answers on their way belong to an older claim
            self._out.append(Reclaim(None))
        else:
            self._out.append(Reclaim(self.epoch))

    def poked(self) -> None:
        """An operator has changed the stream at the store, which is read again."""
        if self.phase is OwnerPhase.OWNER:
            self._look()

    def _look(self) -> None:
        """Read the store: another owner may have opened the stream, or the store may have lost a commit."""
        self._looks_again = self._looking is not None
        if self._looking is not None:
            return
        self._looking, self._looked = set(self._covered), self.number
        self._out.append(Peek())

    def _outlive(self) -> None:
        """Note that this opening ends although its node lives."""
        if self._counted is not None and self._is_held(self._counted):
            self._survived[self._counted.name] += 1

    @property
    def survived(self) -> Mapping[str, int]:
        """By head: how many openings of this node began it and ended without the node's death."""
        return +self._survived

    def drop(self) -> None:
        """End this owner. Held messages go back."""
        if self.phase is OwnerPhase.DROPPED:
            return
        self._outlive()
        self._leave(Return(self._all_held()))

    def _leave(self, last: Return | HandOff) -> None:
        self.phase = OwnerPhase.DROPPED
        self.generation += 1
        self.wake_at = None
        self._held, self._covered, self._unjudged = {}, {}, {}
        self._forget_opening()
        for held in last.messages:
            self._come_back(held)
        if last.messages or isinstance(last, HandOff):
            self._out.append(last)
        if self._backlog.may_stand and not (isinstance(last, HandOff) and self._target_knows):
            self._out.append(Unreserve())
        self._out.append(Dropped())

    # -- running --------------------------------------------------------------------------------------------

    def ticked(self, now: float) -> None:
        """``wake_at`` has come."""
        self._advance(now)

    def _advance(self, now: float) -> None:
        self.wake_at = None
        if self.phase not in (OwnerPhase.OWNER, OwnerPhase.MOVING):
            return
        self._plan_run(now)
        if self._effects.is_full:
            self._refuse_requests(now)
        if not self._effects.is_idle:
            self._plan_hand_over(now)
        self._plan_commit(now)
        if self._backlog.is_used:
            self._plan_backlog(now)
        if not (self._running or self._batch or self._commit is not None or self._starting is not None):
            self._plan_rest(now)

    # -- the backlog ----------------------------------------------------------------------------------------

    def _plan_backlog(self, now: float) -> None:
        if self.phase is not OwnerPhase.OWNER or self.suspended:
            return
        self._busy_at = now
        step = self._backlog.plan(
            now,
            waiting=self.waiting,
            limit=self.rules.order.inbox_limit,
            missing=self._misses and not self._effects.is_full,
            may_take=not (self.parked or self.obstacle or self.is_held_back),
        )
        if step is not None:
            self._out.append(step)
        elif (at := self._backlog.wake_at) is not None and at > now:
            self._wake(at)

    @property
    def _misses(self) -> bool:
        """True while messages wait for one that isn't among them."""
        runs = bool(self._running) and self._running[0].run != TIMER_RUN
        return bool(self._seq.inbox) and not runs and self._seq.missing() is not None

    def reserved(self, granted: bool, now: float) -> None:
        """Answer to Reserve. If it is refused, a later opening may have the key."""
        self._backlog.reserved(granted, now)
        if not granted:
            self._look()
        self._advance(now)

    def took(self, count: int, highest: int, more: bool, now: float) -> None:
        """Answer to Take: ``count`` messages were offered, up to the turn ``highest``. ``more``: the queue
        may have further ones."""
        self._backlog.took(count, highest, more, now)
        self._advance(now)

    def reservation_lost(self, now: float) -> None:
        """Answer to Take, or at any time: the queue has no reservation of this owner."""
        if self._backlog.may_stand:
            self._backlog.lost(now)
            self._advance(now)

    def _put_back_held(self, now: float) -> bool:
        """Put messages back to the queue that the next owner will take in order; return False if there are
        none, such as where only clients wait for theirs."""
        gone = [
            held
            for held in self._held.values()
            if held.receipts and not any(receipt.request or receipt.sender for receipt in held.receipts)
        ]
        if not gone:
            return False
        self._seq.take(tuple(held.place for held in gone))
        for held in gone:
            del self._held[held.place]
            self._turn_away(held, now)  # it may stay after all
            self._come_back(held)
        self._putting_back = True
        self._out.append(PutBack(tuple(gone)))
        return True

    def were_put_back(self, now: float) -> None:
        """Answer to PutBack."""
        self._putting_back = False
        self._advance(now)

    # -- effects --------------------------------------------------------------------------------------------

    def _plan_hand_over(self, now: float) -> None:
        if self.phase is not OwnerPhase.OWNER or self.suspended:
            return
        wall = now + self.wall_ahead_s
        self._out += [HandOver(run) for run in self._effects.hand_over(now, wall)]
        if (at := self._effects.next_at(now, wall)) is not None:
            self._wake(min(at, now + WALL_LOOK_S))

    def _refuse_requests(self, now: float) -> None:
        """Have clients wait for no target. A message with a seq keeps its place and is handled later, so that
        the order stays, and the same seq again gets its result. Without a seq, what wasn't begun is given
        up, because the client may send it again as another message."""
        refused: list[Receipt] = []
        for held in [held for held in self._held.values() if held.life is Life.WAITING]:
            asked = [receipt for receipt in held.receipts if receipt.request]
            refused += asked
            held.receipts = [receipt for receipt in held.receipts if not receipt.request]
            is_new = self.rules.order.kind == "absent" and not (held.tries or held.suspect)
            if asked and is_new and not held.receipts:
                self._seq.take((held.place,))
                del self._held[held.place]
        if refused:
            next_at = self._effects.next_at(now, now + self.wall_ahead_s)
            wait_s = 0.0 if next_at is None else max(0.0, next_at - now)
            pending = self._effects.report()
            assert pending is not None
            self._out.append(RefuseRequests(tuple(refused), pending.target, pending.count, wait_s))

    def effects_taken(self, effect_id: str, count: int, epoch: int, now: float) -> None:
        """Answer to HandOver, of the opening ``epoch``: the target has the first ``count`` effects."""
        if self._is_answer(epoch):
            self._effects.taken(effect_id, count, now)
            self._advance(now)

    def effect_refused(self, effect_id: str, epoch: int, reason: str, now: float) -> None:
        """Answer to HandOver, of the opening ``epoch``: the target will never take the effect."""
        if self._is_answer(epoch):
            self._effects.refused(effect_id, reason)
            self._advance(now)

    def effect_failed(self, effect_id: str, epoch: int, now: float, error: str) -> None:
        """Answer to HandOver, of the opening ``epoch``: the target may take the effect later."""
        if self._is_answer(epoch):
            self._effects.failed(effect_id, now, now + self.wall_ahead_s, error)
            self._advance(now)

    def _is_answer(self, epoch: int) -> bool:
        """Return True unless an answer is for an opening that is over, whose effects a later one hands over
        again. One that moves may yet stay."""
        return epoch == self.epoch and self.phase in (
            OwnerPhase.OWNER,
            OwnerPhase.MOVING,
            OwnerPhase.TRANSFERRING,
        )

    def _wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    def _plan_run(self, now: float) -> None:
        if self._running or self._starting is not None:
            return
        self._plan_next(now)
        if self._begun and self._waits_in_last_turn():
            self._starting, self._asked_at = NOTHING, now
            self._out.append(Start(NOTHING.name))

    def _waits_in_last_turn(self) -> bool:
        """Return True if the counted head doesn't run now, and would be blamed if the node ended for another
        reason."""
        if self._counted in (None, NOTHING) or self._running or self._starting is not None:
            return False
        is_covered = self._commit is not None or self._batch  # or will be looked at again after the answer
        return not is_covered and self._is_last(self._counted.name)

    def _plan_next(self, now: float) -> None:
        self._next_head = ""
        if self.phase is OwnerPhase.MOVING or self.parked or self.obstacle or self._effects.is_full:
            return
        if self.is_held_back:
            return
        timers = self._timers.standing or self._firing is not None
        head = self._next_message_or_timer(now) if timers else self._next_message(now)
        if head is None:
            return
        places, held = head
        if not self._equipped:
            self._give_up_turn(held)
            self._load_models()
            return
        name = held.place.name
        if not self._is_suspect(held) or self._counted == held.place:
            self._next_head = name
        if now < held.retry_at:
            self._wake(held.retry_at)
        elif self._commit is not None and (self._is_suspect(held) or len(self._batch) >= self._limit()):
            return  # enough messages are under way: await the answer first
        elif not self._is_marked(held):
            if self._commit is None and (not self._batch or name == self._suspect):
                self._starting, self._asked_at = held.place, now
                self._out.append(self._start(name))
        else:
            self._run(self._together(places))

    def _start(self, head: str) -> Start:
        last = self._is_last(head)
        return Start(head, alone=last or self._begun.get(head, 0) >= ALONE_OPENINGS, last=last)

    def _is_last(self, head: str) -> bool:
        """Return True if the head is passed over as poison should this opening end with it too."""
        return 0 < self._begun.get(head, 0) == self.rules.max_starts - 1

    def _next_message_or_timer(self, now: float) -> tuple[tuple[Place, ...], Held] | None:
        """Return the places to run next: those of messages, or that of a timer that is due. While both are
        ready they take turns; while a message waits for its next try, timers go on."""
        fired = self._fired(now)
        if fired is not None and self._timer_first:
            return (fired.place,), fired
        message = self._next_message(now)
        if fired is None or (message is not None and now >= message[1].retry_at):
            return message
        return (fired.place,), fired

    def _fired(self, now: float) -> Held | None:
        """Return the firing of the timer that is due, unless it waits for its next try."""
        fired = self._firing
        at = None if fired is None else self._timers.at(fired)
        if fired is not None and at is None:
            del self._firings[fired.place]  # its timer was set anew, or cleared
            fired = None
        if fired is None:
            fired = self._firing = self._fire(now)
            self._firings |= {fired.place: fired} if fired is not None else {}
        if fired is None:
            return None
        if not fired.spent:
            # The clock may have been set back since it was chosen, for its start had to be counted.
            begin_at = max(fired.retry_at, at - self.wall_ahead_s if at is not None else now)
            if now >= begin_at:
                return fired
            self._wake(min(begin_at, max(fired.retry_at, now + WALL_LOOK_S)))
        elif self.rules.on_failure == "park":
            self._park(f"{fired.place.name} failed: {fired.error}", now)
        else:
            self._append(BatchEntry("skip", fired, reason=fired.error), now)
        return None

    def _fire(self, now: float) -> Held | None:
        timer = self._timers.due(now + self.wall_ahead_s)
        if timer is not None:
            fired = Held(place_of(timer), timer.body, {}, [])
            fired.become(Life.WAITING)
            return fired
        if (at := self._timers.next_at) is not None:
            self._wake(min(at - self.wall_ahead_s, now + WALL_LOOK_S))
        return None

    def _next_message(self, now: float) -> tuple[tuple[Place, ...], Held] | None:
        """Return the places to run next, after skipping gaps and messages that have no tries left."""
        while True:
            step = self._seq.next(now, self._limit())
            if isinstance(step, Gap):
                self._seq.pass_over(step.span)
                self._append(BatchEntry("gap", reason="never came", run=step.run, span=step.span), now)
            elif isinstance(step, Ready):
                head = self._held[step.places[0]]
                if not head.spent:
                    return step.places, head
                if self.rules.on_failure == "park":
                    self._park(f"{head.place.name} failed: {head.error}", now)
                    return None
                self._seq.take((head.place,))
                self._seq.skip(head.place)
                self._append(BatchEntry("skip", head, reason=head.error), now)
            else:
                if step.until is not None:
                    self._wake(step.until)
                return None

    def _load_models(self) -> None:
        if not self._loading:
            self._loading = True
            self._out.append(LoadModels())

    def models_loaded(self, now: float) -> None:
        """Answer to LoadModels."""
        self._loading, self._equipped = False, True
        self._advance(now)

    def models_failed(self, obstacle: str, now: float, handled: int = 0) -> None:
        """Answer to LoadModels and Run: a model doesn't load here, or the handler is older than the state.
        That costs no message a try. After a Run, its first ``handled`` messages run again before the one that
        needed the model."""
        places, self._running = self._running, ()
        self._loading = self._loaded = False
        self._equipped = not self.rules.needs_models
        self._put_back(places)
        self._run_cap = handled
        if not handled:
            self.obstacle = obstacle
            for place in places[:1]:
                self._give_up_turn(self._find(place))
        self._advance(now)

    def _give_up_turn(self, head: Held) -> None:
        """Let another suspect run alone on the node while this one waits for a model. Its start is counted
        again after that, and its mark stays until then."""
        if self._counted == head.place and self._is_suspect(head) and not self._is_last(head.place.name):
            self._suspect, self._counted = head.place.name, None

    def unblocked(self, now: float) -> None:
        """The obstacle may be gone: try again."""
        self.obstacle = ""
        self._advance(now)

    def _limit(self) -> int:
        return self._run_cap or self._run_max

    def _is_suspect(self, held: Held) -> bool:
        """Return True if the message may have killed a slot or a node."""
        if held.suspect or self._cautious > 0 or (self._begun and held.place.name in self._begun):
            return True
        return self._found_mark and self.rules.order.kind == "absent" and held.may_be_known

    def _find(self, place: Place) -> Held:
        """Return the message or the firing that has this place."""
        return self._firings[place] if place.run == TIMER_RUN else self._held[place]

    def _together(self, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """Return the next places for one call of the slot: a suspect runs alone."""
        for count, place in enumerate(places):
            if self._is_suspect(self._find(place)):
                return places[: max(1, count)]
        return places

    def _is_marked(self, head: Held) -> bool:
        if self._is_suspect(head):
            return self._counted == head.place
        marks = (self._marked,) if self._commit is None else (self._marked, self._commit.starting)
        if head.place.run == TIMER_RUN:  # a message that waits for its next try must not answer for it
            return all(mark == head.place.name for mark in marks)
        return "" not in marks and not any(map(is_timer_name, marks))

    def _run(self, places: tuple[Place, ...]) -> None:
        self._running = places
        self._next_head = ""
        self._timer_first = places[0].run != TIMER_RUN
        if self._timer_first:
            self._seq.take(places)
        messages = tuple(map(self._find, places))
        for held in messages:
            held.become(Life.RUNNING)
        self._out.append(Run(messages, not self._loaded, self.state, self.state_version, len(places)))
        self._loaded = True

    def started(self, openings: int, now: float) -> None:
        """Answer to Start."""
        assert self._starting is not None
        place, self._starting = self._starting, None
        name = place.name
        self._marked, self._counted, self._suspect = name, place, ""
        held = self._firings.get(place) if place.run == TIMER_RUN else self._held.get(place)
        openings -= self._survived.get(name, 0)
        if held is not None and openings > self.rules.max_starts:
            held.error = f"poison: {openings - 1} openings ended while its handler ran (max_starts)"
            held.spent = True
        self._advance(now)

    def ran(
        self,
        results: list[bytes | None],
        state: bytes | None,
        version: int,
        error: str,
        detail: str,
        permanent: bool,
        now: float,
        acts: Sequence[Acts | None] = (),
    ) -> None:
        """Answer to Run: ``results`` of the first messages, the snapshot, or the error of the next one.
        ``acts`` is what their handler asked for besides, one for each result or none at all."""
        places, self._running = self._running, ()
        changes = [change for some in acts if some is not None for change in some.timers] if acts else ()
        if not error and state is not None and len(state) > self.rules.max_state_bytes:
            self._loaded = False
            self._put_back(places)
            text = f"the snapshot has {len(state)} bytes, over max_state_bytes = {self.rules.max_state_bytes}"
            self._too_large([self._find(place) for place in places[: len(results)]], text, now)
        elif not error and changes and self._timers.would_be(changes) > self.rules.max_timers:
            self._loaded = False
            self._put_back(places)
            text = (
                f"the stream would have {self._timers.would_be(changes)} timers; it can have"
                f" {self.rules.max_timers} (max_timers)"
            )
            self._too_large([self._find(place) for place in places[: len(results)]], text, now)
        elif error:
            self._loaded = False
            self._put_back(places)
            self._run_cap = len(results)  # the messages before the failed one run again, up to a snapshot
            self._fail(self._find(places[len(results)]), error, detail, permanent, now)
        else:
            self._run_cap = 0
            for place, result, asked in zip_longest(places[: len(results)], results, acts):
                held = self._find(place)
                if place.run != TIMER_RUN:
                    self._seq.done(place)
                self._append(BatchEntry("done", held, result, acts=asked), now)
            if len(places) > len(results):
                self._put_back(places[len(results) :])
            self.state, self.state_version, self._dirty = state, version, True
        self._advance(now)

    def _too_large(self, messages: Sequence[Held], error: str, now: float) -> None:
        """The results or the state of these messages are too large to store. A single message spends a try.
        Of several, nobody knows which one caused it, so each runs alone next."""
        self._run_cap = 0
        if len(messages) == 1:
            self._fail(messages[0], error, "", False, now)
        else:
            for held in messages:
                held.suspect = True

    def _put_back(self, places: tuple[Place, ...]) -> None:
        for place in places:
            self._find(place).become(Life.WAITING)
        self._seq.put_back(tuple(place for place in places if place.run != TIMER_RUN))

    def _fail(self, held: Held, error: str, detail: str, permanent: bool, now: float) -> None:
        held.tries += 1
        held.error, held.detail = error, detail
        held.spent = permanent or held.tries >= self.rules.max_tries
        if not held.spent:
            held.retry_at = now + self.rules.backoff.delay_s(held.tries, 0.5)

    def load_failed(self, error: str, detail: str, now: float) -> None:
        """Answer to Run: the handler's ``open`` raised an error, without any state that could be the
        cause."""
        self.ran([], None, 0, error, detail, False, now)

    def rejected(self, reason: str, now: float) -> None:
        """Answer to Run: the handler doesn't accept the state. The stream parks; nothing is lost."""
        places, self._running = self._running, ()
        self._loaded = False
        self._put_back(places)
        self._park(reason, now)
        self._advance(now)

    def slot_died(self, guilty: bool, error: str, detail: str, now: float) -> None:
        """The slot has died. ``guilty``: it died while it worked for this key."""
        places, self._running = self._running, ()
        self._loading = False
        self.unloaded()
        self._put_back(places)
        if guilty and len(places) == 1:
            self._run_cap = 0
            self._fail(self._find(places[0]), error, detail, False, now)
        elif guilty:
            for place in places:
                self._find(place).suspect = True
        self._advance(now)

    def unloaded(self) -> None:
        """The slot has died while nothing of this key ran in it."""
        self._loaded = False
        self._equipped = not self.rules.needs_models

    def _park(self, reason: str, now: float) -> None:
        self.parked = reason
        self._append(BatchEntry("park", reason=reason), now)

    # -- committing -----------------------------------------------------------------------------------------

    def _plan_commit(self, now: float) -> None:
        if self._commit is not None or self._starting is not None:
            return
        if (self._nudged or not self._effects.is_idle) and self._must_record(now):
            self._compose(now)
            return
        if not self._batch and (self._running or not self._seq.passed):
            return
        due_at = self._batch_at + self.rules.checkpoint_after_s
        if self._running and len(self._batch) < self.rules.checkpoint_every and now < due_at:
            self._wake(due_at)
            return
        self._compose(now)

    def _must_record(self, now: float) -> bool:
        """Return True if a commit must say something about effects, or when the stream is due, though no
        message asks for a commit."""
        if self._nudged or self._effects.has_refused:
            return True
        if not self._effects.has_taken:
            return False
        drop_at = self._effects.taken_at + DROP_AFTER_S
        if now < drop_at and not self._effects.is_full:
            self._wake(drop_at)
            return False
        return True

    def _compose(self, now: float, *, resting: bool = False) -> None:
        """Compose the next commit. ``resting``: afterwards the stream is released."""
        self._composed = self._seq.compose()
        self._flying, self._batch = self._batch, []
        starting = self._starting_next()
        covered = Covered(self._flying)
        effects = self._effects_of(self._flying, now)
        changed = UNCHANGED if self._effects.is_idle else self._effects.compose()
        due = self._rest_until(now) if resting else self._due_next(effects, now)
        self._resting, self._nudged = resting, False
        self._asked_at = now
        self._commit = Commit(
            key=self.key,
            epoch=self.epoch,
            number=self.number + 1,
            id=f"{self.epoch}.{self.number + 1}.{self._refused}",
            log=self._log_with_quiet(self._composed.log, now),
            past=self._composed.past,
            identities=self._composed.identities,
            window=0 if self.rules.order.kind == "dense" else self.rules.order.window,
            state=self.state if self._dirty else None,
            state_version=self.state_version,
            clear_state=self._dirty and self.state is None,
            results=tuple(covered.results),
            aside=tuple(covered.aside),
            starting=starting,
            parked=self.parked,
            done=covered.done,
            skipped=min(COUNT_MAX, covered.skipped),
            effects=tuple(effects),
            dropped=changed.dropped,
            refused=changed.refused,
            timers=self._timers.all if self._timers_changed else None,
            due=due,
        )
        self._dirty = self._timers_changed = False
        self._out.append(Write(self._commit, tuple(covered.gaps)))

    def _log_with_quiet(self, log: RunLog | None, now: float) -> RunLog | None:
        """Return the log as it is stored: a commit that says nothing of messages tells how long none came, so
        that timers and effects don't count as messages when the stream is opened again."""
        if log is None or self.rules.order.restart_after_s is None:
            return log
        quiet_s = 0.0 if _has_message(self._flying) else max(0.0, now - self._heard_at)
        return msgspec.structs.replace(log, quiet_s=quiet_s)

    def _effects_of(self, entries: Sequence[BatchEntry], now: float) -> list[Effect]:
        """Return the effects that the handlers of these entries sent, and the dead letters of timers."""
        telling = [entry for entry in entries if entry.acts is not None or entry.kind == "skip"]
        if not telling and not self._lost_effects:
            return []
        maker = EffectMaker(self.key, self.epoch, self.number + 1, now + self.wall_ahead_s)
        for effect in self._lost_effects:
            maker.again(effect)
        for entry in telling:
            held = entry.held
            assert held is not None  # gaps send nothing
            if entry.acts is not None:
                sends = entry.acts.sends
                traceparent = checked(held.traceparent) if sends else ""
                maker.add(sends, held.place.name, hops_of(held.attributes), traceparent)
            elif entry.kind == "skip" and held.place.run == TIMER_RUN:
                maker.set_aside(held.body, held.place.name, entry.reason)
        return maker.made

    def _due_next(self, added: Sequence[Effect], now: float) -> float:
        """Return the wall time after which somebody else must look for the owner; 0: never. The stored one is
        kept if it is early, but not by much."""
        if self._effects.is_idle and not (added or self._timers.standing):
            return 0.0
        wall = now + self.wall_ahead_s
        times = [effect.not_before for effect in added]
        pending_at = 0.0 if self._effects.is_idle else self._effects.due(now, wall)
        times += [at for at in (pending_at, self._next_timer_at) if at > 0.0]
        if not times:
            return 0.0
        due = max(wall, min(times)) + DUE_GRACE_S
        return self._due if due - DUE_STEP_S <= self._due <= due and not self._nudged else due

    def _rest_until(self, now: float) -> float:
        """Return the wall time until which nobody needs to own the stream; 0: for ever."""
        effects_at = self._effects.rest_until(now, now + self.wall_ahead_s)
        return min((at for at in (effects_at, self._next_timer_at) if at > 0.0), default=0.0)

    @property
    def _next_timer_at(self) -> float:
        """The wall time of the next timer; 0 for none that may fire as things are."""
        at = self._timers.next_at if self._timers.standing else None
        return 0.0 if at is None or self.parked or self._effects.is_full else max(at, EARLIEST)

    def _starting_next(self) -> str:
        """Return the head that the commit marks. An unfinished mark found at the opening stays until a Start
        replaces it, and suspects are marked by Start alone. Otherwise their counts would be lost."""
        if self._suspect:
            return self._suspect
        if self._running:
            return self._running[0].name
        return self._next_head

    def committed(self, now: float) -> None:
        """Answer to Write: accepted. Only now are messages dead-lettered, deleted and reported."""
        assert self._commit is not None
        assert self._composed is not None
        commit, self._commit = self._commit, None
        if commit.state is not None or commit.clear_state:
            self._stored = commit.state, commit.state_version
            self._recalled = False
        entries, self._flying = self._flying, []
        self.number, self._due = commit.number, commit.due
        if commit.effects or not self._effects.is_idle:
            self._effects.committed(commit.effects)
        self._lost_effects = ()
        if commit.timers is not None:
            self._timers_stored = commit.timers
        self._mark(commit.starting)
        self._settle_entries(entries)
        for place, verdict in self._seq.answer(self._composed):
            held = self._held[place]
            if verdict in SET_ASIDE:
                self._append(self._set_aside(held, verdict), now)
            else:
                self._settle_judged(self._held.pop(place), verdict)
        self._busy_at = now
        if _has_message(entries):
            self._heard_at = now
        self._advance(now)

    def _mark(self, head: str) -> None:
        """Note which head the store marks now. A mark that was found at the opening isn't ours yet."""
        if not head or head != self._suspect:
            self._marked = head
        if self._counted is not None and self._counted.name != head:
            self._counted = None

    def refused(self, error: str, now: float) -> None:
        """Answer to Write: the commit is too large, and had no effect. The message that caused it is found
        and spends its tries, and no opening is counted for any other."""
        entries = [*self._flying, *self._batch]
        guilty = [e.held for e in self._flying if e.kind == "done" and e.held is not None]
        if not guilty:  # records of skipped messages are never large, so no message here is the cause
            self.fenced(now)
            return
        self._revert(entries)
        self._too_large(guilty, error, now)
        self._advance(now)

    def _revert(self, entries: list[BatchEntry]) -> None:
        """Go back to the answered checkpoint, in the same opening. Messages that are set aside stay in the
        batch."""
        self.generation += 1  # the running messages belong to the state that is undone
        self._backlog.reopened()  # nor does the answer of a take come any more
        handled = [e.held for e in entries if e.held is not None and e.kind in ("done", "skip")]
        running = [self._find(place) for place in self._running]
        self._firing = next((held for held in handled if held.place.run == TIMER_RUN), self._firing)
        for held in handled:
            held.come_back()
        for held in (*handled, *running):
            held.become(Life.WAITING)
        places = [held.place for held in (*handled, *running) if held.place.run != TIMER_RUN]
        self._seq.revert(tuple(places))
        self._effects.revert()
        self._timers.reset(self._timers_stored)
        self._batch = [entry for entry in entries if entry.kind in ("late", "far", "parked", "park")]
        self._flying, self._commit, self._composed, self._running = [], None, None, ()
        self.state, self.state_version = self._stored
        self._loaded = self._loading = False
        self._dirty = self._timers_changed = self._recalled
        self._next_head = ""
        self._refused += 1  # another content, another id
        if self.suspended:
            self._out.append(Reclaim(self.epoch))
        if self._looking is not None:
            self._out.append(Peek())

    def _settle_entries(self, entries: list[BatchEntry]) -> None:
        letters: list[PendingDeadLetter] = []
        messages: list[Held] = []
        for entry in entries:
            if entry.held is not None:
                entry.held.become(Life.COMMITTED)
                entry.held.result = entry.result
                assert entry.kind != "gap" and entry.kind != "park"  # noqa: PT018 - those are of no message
                entry.held.covered_as = entry.kind
                entry.held.aside = "" if entry.kind == "done" else entry.reason
                if entry.held.place.run == TIMER_RUN:
                    del self._firings[entry.held.place]
                    continue
                messages.append(self._held.pop(entry.held.place))
                discard = entry.kind == "late" and self.rules.on_late == "discard"
                if entry.kind != "done" and not discard:
                    letters.append(
                        PendingDeadLetter(
                            entry.reason,
                            entry.held,
                            detail=entry.held.detail,
                            waits=entry.kind == "parked",
                            skipped=entry.kind == "skip",
                        )
                    )
            elif entry.kind == "gap" and self.rules.order.on_gap == "dead-letter":
                letters.append(PendingDeadLetter(entry.reason, run=entry.run, span=entry.span))
        if messages or letters:
            self._settle(tuple(letters), tuple(messages))

    def settled(self, now: float) -> None:
        """Answer to Settle."""
        self._settling -= 1
        self._advance(now)

    # -- rest: moves and idleness ---------------------------------------------------------------------------

    def _plan_rest(self, now: float) -> None:
        if self._covered:
            return  # the look at the store, which is under way, comes first
        if self.phase is OwnerPhase.MOVING and self._marked:
            self._unmark(now)
        elif self.phase is OwnerPhase.MOVING and (self._effects.has_taken or self._effects.has_refused):
            self._compose(now)  # the next owner shall not hand them over again
        elif self.phase is OwnerPhase.MOVING and (self._backlog.is_pending or self._putting_back):
            return  # its answer comes
        elif self.phase is OwnerPhase.MOVING and self.is_reserved and self._put_back_held(now):
            return
        elif self.phase is OwnerPhase.MOVING and self._target:
            self.phase = OwnerPhase.TRANSFERRING
            self._out.append(Transfer(self._target))
        elif self.phase is OwnerPhase.MOVING:
            self.phase = OwnerPhase.RELEASING
            self._out.append(Release())
        elif not self._held and not self._settling and not self._backlog.is_used:
            self._plan_release(now)
        elif (self._held or self._backlog.is_used) and (self.wake_at is None or self._waits_for_others):
            if now >= self._look_at:
                self._look_at = now + LOOK_S
                self._look()
            self._wake(self._look_at)

    @property
    def _waits_for_others(self) -> bool:
        """True if held messages may wait for what no clock brings: an operator, a model, or a target."""
        order = self.rules.order
        return bool(self.parked or self.obstacle or self._effects.is_full or order.on_gap == "hold")

    def _plan_release(self, now: float) -> None:
        """Release the stream once it is idle, after the store knows when it is due again. An owner that has a
        timer soon stays, and so does one whose stream the store would hand out again at once."""
        idle_s, wall = self.rules.idle_timeout_s, now + self.wall_ahead_s
        at, is_idle = self._next_timer_at, self._effects.is_idle
        effects_at = 0.0 if is_idle else self._effects.rest_until(now, wall)
        if 0.0 < at <= wall + max(idle_s, AHEAD_S) or 0.0 < effects_at <= wall + AHEAD_S:
            self._resting = False  # the timer, or the next try of an effect, wakes it
            return
        if not is_idle and self._effects.is_out:
            return  # its answer comes
        idle_at = self._busy_at + idle_s
        if now < idle_at and not self._resting:
            self._wake(idle_at)
        elif not self._resting and (self._due or self._effects.count or at > 0.0):
            self._compose(now, resting=True)
        else:
            self.phase = OwnerPhase.RELEASING
            self._out.append(Release())

    def _unmark(self, now: float) -> None:
        """Nothing runs here any more, so a move must not count as a start of the head, even if it gave up
        its turn."""
        self._suspect = ""
        self._compose(now)

    def move(self, target: str, now: float, *, knows_deep: bool = False) -> bool:
        """Begin to move the stream to the membership ``target``; if that is empty, the claim is released.
        ``knows_deep``: the target knows that the key is reserved, and will reserve it. Return False if the
        stream can't move now."""
        if self.phase is not OwnerPhase.OWNER or self.suspended:
            return False
        self.phase = OwnerPhase.MOVING
        self._target, self._target_knows = target, knows_deep
        self._advance(now)
        return True

    def transferred(self, outcome: Literal["done", "kept", "refused"], now: float) -> None:
        """Answer to Transfer. ``kept``: the target is gone, and the claim is still ours."""
        if outcome == "done":
            self._leave(HandOff(self._target, self._all_held()))
        elif outcome == "refused":
            self.drop()
        else:
            self.phase = OwnerPhase.OWNER
            self._judge_held(now)
            self._advance(now)

    def released(self) -> None:
        """Answer to Release, with any outcome: the key is free or belongs to another node."""
        self.drop()


def _is_request(held: Held) -> bool:
    return all(receipt.request for receipt in held.receipts)


def _has_message(entries: Iterable[BatchEntry]) -> bool:
    """Return True unless all entries are of timers, or of messages that the stream had passed. These say as
    little of its run as duplicates: numbers that start anew are among them until the stream was quiet."""
    for entry in entries:
        if entry.kind not in ("late", "far") and (entry.held is None or entry.held.place.run != TIMER_RUN):
            return True
    return False
