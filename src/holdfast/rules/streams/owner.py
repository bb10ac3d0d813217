"""The owner of one key, as a state machine: events in, commands out.

``phases`` has the table of its phases, which this class alone changes. Its parts decide: ``inbox`` what
happens to a delivery, ``run_plan`` what runs next and which head is to blame for a death, ``commit_plan``
when a commit is written and what it says, ``backlog`` what is taken from the queue, ``rest`` when the stream
leaves. They put their commands on one ``agenda``. The shell reads the parts, and changes nothing of them.

A refused commit means that another opening exists: everything since the answered checkpoint is then judged
again under a new epoch, or left to the new owner. Before a stream whose key is reserved moves, the owner puts
what it holds back to the queue, and the next owner takes it in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from holdfast.common.acts import Acts
from holdfast.common.held import Held
from holdfast.common.reception import Reception
from holdfast.rules.streams.backlog import Backlog, Unreserve
from holdfast.rules.streams.commands import (
    Agenda,
    CheckClaim,
    Dropped,
    HandOff,
    HandOver,
    Open,
    Peek,
    PutBack,
    Reclaim,
    Release,
    Return,
    Transfer,
)
from holdfast.rules.streams.commit_plan import CommitPlan, has_message
from holdfast.rules.streams.inbox import Inbox
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.options import NOTHING_BROUGHT, MovedFrom, OwnerOptions
from holdfast.rules.streams.phases import NEXT_PHASES, OPENED, OwnerPhase
from holdfast.rules.streams.restarts import Restarts
from holdfast.rules.streams.run_plan import REACH, Blame, RunPlan, run_max
from holdfast.rules.streams.sequencer import ALWAYS, Sequencer
from holdfast.rules.streams.timers import WALL_LOOK_S
from holdfast.rules.streams.wait_reason import WaitReason

LOOK_S = 30.0
"""Seconds between reads of the store by an owner that is parked or holds at a gap: an operator may have
changed the stream and not have reached the owner."""


class Rest:
    """The decision when an owner leaves its stream, because it moves or has nothing to do. It is made while
    nothing runs and no commit or start is under way."""

    __slots__ = ("busy_at", "look_at", "putting_back", "runs", "target", "target_knows")

    runs: RunPlan
    """The plan of the present opening."""

    def __init__(self, now: float) -> None:
        self.busy_at = now
        """The monotonic time at which the stream last had something to do."""
        self.look_at = 0.0
        """The monotonic time of the next read of the store."""
        self.target = ""
        """The membership to which the stream moves; empty if the claim is released."""
        self.target_knows = False
        """True if the target knows that the key is reserved."""
        self.putting_back = False
        """True while messages go back to the queue."""

    @property
    def text(self) -> str:
        """The reason for which a stream that moves still waits."""
        return f"its move to {self.target}" if self.target else "its release"

    def plan_move(self, now: float) -> Transfer | Release | None:
        """Plan the next step of a move, and return the last one. First a commit takes the mark of the head
        away, because a move is no start of it, and drops the effects that targets have taken. Then messages
        of a reserved key go back to the queue, and the next owner takes them in order."""
        runs, blame, effects = self.runs, self.runs.blame, self.runs.effects
        inbox, backlog = runs.inbox, runs.inbox.backlog
        if inbox.doubts.covered:
            return None  # the read of the store, which is under way, comes first
        if blame.marked:
            blame.suspect = ""
        if blame.marked or effects.has_taken or effects.has_refused:
            runs.commits.compose(now, blame.suspect or runs.next_head)
            return None
        if backlog.is_pending or self.putting_back:
            return None  # its answer comes
        if backlog.is_reserved and (gone := inbox.put_back(now)):
            self.putting_back = True
            runs.agenda.commands.append(PutBack(gone))
            return None
        return Transfer(self.target) if self.target else Release()

    def plan_idle(self, now: float) -> Release | None:
        """Return the release of a stream that has nothing to do. Otherwise have the store read from time to
        time while messages wait for others."""
        runs = self.runs
        inbox, agenda = runs.inbox, runs.agenda
        if inbox.doubts.covered:
            return None  # the read of the store, which is under way, comes first
        if inbox.held or inbox.backlog.is_used:
            if agenda.wake_at is None or self._waits_for_others:
                if now >= self.look_at:
                    self.look_at = now + LOOK_S
                    inbox.look()
                agenda.wake(self.look_at)
        elif not agenda.settling:
            step = runs.commits.before_release(now, self.busy_at)
            if step == "record":
                runs.commits.compose(now, runs.blame.suspect or runs.next_head, resting=True)
            elif step == "release":
                return Release()
        return None

    @property
    def _waits_for_others(self) -> bool:
        """True if held messages may wait for what no clock brings: an operator, a model, or a target."""
        runs = self.runs
        holds = runs.rules.order.on_gap == "hold"
        return bool(runs.commits.parked or runs.obstacle or runs.effects.is_full or holds)


class OwnerMachine:
    """The owner of one key. Call an event method, then take ``agenda.commands`` and carry them out in order;
    call ``ticked`` at ``agenda.wake_at``.

    ``now`` is monotonic seconds. A command belongs to the ``generation`` in which it was taken. Its answer
    must not be given in a later generation, except for ``settled`` and the answers to ``HandOver``. Set
    ``agenda.wall_ahead_s``, by how much the wall clock is ahead of ``now``, before every event."""

    __slots__ = (
        "_carried",
        "_reception",
        "_restarts",
        "agenda",
        "backlog",
        "blame",
        "commits",
        "epoch",
        "generation",
        "inbox",
        "is_held_back",
        "key",
        "phase",
        "rest",
        "rules",
        "runs",
        "suspended",
    )

    blame: Blame
    commits: CommitPlan
    runs: RunPlan

    def __init__(
        self,
        key: str,
        rules: OwnerOptions,
        now: float,
        survived: Mapping[str, int] | None = None,
        reception: Reception = ALWAYS,
        moved_from: MovedFrom = NOTHING_BROUGHT,
    ) -> None:
        self.key, self.rules = key, rules
        self.phase = OwnerPhase.CLAIMED
        self.generation = self.epoch = 0
        self.suspended = self.is_held_back = False
        self._reception, self._carried = reception, moved_from.carried
        self.agenda = Agenda()
        self.agenda.commands.append(Peek())
        self._restarts = Restarts(rules.order.restart_after_s, now)
        is_unordered = rules.order.kind == "absent"
        self.backlog = Backlog(by_key=rules.by_key, is_deep=moved_from.deep, by_turn=is_unordered)
        self.inbox = Inbox(rules, self.agenda, self.backlog, self._restarts)
        self.rest = Rest(now)
        seq = Sequencer(rules.order, Checkpoint(key), reception, self.backlog)
        self._make_parts(Checkpoint(key), seq, survived or {})

    @property
    def leaving(self) -> bool:
        """True while the claim is being transferred or released, so that it may change."""
        return self.phase in (OwnerPhase.TRANSFERRING, OwnerPhase.RELEASING)

    def wait_reason(self) -> WaitReason | None:
        """Return what the stream waits for; None while its handler works, or while there is nothing to do."""
        if self.commits.parked:
            return WaitReason("parked", f"parked: {self.commits.parked}")
        if not len(self.inbox) or self.runs.running:
            return None
        if self.suspended:
            return WaitReason("membership", "its node's membership or claim was lost, and is looked into")
        if self.phase in (OwnerPhase.CLAIMED, OwnerPhase.OPENING):
            return WaitReason("opening", "the state store or the coordinator, to open it")
        if self.phase is not OwnerPhase.OWNER:
            return WaitReason("moving", self.rest.text)
        return self.runs.wait_reason(is_held_back=self.is_held_back)

    def _enter(self, phase: OwnerPhase) -> None:
        """Take the next step in the table of phases. A step that isn't there is a bug."""
        now = self.phase
        assert phase in NEXT_PHASES[now], f"{self.key} is {now.value}, so can't be {phase.value}"
        self.phase = phase

    # -- deliveries -----------------------------------------------------------------------------------------

    def offer(self, held: Held, now: float) -> Literal["accepted", "full", "no"]:
        """Take a delivery. ``full``: there is no room now. ``no``: this node may no longer be the owner."""
        if self.phase is OwnerPhase.DROPPED or self.suspended:
            return "no"
        self.rest.busy_at = now
        is_moving = self.phase is OwnerPhase.MOVING
        taken = self.inbox.offer(held, now, is_open=self.phase in OPENED, is_moving=is_moving)
        self._advance(now)
        return "accepted" if taken else "full"

    # -- opening --------------------------------------------------------------------------------------------

    def peeked(self, checkpoint: Checkpoint | None, now: float) -> None:
        """Answer to Peek."""
        epoch = checkpoint.epoch if checkpoint else 0
        if self.phase is OwnerPhase.CLAIMED:
            self._enter(OwnerPhase.OPENING)
            self.agenda.commands.append(Open(epoch))
        elif checkpoint is None or epoch != self.epoch or self.inbox.doubts.is_lost(checkpoint.number):
            self.fenced(now)
        else:
            self.inbox.known()
            self._advance(now)

    def opened(
        self, checkpoint: Checkpoint, now: float, quiet_s: float = 0.0, *, recalled: bool = False
    ) -> None:
        """Answer to Open: the stream is ours under ``checkpoint.epoch``; its last message came ``quiet_s``
        ago. ``recalled``: the store has lost the checkpoint, and this one is what the owner remembered."""
        self._enter(OwnerPhase.OWNER)
        self.epoch = checkpoint.epoch
        carried, self._carried = self._carried, None
        seq = Sequencer(self.rules.order, checkpoint, self._reception, self.backlog, carried)
        self._restarts.opened(now - quiet_s)
        self._make_parts(checkpoint, seq, self.blame.survived, recalled=recalled)
        self.blame.opened(checkpoint, REACH * run_max(self.rules))
        self.rest.busy_at = now
        self.rest.look_at = now + LOOK_S
        self.inbox.judge_held(now, just_opened=True)
        self._advance(now)

    def _make_parts(
        self, checkpoint: Checkpoint, seq: Sequencer, survived: Mapping[str, int], *, recalled: bool = False
    ) -> None:
        """Make the parts that belong to one opening."""
        rules = self.rules
        self.blame = Blame(rules.max_starts, survived, is_unordered=rules.order.kind == "absent")
        self.commits = CommitPlan(rules, checkpoint, seq, self.agenda, self._restarts, recalled=recalled)
        self.inbox.seq, self.inbox.commits = seq, self.commits
        self.runs = self.rest.runs = RunPlan(rules, self.inbox, self.commits, self.blame)

    def _forget_opening(self) -> None:
        """Forget what belongs to an opening that is over. Its state is reported until the next one."""
        over = self.commits
        stands = Checkpoint(
            self.key, over.epoch, over.number, state=over.state, state_version=over.state_version
        )
        self._make_parts(stands, over.seq, self.blame.survived)
        self.commits.parked = over.parked

    def open_failed(self, now: float) -> None:
        """Answer to Open: refused, or of unknown outcome."""
        self._enter(OwnerPhase.CLAIMED)
        self.agenda.commands.append(CheckClaim())

    def claim_checked(self, ours: bool, now: float) -> None:
        """Answer to CheckClaim and Reclaim."""
        if not ours:
            self.drop()
            return
        self.suspended = False
        if self.phase is OwnerPhase.CLAIMED:
            self.agenda.commands.append(Peek())
        self._advance(now)  # no effect was handed over meanwhile

    def fenced(self, now: float) -> None:
        """The store has refused a write, because another opening exists. Open again if the claim is still
        ours."""
        self.runs.outlived()
        self.inbox.reopen()
        self._forget_opening()
        self.backlog.reopened()
        self.rest.putting_back = False
        self.generation += 1
        self._enter(OwnerPhase.CLAIMED)
        self.agenda.commands.append(CheckClaim())

    def vanished(self) -> None:
        """The claim or the membership is lost: accept nothing until the store shows our epoch."""
        if self.phase is OwnerPhase.DROPPED:
            return
        self.suspended = True
        self.backlog.reopened()  # a reservation is of one membership
        if self.phase in (OwnerPhase.CLAIMED, OwnerPhase.OPENING):
            self._enter(OwnerPhase.CLAIMED)
            self.generation += 1  # answers on their way belong to an older claim
            self.agenda.commands.append(Reclaim(None))
        else:
            self.agenda.commands.append(Reclaim(self.epoch))

    def poked(self) -> None:
        """An operator has changed the stream at the store, which is read again."""
        if self.phase is OwnerPhase.OWNER:
            self.inbox.look()

    def nudged(self, now: float) -> None:
        """The store says that the stream is due, so the next commit says when that will be so again."""
        if self.phase is OwnerPhase.OWNER:
            self.commits.nudged = True
            self._advance(now)

    def hold_back(self, is_held_back: bool, now: float) -> None:
        """Begin no further message, because too much that is committed waits for its archive; or go on. A
        node receives nothing meanwhile, so the wait for a missing message begins again."""
        self.is_held_back = is_held_back
        self.commits.seq.wait_anew()
        self._advance(now)

    def drop(self) -> None:
        """End this owner. Held messages go back."""
        if self.phase is OwnerPhase.DROPPED:
            return
        self.runs.outlived()
        if gone := self.inbox.empty():
            self._leave(Return(gone))
        else:
            self._leave(None)

    def _leave(self, last: Return | HandOff | None) -> None:
        self._enter(OwnerPhase.DROPPED)
        self.generation += 1
        self.agenda.wake_at = None
        self._forget_opening()
        if last is not None:
            self.agenda.commands.append(last)
        if self.backlog.may_stand and not (isinstance(last, HandOff) and self.rest.target_knows):
            self.agenda.commands.append(Unreserve())
        self.agenda.commands.append(Dropped())

    # -- running --------------------------------------------------------------------------------------------

    def ticked(self, now: float) -> None:
        """``wake_at`` has come."""
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Plan what follows from an event: a call of the slot, a commit, and whether the owner may rest."""
        self.agenda.wake_at = None
        if self.phase not in OPENED:
            return
        runs, commits, blame = self.runs, self.commits, self.blame
        effects = commits.effects
        if not runs.running and blame.starting is None:
            is_free = self.phase is OwnerPhase.OWNER and not (effects.is_full or self.is_held_back)
            runs.plan(now, may_begin=is_free)
        if not effects.is_idle:
            self._plan_hand_over(now)
        if blame.starting is None and commits.is_time(now, runs=bool(runs.running)):
            # Only a Start replaces the mark of a suspect: its count would be lost otherwise.
            commits.compose(now, blame.suspect or (runs.running[0].name if runs.running else runs.next_head))
        if self.backlog.is_used:
            self._plan_backlog(now)
        if not (runs.running or commits.batch or commits.commit is not None or blame.starting is not None):
            is_moving = self.phase is OwnerPhase.MOVING
            if last := self.rest.plan_move(now) if is_moving else self.rest.plan_idle(now):
                self._enter(OwnerPhase.TRANSFERRING if isinstance(last, Transfer) else OwnerPhase.RELEASING)
                self.agenda.commands.append(last)

    def models_loaded(self, now: float) -> None:
        """Answer to LoadModels."""
        self.runs.models_loaded()
        self._advance(now)

    def models_failed(self, obstacle: str, now: float, handled: int = 0) -> None:
        """Answer to LoadModels and Run: a model doesn't load here, or the handler is older than the state.
        After a Run, its first ``handled`` messages run again before the one that needed the model."""
        self.runs.models_failed(obstacle, handled)
        self._advance(now)

    def unblocked(self, now: float) -> None:
        """The obstacle may be gone: try again."""
        self.runs.obstacle = ""
        self._advance(now)

    def started(self, openings: int, now: float) -> None:
        """Answer to Start."""
        self.runs.started(openings)
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
        ``acts`` holds their effects and timers: one entry for each result, or none at all."""
        if error:
            self.runs.failed(len(results), error, detail, permanent, now)
        else:
            self.runs.ran(results, state, version, acts, now)
        self._advance(now)

    def load_failed(self, error: str, detail: str, now: float) -> None:
        """Answer to Run: the handler's ``open`` raised an error, without any state that could be the
        cause."""
        self.runs.failed(0, error, detail, False, now)
        self._advance(now)

    def rejected(self, reason: str, now: float) -> None:
        """Answer to Run: the handler doesn't accept the state. The stream parks; nothing is lost."""
        self.runs.rejected(reason, now)
        self._advance(now)

    def slot_died(self, guilty: bool, error: str, detail: str, now: float) -> None:
        """The slot has died. ``guilty``: it died while it worked for this key."""
        self.runs.slot_died(guilty, error, detail, now)
        self._advance(now)

    def unloaded(self) -> None:
        """The slot has died while nothing of this key ran in it."""
        self.runs.unloaded()

    # -- committing -----------------------------------------------------------------------------------------

    def committed(self, now: float) -> None:
        """Answer to Write: accepted. Only now are messages dead-lettered, deleted and reported."""
        commit, entries, composed = self.commits.committed()
        self.blame.committed(commit.starting)
        self.inbox.committed(entries)
        for place, verdict in self.commits.seq.answer(composed):
            self.inbox.judged_again(place, verdict, now)
        self.rest.busy_at = now
        if self._restarts.after_s is not None and has_message(entries):
            self._restarts.heard_at = now
        self._advance(now)

    def refused(self, error: str, now: float) -> None:
        """Answer to Write: the commit is too large, and had no effect. The message that caused it is found
        and spends its tries, and no opening is counted for any other."""
        guilty = [e.held for e in self.commits.flying if e.kind == "done" and e.held is not None]
        if not guilty:  # records of skipped messages are never large, so no message here is the cause
            self.fenced(now)
            return
        self.generation += 1  # the running messages belong to the state that is undone
        self.backlog.reopened()  # nor does the answer of a take come any more
        self.runs.revert()
        if self.suspended:
            self.agenda.commands.append(Reclaim(self.epoch))
        if self.inbox.doubts.is_looking:
            self.agenda.commands.append(Peek())
        self.runs.too_large(guilty, error, now)
        self._advance(now)

    def settled(self, now: float) -> None:
        """Answer to Settle."""
        self.agenda.settling -= 1
        self._advance(now)

    # -- effects --------------------------------------------------------------------------------------------

    def _plan_hand_over(self, now: float) -> None:
        effects, wall = self.commits.effects, now + self.agenda.wall_ahead_s
        if effects.is_full:
            self.inbox.refuse_requests(now)
        if self.phase is not OwnerPhase.OWNER or self.suspended:
            return
        self.agenda.commands += [HandOver(run) for run in effects.hand_over(now, wall)]
        if (at := effects.next_at(now, wall)) is not None:
            self.agenda.wake(min(at, now + WALL_LOOK_S))

    def effects_taken(self, effect_id: str, count: int, epoch: int, now: float) -> None:
        """Answer to HandOver, of the opening ``epoch``: the target has the first ``count`` effects."""
        if self.is_answer(epoch):
            self.commits.effects.taken(effect_id, count, now)
            self._advance(now)

    def effect_refused(self, effect_id: str, epoch: int, reason: str, now: float) -> None:
        """Answer to HandOver, of the opening ``epoch``: the target will never take the effect."""
        if self.is_answer(epoch):
            self.commits.effects.refused(effect_id, reason)
            self._advance(now)

    def effect_failed(self, effect_id: str, epoch: int, now: float, error: str) -> None:
        """Answer to HandOver, of the opening ``epoch``: the target may take the effect later."""
        if self.is_answer(epoch):
            self.commits.effects.failed(effect_id, now, now + self.agenda.wall_ahead_s, error)
            self._advance(now)

    def is_answer(self, epoch: int) -> bool:
        """Return True unless an answer is for an opening that is over, whose effects a later one hands over
        again. One that moves may yet stay."""
        return epoch == self.epoch and (self.phase in OPENED or self.phase is OwnerPhase.TRANSFERRING)

    # -- the backlog ----------------------------------------------------------------------------------------

    def _plan_backlog(self, now: float) -> None:
        if self.phase is not OwnerPhase.OWNER or self.suspended:
            return
        self.rest.busy_at = now
        runs, commits = self.runs, self.commits
        step = self.backlog.plan(
            now,
            waiting=len(self.inbox),
            limit=self.rules.order.inbox_limit,
            missing=runs.misses and not commits.effects.is_full,
            may_take=not (commits.parked or runs.obstacle or self.is_held_back),
        )
        if step is not None:
            self.agenda.commands.append(step)
        elif (at := self.backlog.wake_at) is not None and at > now:
            self.agenda.wake(at)

    def reserved(self, granted: bool, now: float) -> None:
        """Answer to Reserve. If it is refused, a later opening may have the key."""
        self.backlog.reserved(granted, now)
        if not granted:
            self.inbox.look()
        self._advance(now)

    def took(self, count: int, highest: int, more: bool, now: float) -> None:
        """Answer to Take: ``count`` messages were offered, up to the turn ``highest``. ``more``: the queue
        may have further ones."""
        self.backlog.took(count, highest, more, now)
        self._advance(now)

    def reservation_lost(self, now: float) -> None:
        """Answer to Take, or at any time: the queue has no reservation of this owner."""
        if self.backlog.may_stand:
            self.backlog.lost(now)
            self._advance(now)

    def were_put_back(self, now: float) -> None:
        """Answer to PutBack."""
        self.rest.putting_back = False
        self._advance(now)

    # -- rest: moves and idleness ---------------------------------------------------------------------------

    def move(self, target: str, now: float, *, knows_deep: bool = False) -> bool:
        """Begin to move the stream to the membership ``target``; if that is empty, the claim is released.
        ``knows_deep``: the target knows that the key is reserved, and will reserve it. Return False if the
        stream can't move now."""
        if self.phase is not OwnerPhase.OWNER or self.suspended:
            return False
        self._enter(OwnerPhase.MOVING)
        self.rest.target, self.rest.target_knows = target, knows_deep
        self._advance(now)
        return True

    def transferred(self, outcome: Literal["done", "kept", "refused"], now: float) -> None:
        """Answer to Transfer. ``kept``: the target is gone, and the claim is still ours."""
        if outcome == "done":
            self._leave(HandOff(self.rest.target, self.inbox.empty()))
        elif outcome == "refused":
            self.drop()
        else:
            self._enter(OwnerPhase.OWNER)
            self.inbox.judge_held(now)
            self._advance(now)

    def released(self) -> None:
        """Answer to Release, with any outcome: the key is free or belongs to another node."""
        self.drop()
