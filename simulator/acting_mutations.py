"""Protections of streams that act, each to be switched off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.cluster.deliverer import TargetLane
from holdfast.common.acts import Acts, Effect, effect_id
from holdfast.common.effects import Effects
from holdfast.common.held import Held, Receipt
from holdfast.common.message import TIMER_RUN, Place
from holdfast.common.protocol import Done, Reply, Request, WakeUp
from holdfast.ports.coordinator import Load
from holdfast.ports.state import StateStore
from holdfast.ports.target import OutgoingEffect, Target
from holdfast.rules.streams import ledger
from holdfast.rules.streams.commit_plan import CommitPlan
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.rules.streams.run_plan import Blame, RunPlan
from holdfast.rules.streams.sequencer import ALWAYS, Sequencer, Wait
from holdfast.rules.streams.timers import Timers
from holdfast.streams import operations
from holdfast.streams.intake import Intake
from holdfast.streams.pending_forwards import PendingForwards
from holdfast.streams.queries import Queries
from holdfast.streams.recorder import ActRecorder
from holdfast.streams.worker import StreamContext, StreamWorker
from simulator.acting import PINGS, PONGS, ActingWorld
from simulator.stage import SimNode, SimPeer

_compose, _revert, _add = CommitPlan.compose, CommitPlan.revert, Effects.add
_committed, _plan_run = Queries.committed, RunPlan.plan
_hand_over, _due_next, _marked = Effects.hand_over, CommitPlan.due_next, Blame.is_marked
_due, _pending = Timers.due, ledger.pending_after
_before_release, _reset = CommitPlan.before_release, operations.reset
_patience = Sequencer.wait_for_missing
_takes = Load.takes_stream
_targets = ActingWorld.targets
_make_context = StreamContext.__init__


def hand_over_at_once(self: CommitPlan, now: float, starting: str, *, resting: bool = False) -> None:
    """Effects are pending before their commit is answered."""
    _compose(self, now, starting, resting=resting)
    assert self.commit is not None
    for effect in self.commit.effects:
        self.effects.add(effect)


def keep_reverted(self: CommitPlan, running: Sequence[Held]) -> None:
    """The effects of a commit that was refused stay pending."""
    commit = self.commit
    _revert(self, running)
    for effect in commit.effects if commit is not None else ():
        self.effects.add(effect)


class KeptRecorder(ActRecorder):
    """Keeps, as its stream is opened again, what was asked for before."""

    was_opened = True

    def take(self) -> Acts | None:
        """As that of ActRecorder; the first time after an opening it takes nothing."""
        if self.was_opened:
            self.was_opened = False
            return None
        return super().take()


def with_what_failed_runs_sent(self: StreamContext, worker: StreamWorker, stream: str, key: str) -> None:
    """What a failed run has sent is committed with the next run."""
    _make_context(self, worker, stream, key)
    recorders: dict[Any, KeptRecorder] = vars(worker).setdefault("kept_recorders", {})
    self.recorder = recorder = recorders.setdefault((stream, key), KeptRecorder(worker.targets))
    recorder.was_opened = True
    self.has_asked = True


def each_alone(self: Effects, effect: Effect) -> None:
    """No effect waits for an earlier one."""
    _add(self, msgspec.structs.replace(effect, at=0.0, not_before=effect.not_before or 0.1))


def deaf_in_transfer(self: OwnerMachine, epoch: int) -> bool:
    """What targets answer while a claim is handed over is thrown away."""
    return epoch == self.epoch and self.phase in (OwnerPhase.OWNER, OwnerPhase.MOVING)


def go_on(self: Effects, effect_id: str, now: float, wall: float, error: str) -> None:
    """After a failure the next effect of the lane is handed over."""
    if (lane := self.lane(effect_id)) is not None:
        lane.is_out = False
        lane.retry_at = now + 0.2
        lane.effects.rotate(-1)


def taken_at_once(self: Effects, now: float, wall: float) -> list[tuple[Effect, ...]]:
    """What is handed over counts as taken."""
    ready = _hand_over(self, now, wall)
    for run in ready:
        self.taken(run[0].id, len(run), now)
    return ready


def any_of(self: TargetLane, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """A target that may take any of a call gets several effects of one key."""
    return effects[: self.target.max_batch]


def refuse_at_once(self: Effects, effect_id: str, reason: str) -> None:
    """A refused effect goes to the dead letters before a commit says so."""
    if (lane := self.lane(effect_id)) is not None:
        lane.effects[0] = msgspec.structs.replace(lane.effects[0], refused=reason)
        lane.is_out = False


def never_due(self: CommitPlan, added: Any, now: float) -> float:
    return 0.0


def due_late(self: CommitPlan, added: Any, now: float) -> float:
    due = _due_next(self, added, now)
    return due + 1e6 if due else 0.0


_call = SimPeer.call


async def trust_claims(self: SimPeer, address: str, request: Request, timeout_s: float) -> Reply:
    """A living claim is taken for an owner: no node is asked to look after its streams."""
    if isinstance(request, WakeUp):
        return Done()
    return await _call(self, address, request, timeout_s)


async def nudge_only(self: Intake, request: WakeUp) -> Done:
    """A nudge doesn't adopt a key whose claim is this node's own."""
    return Done(self.owners.nudge(request.key))


def uncounted_timer(self: Blame, head: Held, in_flight: str | None, *, suspect: bool) -> bool:
    """A timer begins without a start."""
    return head.place.run == TIMER_RUN or _marked(self, head, in_flight, suspect=suspect)


def any_mark(self: Blame, head: Held, in_flight: str | None, *, suspect: bool) -> bool:
    """The mark of a message that waits for its next try serves for a timer, and the other way round."""
    if suspect:
        return _marked(self, head, in_flight, suspect=suspect)
    return bool(self.marked) and (in_flight is None or bool(in_flight))


def due_early(self: Timers, wall: float) -> Any:
    """A timer is due 20 s before its time, also when that is looked at again."""
    if (timer := _due(self, wall + 20.0)) is not None:
        self.standing[timer.name] = timer = msgspec.structs.replace(timer, at=min(timer.at, wall))
    return timer


def stays_after_firing(self: Timers, held: Held) -> None:
    """A commit leaves the timer that has fired."""
    self.firing = None


def at_by_name(self: Timers, held: Held) -> float | None:
    """A timer that was set anew, or cleared and set, still fires in its old setting."""
    return 0.0 if any(timer.name == held.place.timer for timer in self.all) else None


def drop_all(standing: Any, commit: Any) -> Any:
    """A commit drops every pending effect."""
    return commit.effects if commit.dropped else _pending(standing, commit)


def expire_all(standing: Checkpoint, idle_before: float) -> bool:
    """What is pending doesn't keep a checkpoint from expiring."""
    return 0.0 < standing.at < idle_before


