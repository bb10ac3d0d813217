"""The record that a task store keeps of a task, and the rules by which it changes.

A delivery is the right to run a task, but deliveries lapse and come twice. So every attempt has an epoch,
which only a higher one replaces, and only the attempt of the present epoch may end the task. Stores that can
run these functions inside their own transaction do so. Others implement the same rules in their language, and
the conformance suite checks that. Times are wall times in seconds, by the store's clock.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.errors import Fenced

ID_BYTES_MAX = 256

BATCH = "(batch)"
"""The type of the record of a batch. No task can have it."""

MEMBERS_MAX = 10_000
"""The most tasks in a batch."""


EARLIER_BYTES_MAX = 4096
"""How much is kept of a task's earlier attempts, in bytes: a record is read at each of its changes."""

EFFECTS_KEEP_S = 7 * 86_400.0
"""For how much longer a task with pending effects is kept: far longer than a target may be away."""


class State(enum.StrEnum):
    """The state of a task. The last four are outcomes. DUPLICATED is the outcome of a message only, whose
    task had ended before, so nothing ran."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeed"
    SUCCEED = SUCCEEDED  # its name in 0.2.0
    FAILED = "failed"
    TIMEOUT = "timeout"
    DUPLICATED = "duplicated"


ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.TIMEOUT})


class Task(msgspec.Struct, frozen=True):
    """The record of a task in the store.

    ``task_id`` is its id, unique in its app. ``attempts`` counts the attempts since it was last queued, and
    ``epoch`` counts all attempts, and each cancelling of a task that waits. ``until`` is when the attempt of
    ``member`` lapses unless it beats, or when the pause of a queued task ends; no other attempt begins
    before. ``pauses`` counts the pauses that its attempts have asked for since it was last queued.
    ``progress`` goes from 0 to 1, and ``note`` describes it. ``result`` is what the handler returned; if that
    is too large for the store, ``stored`` says which object has it. ``detail`` says why the last attempt
    failed, and ``earlier`` has a line for each attempt before that one, while there is room. ``briefed``: its
    brief has been sent. ``cancel``: why somebody cancelled it, or empty. ``group`` names the group whose
    limits it counts toward. ``follow_ups`` are the tasks that are sent at its outcome, encoded, as the
    message has them by which it was begun last.
    ``message`` is the message of a task whose delay is longer than its queue's, until it is sent, which is to
    be at ``send_at``. Without a ``message``, ``send_at`` is when the queue delivers that of a delayed task.
    ``effects`` are those of a task that has succeeded which its targets don't have yet, encoded.
    ``members`` is empty but for a batch: one digit for each of its tasks, 0 if it hasn't ended, 1 if it has
    succeeded, 2 if it ended otherwise.
    """

    task_id: str = msgspec.field(name="trace")
    type: str
    state: State = State.QUEUED
    group: str = ""
    epoch: int = 0
    attempts: int = 0
    member: str = ""
    node: str = ""
    until: float = 0.0
    progress: float = 0.0
    note: str = ""
    result: bytes = b""
    detail: str = ""
    cancel: str = ""
    briefed: bool = False
    queued_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    pauses: int = 0
    follow_ups: bytes = b""
    members: str = ""
    effects: bytes = b""
    message: bytes = b""
    send_at: float = 0.0
    stored: bytes = b""
    earlier: str = ""

    @property
    def trace(self) -> str:
        """Its id, by the name that this had in 0.2.0."""
        return self.task_id

    @property
    def ended(self) -> bool:
        """True if the task has its outcome."""
        return self.state in ENDED

    @property
    def cancelled(self) -> bool:
        """True if the task has ended without success and was cancelled. Nodes of older versions note no
        reason at one that waits; but no other task ends without an attempt."""
        reason = self.cancel or not (self.attempts or self.members)
        return self.state in (State.FAILED, State.TIMEOUT) and bool(reason)

    @property
    def moved_at(self) -> float:
        """The wall time at which the task was last queued, begun or ended."""
        return max(self.queued_at, self.started_at, self.ended_at)


class DelayTask(msgspec.Struct, frozen=True):
    """A task that may begin after ``delay_s``. Its ``message`` is kept until about then; it is empty if the
    queue delays the message itself."""

    task_id: str
    type: str
    delay_s: float
    message: bytes
    group: str = ""


class StartAttempt(msgspec.Struct, frozen=True):
    """A member's request to begin an attempt, which lapses after ``lease_s`` without a beat. ``tries`` is how
    many attempts there may be. ``node`` is the member's name, for people. ``instead_of`` is a dead member,
    whose attempt needn't lapse first. ``follow_ups`` is as in the record."""

    task_id: str
    type: str
    member: str
    node: str
    tries: int
    lease_s: float
    group: str = ""
    instead_of: str = ""
    follow_ups: bytes = b""


