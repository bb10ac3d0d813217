"""Protections that can be switched off, one at a time, to show that the simulator notices.

Each names the rule that goes missing and patches the one place where the code keeps it. ``seeds`` is
within how many seeds the simulator must notice; a test holds it to that.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec

from holdfast.cluster.deliverer import TargetLane
from holdfast.cluster.deliveries import DeliveryTracker, Settlement
from holdfast.cluster.limits import Limits
from holdfast.common import effects
from holdfast.common.effects import Effects
from holdfast.common.held import Held, PendingDeadLetter
from holdfast.common.message import Life
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.ports.coordinator import Load
from holdfast.ports.queue import Outgoing
from holdfast.rules.streams import ledger
from holdfast.rules.streams.backlog import Backlog
from holdfast.rules.streams.commands import Settle
from holdfast.rules.streams.commit_plan import BatchEntry, CommitPlan
from holdfast.rules.streams.inbox import Inbox
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.rules.streams.restarts import Restarts
from holdfast.rules.streams.run_plan import Blame, RunPlan
from holdfast.rules.streams.sequencer import Sequencer
from holdfast.rules.streams.timers import Timers
from holdfast.rules.tasks import task
from holdfast.rules.tasks.task import CountMember, EndAttempt, ResetTask, StartAttempt, Task
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.state import MemoryState
from holdfast.streams import operations
from holdfast.streams.archiver import Archiver
from holdfast.streams.intake import Intake
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.pending_forwards import PendingForward, PendingForwards
from holdfast.streams.performers.opening import Opener
from holdfast.streams.queries import Queries
from holdfast.streams.worker import StreamContext
from holdfast.tasks import follow_ups
from holdfast.tasks.calls import retry_service
from holdfast.tasks.completer import Completer
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.effects import EffectSender
from holdfast.tasks.held_tasks import HeldTask, HeldTasks
from holdfast.tasks.outcome import outcome_of
from holdfast.tasks.producer import Producer
from holdfast.tasks.worker import AttemptJob
from simulator import acting_mutations as acting
from simulator import archiving, device_mutations
from simulator.acting import ActingWorld
from simulator.faults import ServiceLine
from simulator.stage import SimPeer


class Mutation(msgspec.Struct, frozen=True):
    """One protection: what it says, where it lives, and what stands there without it."""

    says: str
    where: Any
    name: str
    instead: Any
    seeds: int = 300
    world: str = "streams"


_plan_of_backlog = Backlog.plan


def _plan_without_gaps(self: Backlog, now: float, **state: Any) -> Any:
    return _plan_of_backlog(self, now, **state | {"missing": False})


def _acting(says: str, where: Any, name: str, instead: Any, seeds: int = 300) -> Mutation:
    return Mutation(says, where, name, instead, seeds, "acting")


def _upkeep(says: str, where: Any, name: str, instead: Any, seeds: int = 300) -> Mutation:
    return Mutation(says, where, name, instead, seeds, "upkeep")


def _archive(says: str, where: Any, name: str, instead: Any, seeds: int = 300) -> Mutation:
    return Mutation(says, where, name, instead, seeds, "archiving")


def _any_epoch(standing: Checkpoint | None, key: str, epoch: int) -> Checkpoint:
    return standing or Checkpoint(key)


def _open_always(standing: Checkpoint | None, key: str, expect: int, member: str) -> Checkpoint:
    epoch = standing.epoch if standing else 0
    return msgspec.structs.replace(standing or Checkpoint(key), epoch=epoch + 1, member=member)


def _as_committed(held: Held) -> Held:
    return msgspec.structs.replace(held, life=Life.COMMITTED)


def _settle(self: CommitPlan | Inbox, letters: Any, messages: Any) -> None:
    self.agenda.settling += 1
    self.agenda.commands.append(Settle(letters, messages))


_append = CommitPlan.append


def _settle_at_once(self: CommitPlan, entry: BatchEntry, now: float) -> None:
    _append(self, entry, now)
    if entry.kind == "done" and entry.held is not None:
        _settle(self, (), (_as_committed(entry.held),))


def _letter_at_once(self: CommitPlan, entry: BatchEntry, now: float) -> None:
    _append(self, entry, now)
    if entry.kind in ("skip", "late", "parked") and entry.held is not None:
        _settle(self, (PendingDeadLetter(entry.reason, _as_committed(entry.held)),), ())


def _acknowledge_again(self: Inbox, standing: Held, again: Held) -> None:
    _settle(self, (), (_as_committed(again),))


def _let_go(self: PendingForwards, item: PendingForward, *, held_back: bool) -> None:
    self.end(item.number)


def _keep_no_more(self: Sequencer, composed: Any) -> list[Any]:
    self.log, self.past = composed.log, composed.past
    self.remember(composed.identities)
    return []


_carry = ServiceLine.carry


async def _believe_unknown(self: ServiceLine, service: str, name: str, call: Any) -> Any:
    try:
        return await _carry(self, service, name, call)
    except OutcomeUnknown:
        if (service, name) != ("state", "commit"):
            raise
        return None  # it will have worked


def _blame_the_message(self: OwnerMachine, obstacle: str, now: float, handled: int = 0) -> None:
    if self.runs.running:
        self.load_failed(obstacle, "", now)
    else:
        self.models_loaded(now)


async def _forget_results(self: MemoryState, key: str, name: str) -> None:
    return None


async def _hold_on(self: DeliveryTracker, holding: Any, now: float) -> None:
    pass


def _count_nothing(self: OwnerMachine, openings: int, now: float) -> None:
    _started(self, 1, now)


_started = OwnerMachine.started


async def _quiet_by_the_host(
    self: Opener, entry: OwnedStream, generation: int, standing: Checkpoint, recalled: bool
) -> float:
    return max(0.0, self.clock.wall() - standing.at)


def _suspect_by_receives(self: Blame, held: Held) -> bool:
    return held.suspect or (self.found_mark and held.receives > 1)


def _count_again(standing: Checkpoint | None, key: str, epoch: int, head: str) -> Checkpoint:
    after = _counted(standing, key, epoch, head)
    assert after.started is not None
    return msgspec.structs.replace(after, started=msgspec.structs.replace(after.started, epoch=0))


_counted = ledger.start


def _any_attempt(known: Task | None, task_id: str, epoch: int) -> Task:
    return known or Task(task_id, "")


_start, _reset = StartAttempt.after, ResetTask.after


def _start_again(self: StartAttempt, known: Task | None, now: float) -> Task:
    if known is not None and known.ended:
        known = msgspec.structs.replace(known, state=task.State.QUEUED, attempts=0)
    return _start(self, known, now)


def _reset_in_any_case(self: ResetTask, known: Task | None, now: float) -> Task | None:
    if known is not None and known.ended:
        known = msgspec.structs.replace(known, state=task.State.FAILED)
    return _reset(self, known, now)


def _start_without_count(self: StartAttempt, known: Task | None, now: float) -> Task:
    return _start(msgspec.structs.replace(self, tries=10**6), known, now)


def _end_at_once(self: Completer, item: HeldTask, end: EndAttempt) -> None:
    item.outcome_known()
    self._deliveries[item.queue].settle(Settlement(item.full_key, (), (item.held,), lambda: None))


_return_attempt = HeldTasks.return_attempt


def _pause_as_failure(self: HeldTasks, item: HeldTask, **asked: Any) -> None:
    _return_attempt(self, item, **asked | {"spent": asked["spent"] or "pause_s" in asked})


_end = Completer.end


def _follow_up_early(self: Completer, item: HeldTask, end: EndAttempt) -> None:
    assert item.attempt is not None
    ended = msgspec.structs.replace(item.attempt, state=end.state)
    outcome = outcome_of(item.message.envelope.app, ended)
    self._tasks.spawn(self.send_follow_ups(follow_ups.due(ended, outcome, item.message)))
    _end(self, item, end)


def _effects_early(self: Completer, item: HeldTask, end: EndAttempt) -> None:
    if end.effects:
        ended = Task(item.task_id, item.type, epoch=end.epoch, effects=end.effects)
        self._tasks.spawn(self._effects.send(item, ended))
    _end(self, item, end)


async def _forget_then_send(self: Producer, delayed: Any, ahead_s: float) -> None:
    await self._store.messages_sent([each.trace for each in delayed])
    await self._clock.sleep(0.2)
    await self._queue_of(delayed[0].type).send([Outgoing(each.message, key=each.trace) for each in delayed])


_take_ended = Completer.take_ended


def _take_without_effects(self: Completer, item: HeldTask, ended: Task) -> None:
    _take_ended(self, item, msgspec.structs.replace(ended, effects=b""))


_send_effects = EffectSender.send


async def _effects_aside(self: EffectSender, item: HeldTask, task: Task) -> float:
    self._host.tasks.spawn(_send_effects(self, item, task))
    return 0.0


_make_job = AttemptJob.__init__
_recorders: dict[str, Any] = {}


def _with_what_failed_attempts_sent(self: AttemptJob, *args: Any) -> None:
    _make_job(self, *args)
    self.recorder = _recorders.setdefault(self.task_id, self.recorder)


async def _send_once(self: Completer, handed: Any) -> None:
    with contextlib.suppress(HoldfastError):
        await self._producer.hand_over(handed)


_hand_over = Completer.hand_over


async def _hand_over_aside(self: Completer, taken: Any) -> set[str]:
    self._tasks.spawn(_hand_over(self, taken))
    return set()


_count = CountMember.after


def _count_the_next(self: CountMember, known: Task | None, now: float) -> Task:
    place = known.members.find("0") if known is not None and self.place >= 0 else self.place
    return _count(msgspec.structs.replace(self, place=place), known, now)


_count_members = Completer.count_members


async def _count_aside(self: Completer, taken: Any) -> set[str]:
    self._tasks.spawn(_count_members(self, taken))
    return set()


async def _reissue_in_hand(self: HeldTasks, item: HeldTask, delay_s: float) -> None:
    """Reissue a task that is held meanwhile, and delete all deliveries that it has then."""
    queue = self.queues[item.queue]
    copy = Outgoing(item.held.body, item.held.again, key=item.task_id)
    await retry_service(self.host, "the queue", lambda: queue.send([copy]))
    receipts = [receipt.receipt for receipt in item.held.receipts]
    await retry_service(self.host, "the queue", lambda: queue.delete(receipts))
    self.forget(item)


async def _give_only(
    self: Producer, task: Task, body: bytes, attributes: dict[str, str], delay_s: float = 0.0
) -> Outgoing:
    await self._store.queue([task])
    return Outgoing(body, key=task.task_id)


_identities = itertools.count()


RULES: dict[str, Mutation] = {
    "epoch-at-commit": Mutation("only the last opened epoch commits", ledger, "guard_epoch", _any_epoch),
    "commit-number": Mutation(
        "a commit is the next one", ledger, "guard_number", lambda standing, commit: None
    ),
    "open-expects": Mutation("an open applies only at the epoch it expects", ledger, "open_", _open_always),
    "repeat-unknown": Mutation(
        "a commit of unknown outcome is repeated", ServiceLine, "carry", _believe_unknown
    ),
    "delete-after-commit": Mutation(
        "nothing is deleted before its commit is answered", CommitPlan, "append", _settle_at_once
    ),
    "skip-before-letter": Mutation(
        "a dead letter follows the commit that names it", CommitPlan, "append", _letter_at_once
    ),
    "identity-window": Mutation(
        "known identities are duplicates", Sequencer, "remember", lambda self, names: None
    ),
    "receipt-merging": Mutation(
        "a second delivery of a waiting message waits with it", Inbox, "merge", _acknowledge_again
    ),
    "sender-forwards": Mutation(
        "the sender keeps what it forwarded until the commit is reported",
        PendingForwards,
        "accepted",
        _let_go,
    ),
    "conditional-release": Mutation(
        "a release names the claim that it ends", MemoryCoordinator, "_may_release", lambda self, claim: True
    ),
    "transfer-version": Mutation(
        "a transfer names the claim that it moves",
        MemoryCoordinator,
        "_may_transfer",
        lambda self, claim: True,
    ),
    "model-fault": Mutation(
        "a model that does not load costs no message a try", OwnerMachine, "models_failed", _blame_the_message
    ),
    "jump-limit": Mutation("a seq far ahead is a mistake", Sequencer, "is_far", lambda self, place: False),
    "restart": Mutation(
        "a fallen seq after a quiet time begins a run", Sequencer, "has_fallen", lambda self, place: False
    ),
    "restart-quiet": Mutation(
        "a fallen seq begins no run before the stream was quiet",
        Restarts,
        "is_quiet",
        lambda self, since, *, waits: True,
    ),
    "restart-clock": Mutation(
        "the clock that dated the last commit measures how long a stream was quiet",
        Opener,
        "quiet_s",
        _quiet_by_the_host,
    ),
    "gap-timer": Mutation("a missing message is waited for", Sequencer, "wait_for_missing", lambda *_: None),
    "room-for-lower": Mutation(
        "a full inbox takes the message that it waits for",
        Sequencer,
        "overflow",
        lambda self, place, turn: place,
    ),
    "backlog-awaited": Mutation(
        "later messages wait for one that was turned away",
        Backlog,
        "awaited",
        lambda self, now, above=None: None,
        seeds=400,
    ),
    "backlog-turn": Mutation(
        "messages without seqs are in order of arrival",
        Sequencer,
        "turn_of",
        lambda self, place: 0,
        seeds=400,
    ),
    "backlog-read-on": Mutation(
        "an owner reads on for a message that is missing", Backlog, "plan", _plan_without_gaps
    ),
    "judge-again": Mutation(
        "the inbox is judged again after each commit", Sequencer, "answer", _keep_no_more
    ),
    "queue-order": Mutation(
        "a message waits for the one before it, if the queue reports that one",
        Sequencer,
        "follows_on",
        lambda *_: True,
    ),
    "reissue": Mutation(
        "a message is sent again before its queue shows it", DeliveryTracker, "reissue", _hold_on
    ),
    "stored-result": Mutation(
        "a request that comes again gets the stored result", MemoryState, "result", _forget_results
    ),
    "claim-changed": Mutation(
        "an owner looks into it when its claim is gone",
        OwnerRegistry,
        "claim_changed",
        lambda self, claim: None,
    ),
    "poison-count": Mutation(
        "a message that kills nodes is passed over", OwnerMachine, "started", _count_nothing
    ),
    "suspects-alone": Mutation(
        "after a node's death each message runs by itself", Blame, "is_suspect", _suspect_by_receives
    ),
    "start-once": Mutation("an opening counts a head once", ledger, "start", _count_again),
    "too-large": Mutation(
        "what makes a commit too large is found",
        OwnerMachine,
        "refused",
        lambda self, error, now: self.fenced(now),
    ),
    "task-epoch": Mutation(
        "only the last attempt ends a task", task, "current_attempt", _any_attempt, world="tasks"
    ),
    "task-ended": Mutation(
        "an ended task never runs again", StartAttempt, "after", _start_again, world="tasks"
    ),
    "task-success": Mutation(
        "a task that has succeeded is not queued again", ResetTask, "after", _reset_in_any_case, world="tasks"
    ),
    "task-tries": Mutation(
        "attempts are counted", StartAttempt, "after", _start_without_count, world="tasks"
    ),
    "task-pause": Mutation(
        "no attempt begins before a pause is over",
        task,
        "pauses",
        lambda standing, now: False,
        world="tasks",
    ),
    "task-pause-free": Mutation(
        "a pause spends no try", HeldTasks, "return_attempt", _pause_as_failure, world="tasks"
    ),
    "task-outcome-first": Mutation(
        "a task's message is deleted once its outcome is stored",
        Completer,
        "end",
        _end_at_once,
        world="tasks",
    ),
    "follow-up-early": Mutation(
        "a task is sent once the outcome is stored that it follows upon",
        Completer,
        "end",
        _follow_up_early,
        world="tasks",
    ),
    "follow-up-answer": Mutation(
        "a follow-up is sent until that is answered", Completer, "send_follow_ups", _send_once, world="tasks"
    ),
    "follow-up-first": Mutation(
        "what follows is sent before the message is deleted",
        Completer,
        "hand_over",
        _hand_over_aside,
        world="tasks",
    ),
    "follow-up-again": Mutation(
        "a node that finds a task ended and not reported sends its follow-ups",
        follow_ups,
        "decode_follow_ups",
        lambda data, app: (),
        world="tasks",
    ),
    "follow-up-once": Mutation(
        "a follow-up that is sent again is the same task",
        follow_ups,
        "follow_up_id",
        lambda *_: f"quick-{next(_identities)}",
        world="tasks",
    ),
    "task-delay": Mutation(
        "a delayed task is in the store until its message is in its queue",
        Producer,
        "send_delayed",
        _forget_then_send,
        world="tasks",
    ),
    "task-effects-early": Mutation(
        "an effect is handed over once the outcome is stored that it was sent with",
        Completer,
        "end",
        _effects_early,
        world="tasks",
    ),
    "task-effects-failed": Mutation(
        "what a failed attempt has sent is dropped",
        AttemptJob,
        "__init__",
        _with_what_failed_attempts_sent,
        world="tasks",
    ),
    "task-effects-first": Mutation(
        "effects are handed over before the message is deleted",
        EffectSender,
        "send",
        _effects_aside,
        world="tasks",
    ),
    "task-effects-again": Mutation(
        "who finds a task ended with effects left hands them over",
        Completer,
        "take_ended",
        _take_without_effects,
        world="tasks",
    ),
    "batch-count": Mutation(
        "a task of a batch counts once", CountMember, "after", _count_the_next, world="tasks"
    ),
    "batch-first": Mutation(
        "a task is counted in its batch before its message is deleted",
        Completer,
        "count_members",
        _count_aside,
        world="tasks",
    ),
    "task-reissue": Mutation(
        "a copy of a task has receipts of its own", HeldTasks, "reissue", _reissue_in_hand, world="tasks"
    ),
    "task-given": Mutation(
        "a task that a node was given has a message too",
        Producer,
        "stand_in",
        _give_only,
        world="tasks",
    ),
    "task-stand-in": Mutation(
        "a task that a node was given is no duplicate when its message comes",
        HeldTask,
        "is_stand_in",
        lambda self, task: False,
        world="tasks",
    ),
    "task-maximum": Mutation(
        "at most the app's maximum of tasks run at once", ConcurrencyLimiter, "granted", 99, world="tasks"
    ),
    "task-strict": Mutation(
        "what runs ends before others may have its grant",
        ConcurrencyLimiter,
        "until",
        math.inf,
        world="tasks",
    ),
    "effect-answer": _acting(
        "an effect is handed over after its commit is answered",
        CommitPlan,
        "compose",
        acting.hand_over_at_once,
    ),
    "effect-unknown": _acting(
        "a commit of unknown outcome is repeated, and hands nothing over",
        ServiceLine,
        "carry",
        _believe_unknown,
    ),
    "effect-refused-commit": _acting(
        "a refused commit takes its effects with it", CommitPlan, "revert", acting.keep_reverted
    ),
    "effect-failed": _acting(
        "what a failed run has sent is dropped", StreamContext, "__init__", acting.with_what_failed_runs_sent
    ),
    "effect-order": _acting(
        "one effect of a target and key is handed over at a time", Effects, "add", acting.each_alone
    ),
    "effect-failure": _acting("an effect that failed keeps its turn", Effects, "failed", acting.go_on),
    "effect-taken": _acting(
        "an effect is dropped once its target has it", Effects, "hand_over", acting.taken_at_once
    ),
    "effect-run": _acting(
        "effects of a key go together only where the first are taken first",
        TargetLane,
        "first_of",
        acting.any_of,
    ),
    "effect-refusal": _acting(
        "a refusal is committed before its dead letter", Effects, "refused", acting.refuse_at_once
    ),
    "effect-queue": _acting(
        "an effect to a stream goes through its queue", ActingWorld, "targets", acting.inbox_targets
    ),
    "effect-stays": _acting(
        "what a target answers while a move fails counts", OwnerMachine, "is_answer", acting.deaf_in_transfer
    ),
    "effect-drop": _acting("a commit drops what it names", ledger, "pending_after", acting.drop_all),
    "archive-first": _archive(
        "a message is in the archive before it is deleted", Archiver, "write", archiving.settle_first
    ),
    "archive-again": _archive(
        "a message that comes again is archived again", Archiver, "write", archiving.write_none_again
    ),
    "due-written": _acting("a commit says when its key is due", CommitPlan, "due_next", acting.never_due),
    "due-in-time": _acting("a key isn't due too late", CommitPlan, "due_next", acting.due_late),
    "due-claims": _acting("a living claim isn't proof of service", SimPeer, "call", acting.trust_claims),
    "due-adopts": _acting(
        "a nudge adopts a key whose claim is the node's own", Intake, "nudge", acting.nudge_only
    ),
    "timer-counted": _acting("a timer that begins is counted", Blame, "is_marked", acting.uncounted_timer),
    "timer-mark": _acting("no message answers for a timer", Blame, "is_marked", acting.any_mark),
    "timer-time": _acting("a timer isn't early", Timers, "due", acting.due_early),
    "timer-setting": _acting("a timer fires in the setting that stands", Timers, "at", acting.at_by_name),
    "timer-fired": _acting("a timer fires once", Timers, "fired", acting.stays_after_firing),
    "effect-id": _acting(
        "an effect's id names the epoch of its commit", effects, "effect_id", acting.id_without_epoch
    ),
    "timer-parked": _acting("a parked stream's timers wait", RunPlan, "plan", acting.run_parked),
    "due-parked": _upkeep(
        "a parked stream isn't due for its timers",
        CommitPlan,
        "next_timer_at",
        property(acting.timers_though_parked),
    ),
    "due-lease": _upkeep(
        "a key that is due is handed to one node at a time", ledger, "lease_due", acting.not_leased
    ),
    "effect-expiry": _upkeep(
        "what has pending effects doesn't expire", ledger, "may_expire", acting.expire_all
    ),
    "effect-reset": _upkeep("a reset keeps pending effects", operations, "reset", acting.reset_all),
    "effect-rest": _upkeep(
        "a stream with nothing but pending effects is released",
        CommitPlan,
        "before_release",
        acting.stay_pending,
    ),
    "effect-pump": _upkeep(
        "messages that wait for targets don't stop the pump",
        RunPlan,
        "is_gapped",
        property(acting.gapped_by_seqs),
    ),
    "effect-forwards": _upkeep(
        "messages that wait for targets at one node don't stop the pump of another",
        PendingForwards,
        "kept",
        property(acting.all_in_custody),
    ),
    "forward-share": _upkeep(
        "messages in custody leave half of what a node holds to inboxes",
        Limits,
        "custody_max",
        property(lambda self: self.custody_limit),
    ),
    "gap-silence": _upkeep(
        "a missing message is waited for only while its queue gives out messages",
        Sequencer,
        "wait_for_missing",
        acting.patience_in_silence,
        400,
    ),
    "older-given": _upkeep(
        "a stream that acts is given to no node of an older version", Load, "takes_stream", acting.takes_any
    ),
    "state-readers": _upkeep(
        "a stream whose state is newer than a node's handler goes to a node that reads it",
        Load,
        "reads_version",
        lambda self, stream, state_version: False,
    ),
    "query-committed": _acting(
        "a query sees what is committed, and nothing else", Queries, "committed", acting.query_owner
    ),
    **{
        name: Mutation(each.says, each.where, each.name, each.instead, each.seeds, "devices")
        for name, each in device_mutations.RULES.items()
    },
}


@contextlib.contextmanager
def broken(rule: str | None) -> Iterator[None]:
    """Run with one protection switched off."""
    if rule is None:
        yield
        return
    mutation = RULES[rule]
    with mock.patch.object(mutation.where, mutation.name, mutation.instead):
        yield
