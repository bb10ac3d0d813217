"""Decides when an owner commits, and what the commit says.

While a commit is in flight the handler may go on, but no other commit is composed. A commit of unknown
outcome is repeated unchanged. A commit may hold effects, which are handed over once it is answered, and
timers. It also says when the stream needs an owner though no message comes (``due``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.common.acts import Acts, Effect, hops_of
from holdfast.common.due import AHEAD_S
from holdfast.common.effects import UNCHANGED, EffectMaker, Effects
from holdfast.common.held import Held
from holdfast.common.message import TIMER_RUN, Life, Span
from holdfast.common.traceparent import checked
from holdfast.rules.streams.commands import Agenda, Write
from holdfast.rules.streams.ledger import COUNT_MAX, EARLIEST, Aside, Checkpoint, Commit, Result
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.restarts import Restarts
from holdfast.rules.streams.sequencer import Composed, Gap, Sequencer
from holdfast.rules.streams.timers import REARM_S, Timers

DROP_AFTER_S = 0.25
"""Seconds for which taken effects wait for another reason to commit, before a commit drops them."""

DUE_GRACE_S = 10.0
"""Seconds after its due time at which another node looks for a stream's owner: a living owner serves its
timers and effects itself."""

DUE_STEP_S = 5.0
"""Seconds by which the stored due time may be too early before it is written again."""


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
    """The parts of a commit that come from the entries which it covers: results and reasons, each under its
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