class AttemptBeat(msgspec.Struct, frozen=True):
    """The attempt of ``epoch`` advances. ``member`` is the present id of the member that runs it, which has
    another one after it has joined again; if it is empty, the member is the one that is known."""

    task_id: str
    epoch: int
    lease_s: float
    progress: float = 0.0
    note: str = ""
    member: str = ""


class ReturnAttempt(msgspec.Struct, frozen=True):
    """The attempt of ``epoch`` ended without an outcome, and the task waits for another attempt. ``spent``:
    it counts as a try. ``detail`` says what went wrong. With ``pause_s`` it has asked for a pause: no attempt
    begins before that is over."""

    task_id: str
    epoch: int
    spent: bool
    detail: str = ""
    pause_s: float = 0.0


class EndAttempt(msgspec.Struct, frozen=True):
    """The attempt of ``epoch`` ended with the outcome ``state``. ``effects`` are those that it sent, encoded,
    if it has succeeded. ``stored`` is as in the record."""

    task_id: str
    epoch: int
    state: State
    result: bytes = b""
    detail: str = ""
    effects: bytes = b""
    stored: bytes = b""


class EffectsLeft(msgspec.Struct, frozen=True):
    """Of the effects of the outcome of ``epoch``, these are still to be handed over, encoded as in the
    record."""

    task_id: str
    epoch: int
    effects: bytes = b""


class ResendEffects(msgspec.Struct, frozen=True):
    """Effects of a task that its targets have refused, and that are to be handed over again, encoded as in
    the record. ``instead_of`` are those that may still stand there: all of them refused, by a node that has
    yet to say that it has sent their dead letters."""

    task_id: str
    effects: bytes
    instead_of: bytes = b""


class CountMember(msgspec.Struct, frozen=True):
    """The task at ``place`` in the batch ``task_id`` of ``size`` tasks has ended. With a ``place`` of -1 the
    batch is only recorded. ``follow_ups`` are those of the batch, encoded, or empty if they aren't known."""

    task_id: str
    size: int
    place: int = -1
    failed: bool = False
    follow_ups: bytes = b""


def queue(standing: Task | None, task: Task, now: float) -> Task:
    """Return the task after it was sent; a known one is unchanged."""
    return standing or msgspec.structs.replace(task, state=State.QUEUED, queued_at=now)


def delay(standing: Task | None, wish: DelayTask, now: float) -> Task:
    """Return the task after it was sent to begin later; a known one is unchanged. Until its message is due,
    no attempt begins of a task whose message is kept."""
    due = now + wish.delay_s
    until = due if wish.message else 0.0
    return standing or Task(
        wish.task_id,
        wish.type,
        group=wish.group,
        queued_at=now,
        until=until,
        message=wish.message,
        send_at=due,
    )


def hand_out(standing: Task, ahead_s: float, lease_s: float, now: float) -> Task:
    """Return the task after its message was handed out to be sent, if that is due within ``ahead_s``. For
    ``lease_s`` after that nobody else gets it. Raises Fenced if it isn't due: another node may have been
    quicker."""
    if not standing.message:
        return standing
    if standing.send_at > now + ahead_s:
        raise Fenced(f"task {standing.task_id}: its message isn't to be sent yet", standing.epoch)
    return msgspec.structs.replace(standing, send_at=now + ahead_s + lease_s)


def message_sent(standing: Task) -> Task:
    """Return the task after the message that it held was sent."""
    return msgspec.structs.replace(standing, message=b"", send_at=0.0) if standing.message else standing