async def reset_all(state: StateStore, key: str, *, keep_place: bool = False) -> Checkpoint:
    """A reset drops what is pending."""
    checkpoint = await _reset(state, key, keep_place=keep_place)
    dropped = tuple(effect.id for effect in checkpoint.effects)
    commit = operations.unchanged(checkpoint)
    await state.commit(msgspec.structs.replace(commit, dropped=dropped))
    return checkpoint


def not_leased(standing: Checkpoint, before: float, lease_s: float) -> Checkpoint | None:
    """A key that is due is handed to everybody who asks."""
    return standing if 0.0 < standing.due < before else None


def timers_though_parked(self: CommitPlan) -> float:
    """A parked stream is due for its timers."""
    return self.timers.next_at or 0.0


def stay_pending(self: CommitPlan, now: float, busy_at: float) -> Literal["wait", "record", "release"]:
    """A stream with pending effects is not released."""
    return "wait" if self.effects.count else _before_release(self, now, busy_at)


def all_in_custody(self: PendingForwards) -> int:
    """Those that their owners hold back count too."""
    return len(self)


def patience_in_silence(
    self: Sequencer, now: float, timeout_s: float, head: Place, missing: str
) -> Wait | None:
    """Time in which a node receives nothing counts too."""
    self.reception = ALWAYS
    return _patience(self, now, timeout_s, head, missing)


def gapped_by_seqs(self: RunPlan) -> bool:
    """Messages that wait for targets count as those that can run."""
    is_behind = bool(self.seq.inbox) and not self.running and not self.next_head
    return is_behind and not self.effects.is_full


def takes_any(self: Load, stream: str, acts: bool, state_version: int) -> bool:
    """Nodes of older versions are given streams that act."""
    return _takes(self, stream, False, state_version)


async def query_owner(self: Queries, key: str) -> Checkpoint:
    """A query sees what the owner has computed, committed or not."""
    checkpoint, entry = await _committed(self, key), self.owners.get(key)
    if entry is None or entry.owner.commits.state is None:
        return checkpoint
    return msgspec.structs.replace(checkpoint, state=entry.owner.commits.state)


def id_without_epoch(key: str, epoch: int, number: int, place: int) -> str:
    """A store that forgets has the same numbers of commits again."""
    return effect_id(key, 0, number, place)


def run_parked(self: RunPlan, now: float, *, may_begin: bool) -> None:
    """A stream goes on while it is parked."""
    parked, self.commits.parked = self.commits.parked, ""
    _plan_run(self, now, may_begin=may_begin)
    self.commits.parked = self.commits.parked or parked


class Inbox:
    """A stream as a target that takes effects in its owner's inbox, where no queue has them."""

    max_batch, ordered = 10, True

    def __init__(self, world: ActingWorld, node: SimNode, name: str) -> None:
        self._works = world.works
        self._node = node
        self._name = name

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        for effect in effects:
            receipt = Receipt(effect.id, 0.0, stale=True)
            held = Held(Place(0, 0, effect.id), effect.body, {}, [receipt])
            self._works[self._node].router.dispatch(self._name, f"{self._name}/{effect.key}", held)


def inbox_targets(self: ActingWorld, node: SimNode) -> dict[str, Target]:
    """Effects of streams to streams are never in a queue."""
    inboxes = {name: Inbox(self, node, name) for name in (PINGS, PONGS)}
    return {**_targets(self, node), **inboxes}