class CommitPlan:
    """The commits of one opening of a stream, from its ``checkpoint`` on. ``recalled``: the store has lost
    that checkpoint, so the next commit writes all of it."""

    __slots__ = (
        "agenda",
        "asked_at",
        "batch",
        "batch_at",
        "commit",
        "composed",
        "dirty",
        "due",
        "effects",
        "epoch",
        "flying",
        "key",
        "lost_effects",
        "nudged",
        "number",
        "parked",
        "recalled",
        "refusals",
        "restarts",
        "resting",
        "rules",
        "seq",
        "state",
        "state_version",
        "stored",
        "timers",
        "timers_changed",
    )

    def __init__(
        self,
        rules: OwnerOptions,
        checkpoint: Checkpoint,
        seq: Sequencer,
        agenda: Agenda,
        restarts: Restarts,
        *,
        recalled: bool = False,
    ) -> None:
        self.rules = rules
        self.agenda, self.seq, self.restarts = agenda, seq, restarts
        self.key, self.epoch, self.number = checkpoint.key, checkpoint.epoch, checkpoint.number
        self.parked = checkpoint.parked
        """The reason why the stream is parked; empty if it isn't."""
        self.state, self.state_version = self.stored = checkpoint.state, checkpoint.state_version
        self.dirty = self.recalled = recalled
        """``dirty``: the state isn't stored yet."""
        self.batch: list[BatchEntry] = []
        """The entries that no commit covers yet; the first came at ``batch_at``."""
        self.batch_at = 0.0
        self.flying: list[BatchEntry] = []
        """The entries that the commit in flight covers."""
        self.commit: Commit | None = None
        """The commit in flight."""
        self.composed: Composed | None = None
        """The position that it carries."""
        self.asked_at = 0.0
        """The monotonic time of the start or commit under way."""
        self.refusals = 0
        self.effects = Effects(rules.effects, () if recalled else checkpoint.effects)
        self.lost_effects = checkpoint.effects if recalled else ()
        self.timers = Timers(self.epoch, checkpoint.timers)
        self.timers_changed = recalled
        self.due = checkpoint.due
        self.nudged = recalled or (not self.due and checkpoint.acts)
        """True if the next commit says when the stream is due, even though that was said before."""
        self.resting = False
        """True once a commit says when a stream that is about to be released is due."""

    # -- entries --------------------------------------------------------------------------------------------

    def append(self, entry: BatchEntry, now: float) -> None:
        """Add an entry to the next commit."""
        held = entry.held
        if held is not None:
            held.become(Life.APPENDED)
        is_firing = held is not None and held.place.run == TIMER_RUN
        if is_firing or (entry.acts is not None and entry.acts.timers):
            self._change_timers(entry, now if is_firing else None)
        self.resting = False
        if not self.batch:
            self.batch_at = now
        self.batch.append(entry)

    def _change_timers(self, entry: BatchEntry, fired_at: float | None) -> None:
        rearmed_at = 0.0
        if fired_at is not None and entry.held is not None:
            self.timers.fired(entry.held)
            rearmed_at = fired_at + self.agenda.wall_ahead_s + REARM_S
        if entry.acts is not None and entry.acts.timers:
            self.timers.change(entry.acts.timers, rearmed_at)
        self.timers_changed = True

    def park(self, reason: str, now: float) -> None:
        """Park the stream."""
        self.parked = reason
        self.append(BatchEntry("park", reason=reason), now)

    @property
    def is_crowded(self) -> bool:
        """True while the store is slow to answer and the next commit is already full."""
        return self.commit is not None and len(self.batch) >= self.rules.order.inbox_limit

    # -- when -----------------------------------------------------------------------------------------------

    def is_time(self, now: float, *, runs: bool) -> bool:
        """Return True if a commit is to be composed now. ``runs``: the handler works, so entries may come."""
        if self.commit is not None:
            return False
        if (self.nudged or not self.effects.is_idle) and self._must_record(now):
            return True
        if not self.batch and (runs or not self.seq.inbox or not self.seq.passed):
            return False
        due_at = self.batch_at + self.rules.checkpoint_after_s
        if runs and len(self.batch) < self.rules.checkpoint_every and now < due_at:
            self.agenda.wake(due_at)
            return False
        return True

    def _must_record(self, now: float) -> bool:
        """Return True if a commit must say something about effects, or when the stream is due, though no
        message asks for a commit."""
        if self.nudged or self.effects.has_refused:
            return True
        if not self.effects.has_taken:
            return False
        drop_at = self.effects.taken_at + DROP_AFTER_S
        if now < drop_at and not self.effects.is_full:
            self.agenda.wake(drop_at)
            return False
        return True

    def before_release(self, now: float, busy_at: float) -> Literal["wait", "record", "release"]:
        """Return what an owner does whose stream is idle since ``busy_at``. ``record``: a commit says first
        when the stream is due again. A stream that has a timer soon isn't released, and neither is one that
        the store would hand out again at once."""
        idle_s, wall = self.rules.idle_timeout_s, now + self.agenda.wall_ahead_s
        at, is_idle = self.next_timer_at, self.effects.is_idle
        effects_at = 0.0 if is_idle else self.effects.rest_until(now, wall)
        if 0.0 < at <= wall + max(idle_s, AHEAD_S) or 0.0 < effects_at <= wall + AHEAD_S:
            self.resting = False  # the timer, or the next try of an effect, wakes it
            return "wait"
        if not is_idle and self.effects.is_out:
            return "wait"  # its answer comes
        if self.resting:
            return "release"
        idle_at = busy_at + idle_s
        if now < idle_at:
            self.agenda.wake(idle_at)
            return "wait"
        return "record" if self.due or self.effects.count or at > 0.0 else "release"

    # -- what -----------------------------------------------------------------------------------------------

    def compose(self, now: float, starting: str, *, resting: bool = False) -> None:
        """Compose the next commit, which marks the head ``starting``. ``resting``: afterwards the stream is
        released."""
        composed = self.composed = self.seq.compose()
        flying, self.flying, self.batch = self.batch, self.batch, []
        covered = Covered(flying)
        effects = self._effects_of(flying, now)
        changed = UNCHANGED if self.effects.is_idle else self.effects.compose()
        due = self._rest_until(now) if resting else self.due_next(effects, now)
        log = composed.log
        if self.restarts.after_s is not None:
            log = self.restarts.with_quiet(log, now, has_message=has_message(flying))
        self.resting, self.nudged = resting, False
        self.asked_at = now
        number = self.number + 1
        commit = self.commit = Commit(
            key=self.key,
            epoch=self.epoch,
            number=number,
            id=f"{self.epoch}.{number}.{self.refusals}",
            log=log,
            past=composed.past,
            identities=composed.identities,
            window=0 if self.rules.order.kind == "dense" else self.rules.order.window,
            state=self.state if self.dirty else None,
            state_version=self.state_version,
            clear_state=self.dirty and self.state is None,
            results=tuple(covered.results),
            aside=tuple(covered.aside),
            starting=starting,
            parked=self.parked,
            done=covered.done,
            skipped=min(COUNT_MAX, covered.skipped),
            effects=tuple(effects),
            dropped=changed.dropped,
            refused=changed.refused,
            timers=self.timers.all if self.timers_changed else None,
            due=due,
        )
        self.dirty = self.timers_changed = False
        self.agenda.commands.append(Write(commit, tuple(covered.gaps)))

    def _effects_of(self, entries: Sequence[BatchEntry], now: float) -> list[Effect]:
        """Return the effects that the handlers of these entries sent, and the dead letters of timers."""
        acting = [entry for entry in entries if entry.acts is not None or entry.kind == "skip"]
        if not acting and not self.lost_effects:
            return []
        maker = EffectMaker(self.key, self.epoch, self.number + 1, now + self.agenda.wall_ahead_s)
        for effect in self.lost_effects:
            maker.again(effect)
        for entry in acting:
            held = entry.held
            assert held is not None  # gaps send nothing
            if entry.acts is not None:
                sends = entry.acts.sends
                traceparent = checked(held.traceparent) if sends else ""
                maker.add(sends, held.place.name, hops_of(held.attributes), traceparent)
            elif entry.kind == "skip" and held.place.run == TIMER_RUN:
                maker.set_aside(held.body, held.place.name, entry.reason)
        return maker.made

    def due_next(self, added: Sequence[Effect], now: float) -> float:
        """Return the wall time after which another node must look for the owner; 0: never. The stored one is
        kept if it is early, but not by much."""
        if self.effects.is_idle and not (added or self.timers.standing):
            return 0.0
        wall = now + self.agenda.wall_ahead_s
        times = [effect.not_before for effect in added]
        pending_at = 0.0 if self.effects.is_idle else self.effects.due(now, wall)
        times += [at for at in (pending_at, self.next_timer_at) if at > 0.0]
        if not times:
            return 0.0
        due = max(wall, min(times)) + DUE_GRACE_S
        return self.due if due - DUE_STEP_S <= self.due <= due and not self.nudged else due

    def _rest_until(self, now: float) -> float:
        """Return the wall time until which no node needs to own the stream; 0: for ever."""
        effects_at = self.effects.rest_until(now, now + self.agenda.wall_ahead_s)
        return min((at for at in (effects_at, self.next_timer_at) if at > 0.0), default=0.0)

    @property
    def next_timer_at(self) -> float:
        """The wall time of the next timer; 0 for none that may fire as things are."""
        at = self.timers.next_at if self.timers.standing else None
        return 0.0 if at is None or self.parked or self.effects.is_full else max(at, EARLIEST)

    # -- answers --------------------------------------------------------------------------------------------

    def committed(self) -> tuple[Commit, list[BatchEntry], Composed]:
        """Note that the commit was accepted. Return it, its entries and the position that it carries."""
        assert self.commit is not None
        assert self.composed is not None
        commit, self.commit = self.commit, None
        if commit.state is not None or commit.clear_state:
            self.stored = commit.state, commit.state_version
            self.recalled = False
        entries, self.flying = self.flying, []
        self.number, self.due = commit.number, commit.due
        if commit.effects or not self.effects.is_idle:
            self.effects.committed(commit.effects)
        self.lost_effects = ()
        if commit.timers is not None:
            self.timers.stored = commit.timers
        return commit, entries, self.composed

    def revert(self, running: Sequence[Held]) -> None:
        """Go back to the answered checkpoint, in the same opening, because the commit in flight was refused.
        Its messages and the running ones wait again. Messages that are set aside stay in the batch."""
        entries = [*self.flying, *self.batch]
        handled = [e.held for e in entries if e.held is not None and e.kind in ("done", "skip")]
        for held in handled:
            held.come_back()
        undone = [*handled, *running]
        for held in undone:
            held.become(Life.WAITING)
        self.timers.revert(handled)
        self.seq.revert(tuple(held.place for held in undone if held.place.run != TIMER_RUN))
        self.effects.revert()
        self.batch = [entry for entry in entries if entry.kind in ("late", "far", "parked", "park")]
        self.flying, self.commit, self.composed = [], None, None
        self.state, self.state_version = self.stored
        self.dirty = self.timers_changed = self.recalled
        self.refusals += 1  # another content, another id


def has_message(entries: Iterable[BatchEntry]) -> bool:
    """Return True unless all entries are of timers, or of messages that the stream had passed. These say as
    little of its run as duplicates: numbers that begin again are among them until the stream was quiet."""
    for entry in entries:
        if entry.kind not in ("late", "far") and (entry.held is None or entry.held.place.run != TIMER_RUN):
            return True
    return False