def start(standing: Task | None, wish: StartAttempt, now: float) -> Task:
    """Return the task after a member's request to begin an attempt. The member may begin if the answer is
    ``running`` with its own ``member``; a repeated request gets the same answer. Otherwise the answer says
    why not: the task has ended (before, by being cancelled, or now because it has no tries left), it pauses
    ``until`` then, or another member's attempt is valid ``until`` then."""
    task = standing or Task(wish.task_id, wish.type, group=wish.group, queued_at=now)
    if task.ended:
        return task
    if task.state is State.RUNNING:
        stands = task.until > now and task.member != wish.instead_of
        if stands or task.member == wish.member:
            return task
    if task.cancel:
        return _ended(task, State.FAILED, b"", f"cancelled: {task.cancel}", now)
    if pauses(task, now):
        return task
    if task.attempts >= wish.tries:
        detail = task.detail if task.state is State.QUEUED else ""
        died = f"attempt {task.attempts} of {wish.tries} ended without an outcome on node {task.node}"
        return _ended(task, State.FAILED, b"", detail or died, now)
    return msgspec.structs.replace(
        task,
        type=wish.type,
        state=State.RUNNING,
        group=wish.group,
        epoch=task.epoch + 1,
        attempts=task.attempts + 1,
        member=wish.member,
        node=wish.node,
        until=now + wish.lease_s,
        progress=0.0,
        note="",
        started_at=now,
        follow_ups=wish.follow_ups,
        message=b"",
        send_at=0.0,
        earlier=_earlier(task),
    )


def _earlier(task: Task) -> str:
    """Return what is kept of a task's attempts as the next one begins: a line for each that was spent, while
    there is room."""
    if not task.attempts:
        return task.earlier
    died = task.state is State.RUNNING
    why = "it ended without an outcome" if died else task.detail.partition("\n")[0]
    line = f"attempt {task.attempts} on {task.node}: {why}\n"
    has_room = len(task.earlier.encode()) + len(line.encode()) <= EARLIER_BYTES_MAX
    return task.earlier + line if has_room and not task.earlier.endswith(line) else task.earlier


def beat(standing: Task | None, beat: AttemptBeat, now: float) -> Task:
    """Return the task after a sign of progress. Raises Fenced unless this attempt is the present one."""
    task = current_attempt(standing, beat.task_id, beat.epoch)
    return msgspec.structs.replace(
        task,
        until=now + beat.lease_s,
        progress=beat.progress,
        note=beat.note,
        member=beat.member or task.member,
    )


def give_back(standing: Task | None, wish: ReturnAttempt, now: float) -> Task:
    """Return the task after an attempt without an outcome. Raises Fenced unless this attempt is the present
    one."""
    if standing is not None and standing.state is State.QUEUED and standing.epoch == wish.epoch:
        return standing  # a repeat
    task = current_attempt(standing, wish.task_id, wish.epoch)
    return msgspec.structs.replace(
        task,
        state=State.QUEUED,
        attempts=task.attempts if wish.spent else task.attempts - 1,
        member="",
        until=now + wish.pause_s if wish.pause_s else 0.0,
        detail=wish.detail or task.detail,
        pauses=task.pauses + (wish.pause_s > 0),
    )


def end(standing: Task | None, end: EndAttempt, now: float) -> Task:
    """Return the task with its outcome. Raises Fenced unless this attempt is the present one."""
    if (
        standing is not None
        and standing.ended
        and standing.epoch == end.epoch
        and standing.state is end.state
    ):
        return standing  # a repeat
    task = current_attempt(standing, end.task_id, end.epoch)
    ended = _ended(task, end.state, end.result, end.detail, now)
    return msgspec.structs.replace(ended, effects=end.effects, stored=end.stored)


def handed_over(standing: Task, left: EffectsLeft) -> Task:
    """Return the task after some of its effects were handed over. Once all are, none comes back, whatever
    another node says that had its message too."""
    stands = standing.ended and standing.epoch == left.epoch and standing.effects
    return msgspec.structs.replace(standing, effects=left.effects) if stands else standing


def resend_effects(standing: Task, wish: ResendEffects, now: float) -> Task:
    """Return the task with effects to hand over again. It gets a new epoch, so that what is told late of
    earlier effects doesn't count for these. Unchanged unless it has succeeded, its brief was sent, and none
    of its effects is pending but those that ``wish`` names."""
    pending = standing.effects not in (b"", wish.instead_of)
    if standing.state is not State.SUCCEEDED or pending or not standing.briefed:
        return standing
    return msgspec.structs.replace(standing, epoch=standing.epoch + 1, effects=wish.effects, until=now)


def briefed(standing: Task, epoch: int) -> Task:
    """Return the task after the brief of that epoch's outcome was sent."""
    sent = standing.ended and standing.epoch == epoch
    return msgspec.structs.replace(message_sent(standing), briefed=True) if sent else standing


def cancel(standing: Task, reason: str, now: float) -> Task:
    """Return the task after it was cancelled: it ends at once if it waits, at its next beat if it runs. A
    task that has ended is unchanged. One that waits gets a new epoch, as it may have had an outcome before it
    was queued again. If its message is yet to be sent, it is sent now, for whoever receives it tells the
    producer. A batch ends with the last of its tasks, which are cancelled by themselves."""
    if standing.ended:
        return standing
    if standing.state is State.QUEUED and not standing.members:
        ended = _ended(standing, State.FAILED, b"", f"cancelled: {reason}", now)
        send_at = now if ended.message else ended.send_at
        return msgspec.structs.replace(ended, epoch=standing.epoch + 1, cancel=reason, send_at=send_at)
    return msgspec.structs.replace(standing, cancel=reason)


def reset(standing: Task, now: float) -> Task:
    """Return the task queued again with all its tries. A task that runs or has succeeded is unchanged, and a
    batch is."""
    if (
        standing.members
        or standing.state is State.SUCCEEDED
        or (standing.state is State.RUNNING and standing.until > now)
    ):
        return standing
    return Task(standing.task_id, standing.type, group=standing.group, epoch=standing.epoch, queued_at=now)


def count(standing: Task | None, wish: CountMember, now: float) -> Task:
    """Return the record of a batch after one of its tasks has ended. Each is counted once, however often that
    is told; with the last of them the batch ends."""
    batch = standing or Task(wish.task_id, BATCH, queued_at=now, members="0" * wish.size)
    if batch.ended or not batch.members:
        return batch
    members = batch.members
    if members[wish.place : wish.place + 1] == "0" and wish.place >= 0:
        members = members[: wish.place] + "12"[wish.failed] + members[wish.place + 1 :]
    batch = msgspec.structs.replace(
        batch, members=members, follow_ups=batch.follow_ups or wish.follow_ups, started_at=now
    )
    if "0" in members:
        return batch
    failed = members.count("2")
    detail = f"{failed} of {len(members)} tasks did not succeed" if failed else ""
    if failed and batch.cancel:
        detail = f"cancelled: {batch.cancel}; {detail}"
    result = f'{{"tasks":{len(members)},"failed":{failed}}}'.encode()
    return _ended(batch, State.FAILED if failed else State.SUCCEEDED, result, detail, now)


def name_in_batch(batch: str, place: int) -> str:
    """Return the task id of the task at ``place`` in the batch of that task id."""
    return f"{batch}-{place}"


def failed_in(batch: Task) -> list[str]:
    """Return the task ids of the tasks of a batch that have ended without success."""
    return [name_in_batch(batch.task_id, place) for place, mark in enumerate(batch.members) if mark == "2"]


def expired(standing: Task, before: float) -> bool:
    """Return True if nothing has happened to the task since ``before``, and no attempt was valid then. One
    with pending effects is kept longer, and one whose message is yet to be sent until it is. One whose queue
    delays its message counts from when that is delivered."""
    if standing.message:
        return False
    if standing.effects:
        before -= EFFECTS_KEEP_S
    return max(standing.moved_at, standing.until, standing.send_at) < before


def pauses(task: Task, now: float) -> bool:
    """Return True if no attempt may begin yet."""
    return task.state is State.QUEUED and task.until > now


def current_attempt(standing: Task | None, task_id: str, epoch: int) -> Task:
    """Return the record of the task if this attempt is the present one. Raises Fenced otherwise."""
    if standing is None or standing.state is not State.RUNNING or standing.epoch != epoch:
        stands = standing.epoch if standing else 0
        raise Fenced(f"task {task_id}: attempt {epoch} is over; epoch {stands} stands", stands)
    return standing


def _ended(task: Task, state: State, result: bytes, detail: str, now: float) -> Task:
    progress = 1.0 if state is State.SUCCEEDED else task.progress
    return msgspec.structs.replace(
        task, state=state, until=0.0, progress=progress, result=result, detail=detail, ended_at=now
    )
