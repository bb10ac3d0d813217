"""The record that a task store keeps of a task, and the changes that it makes.

A delivery gives the right to run a task, but deliveries lapse and come twice. So every attempt has an epoch.
Only the attempt of the present epoch may end the task. A store reads the record of the task, calls ``judge``,
and writes the record that this returns. Redis has the same rules in its script, and the conformance suite
compares them. Times are wall times in seconds, by the store's clock."""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import replace

from holdfast.errors import Fenced

ID_BYTES_MAX = 256
"""The longest id of a task, in bytes."""

BATCH = "(batch)"
"""The type of the record of a batch. No task can have it."""

MEMBERS_MAX = 10_000
"""The most tasks in a batch."""

EARLIER_BYTES_MAX = 4096
"""The most bytes kept of a task's earlier attempts. A record is read at each of its changes."""

EFFECTS_KEEP_S = 7 * 86_400.0
"""The extra seconds for which a task with pending effects is kept: longer than a target should be away."""


class State(enum.StrEnum):
    """The state of a task. The last four are outcomes. DUPLICATED is the outcome of a message whose task had
    ended before, so that nothing ran."""

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

    - ``task_id`` is unique in the app.
    - ``epoch`` counts all attempts, and each cancelling of a waiting task. ``attempts`` counts the attempts
      since the task was last queued, ``pauses`` the pauses that they asked for.
    - ``until`` is when the attempt of ``member`` lapses unless it beats, or when the pause of a queued task
      ends. No other attempt begins before.
    - ``progress`` goes from 0 to 1; ``note`` describes it.
    - ``result`` is what the handler returned. If that is too large for the store, ``stored`` says which
      object has it.
    - ``detail`` says why the last attempt failed. ``earlier`` has a line for each attempt before, while there
      is room.
    - ``briefed``: the outcome event was sent.
    - ``cancel`` is why the task was cancelled; "" for a task that wasn't.
    - ``group`` is the group whose limits the task counts toward.
    - ``follow_ups`` are the tasks to send at the outcome, encoded, from the message of the last attempt.
    - ``effects`` are the effects of a successful task that their targets don't have yet, encoded.
    - ``message`` is the message of a task whose delay is longer than its queue's, until it is sent at
      ``send_at``. Without a ``message``, ``send_at`` is when the queue delivers the message of a delayed
      task.
    - ``members`` is for batches: one digit for each task, 0 for one that hasn't ended, 1 for success, 2 for
      another outcome."""

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
        """The task's id, by its name in 0.2.0."""
        return self.task_id

    @property
    def ended(self) -> bool:
        """True if the task has its outcome."""
        return self.state in ENDED

    @property
    def cancelled(self) -> bool:
        """True if the task was cancelled and has ended without success. Nodes of older versions note no
        reason at a task that waits; but no other task ends without an attempt."""
        reason = self.cancel or not (self.attempts or self.members)
        return self.state in (State.FAILED, State.TIMEOUT) and bool(reason)

    @property
    def moved_at(self) -> float:
        """The wall time at which the task was last queued, begun or ended."""
        return max(self.queued_at, self.started_at, self.ended_at)


# --- the changes


class QueueTask(msgspec.Struct, frozen=True):
    """Record a task as sent."""

    task: Task

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.task.task_id

    def after(self, known: Task | None, now: float) -> Task:
        return known or replace(self.task, state=State.QUEUED, queued_at=now)


class RestoreTask(QueueTask, frozen=True):
    """Write a task as another store had it, unless it is known."""

    def after(self, known: Task | None, now: float) -> Task:
        return known or self.task


class DelayTask(msgspec.Struct, frozen=True):
    """Record a task that may begin after ``delay_s``. The store keeps its ``message`` until about then, and
    no attempt begins before. The message is empty if the queue delays it."""

    task_id: str
    type: str
    delay_s: float
    message: bytes
    group: str = ""

    def after(self, known: Task | None, now: float) -> Task:
        due = now + self.delay_s
        until = due if self.message else 0.0
        return known or Task(
            self.task_id,
            self.type,
            group=self.group,
            queued_at=now,
            until=until,
            message=self.message,
            send_at=due,
        )


class HandOutMessage(msgspec.Struct, frozen=True):
    """Hand out the message of a delayed task that is to be sent within ``ahead_s``, and to no other node for
    ``lease_s`` after that. Fenced if it isn't due: another node may have got it."""

    task_id: str
    ahead_s: float
    lease_s: float

    def after(self, known: Task | None, now: float) -> Task | None:
        if known is None or not known.message:
            return known
        if known.send_at > now + self.ahead_s:
            raise Fenced(f"task {self.task_id}: its message is not due yet", known.epoch)
        return replace(known, send_at=now + self.ahead_s + self.lease_s)


class MessageSent(msgspec.Struct, frozen=True):
    """Note that the message which the store held is in its queue."""

    task_id: str

    def after(self, known: Task | None, now: float) -> Task | None:
        return replace(known, message=b"", send_at=0.0) if known and known.message else known


class StartAttempt(msgspec.Struct, frozen=True):
    """Begin an attempt by ``member``, which lapses after ``lease_s`` without a beat.

    ``tries`` is how many attempts there may be. ``node`` is the member's name, for people. ``instead_of`` is
    a dead member, whose attempt needn't lapse first. ``follow_ups`` is as in the record.

    The member may begin if the answer is ``running`` with its own ``member``; a repeat gets the same answer.
    Otherwise the answer says why not: the task has ended (it may be cancelled now, or have no tries left), it
    pauses ``until`` then, or the attempt of another member is valid ``until`` then."""

    task_id: str
    type: str
    member: str
    node: str
    tries: int
    lease_s: float
    group: str = ""
    instead_of: str = ""
    follow_ups: bytes = b""

    def after(self, known: Task | None, now: float) -> Task:
        task = known or Task(self.task_id, self.type, group=self.group, queued_at=now)
        if task.ended:
            return task
        if task.state is State.RUNNING:
            is_valid = task.until > now and task.member != self.instead_of
            if is_valid or task.member == self.member:
                return task
        if task.cancel:
            return _ended(task, State.FAILED, b"", f"cancelled: {task.cancel}", now)
        if pauses(task, now):
            return task
        if task.attempts >= self.tries:
            detail = task.detail if task.state is State.QUEUED else ""
            died = f"attempt {task.attempts} of {self.tries} ended without an outcome on node {task.node}"
            return _ended(task, State.FAILED, b"", detail or died, now)
        return replace(
            task,
            type=self.type,
            state=State.RUNNING,
            group=self.group,
            epoch=task.epoch + 1,
            attempts=task.attempts + 1,
            member=self.member,
            node=self.node,
            until=now + self.lease_s,
            progress=0.0,
            note="",
            started_at=now,
            follow_ups=self.follow_ups,
            message=b"",
            send_at=0.0,
            earlier=_earlier(task),
        )


class AttemptBeat(msgspec.Struct, frozen=True):
    """Extend the attempt of ``epoch``, and record its progress. ``member`` is the present id of its member,
    which changes when the node joins again; "" for an unchanged one. Fenced if the attempt is over."""

    task_id: str
    epoch: int
    lease_s: float
    progress: float = 0.0
    note: str = ""
    member: str = ""

    def after(self, known: Task | None, now: float) -> Task:
        task = current_attempt(known, self.task_id, self.epoch)
        return replace(
            task,
            until=now + self.lease_s,
            progress=self.progress,
            note=self.note,
            member=self.member or task.member,
        )


class ReturnAttempt(msgspec.Struct, frozen=True):
    """End the attempt of ``epoch`` without an outcome; another attempt follows. ``spent``: it counts as a
    try. ``detail`` says what failed. With ``pause_s``, no attempt begins before the pause is over. Fenced if
    the attempt is over."""

    task_id: str
    epoch: int
    spent: bool
    detail: str = ""
    pause_s: float = 0.0

    def after(self, known: Task | None, now: float) -> Task:
        if known is not None and known.state is State.QUEUED and known.epoch == self.epoch:
            return known  # a repeat
        task = current_attempt(known, self.task_id, self.epoch)
        return replace(
            task,
            state=State.QUEUED,
            attempts=task.attempts if self.spent else task.attempts - 1,
            member="",
            until=now + self.pause_s if self.pause_s else 0.0,
            detail=self.detail or task.detail,
            pauses=task.pauses + (self.pause_s > 0),
        )


class EndAttempt(msgspec.Struct, frozen=True):
    """End the attempt of ``epoch`` with the outcome ``state``. ``effects`` are the encoded effects of a
    successful attempt. ``stored`` is as in the record. Fenced if the attempt is over."""

    task_id: str
    epoch: int
    state: State
    result: bytes = b""
    detail: str = ""
    effects: bytes = b""
    stored: bytes = b""

    def after(self, known: Task | None, now: float) -> Task:
        if known is not None and known.ended and known.epoch == self.epoch and known.state is self.state:
            return known  # a repeat
        task = current_attempt(known, self.task_id, self.epoch)
        ended = _ended(task, self.state, self.result, self.detail, now)
        return replace(ended, effects=self.effects, stored=self.stored)


class CountMember(msgspec.Struct, frozen=True):
    """Count the task at ``place`` in the batch ``task_id`` of ``size`` tasks as ended; each counts once, and
    the last one ends the batch. With a ``place`` of -1 the batch is only recorded. ``follow_ups`` are the
    batch's, encoded, or empty if they aren't known."""

    task_id: str
    size: int
    place: int = -1
    failed: bool = False
    follow_ups: bytes = b""

    def after(self, known: Task | None, now: float) -> Task:
        batch = known or Task(self.task_id, BATCH, queued_at=now, members="0" * self.size)
        if batch.ended or not batch.members:
            return batch
        members = batch.members
        if self.place >= 0 and members[self.place : self.place + 1] == "0":
            members = members[: self.place] + "12"[self.failed] + members[self.place + 1 :]
        batch = replace(
            batch, members=members, follow_ups=batch.follow_ups or self.follow_ups, started_at=now
        )
        if "0" in members:
            return batch
        failed = members.count("2")
        detail = f"{failed} of {len(members)} tasks did not succeed" if failed else ""
        if failed and batch.cancel:
            detail = f"cancelled: {batch.cancel}; {detail}"
        result = f'{{"tasks":{len(members)},"failed":{failed}}}'.encode()
        return _ended(batch, State.FAILED if failed else State.SUCCEEDED, result, detail, now)


class BriefSent(msgspec.Struct, frozen=True):
    """Note that the event of the outcome of ``epoch`` was sent."""

    task_id: str
    epoch: int

    def after(self, known: Task | None, now: float) -> Task | None:
        if known is None or not known.ended or known.epoch != self.epoch:
            return known
        return replace(known, message=b"", send_at=0.0 if known.message else known.send_at, briefed=True)


class EffectsLeft(msgspec.Struct, frozen=True):
    """Note which effects of the outcome of ``epoch`` are pending, encoded as in the record. Once all are
    taken, none comes back, whatever another node with the same message reports."""

    task_id: str
    epoch: int
    effects: bytes = b""

    def after(self, known: Task | None, now: float) -> Task | None:
        if known and known.ended and known.epoch == self.epoch and known.effects:
            return replace(known, effects=self.effects)
        return known


class ResendEffects(msgspec.Struct, frozen=True):
    """Make effects that their targets have refused pending again, encoded as in the record.

    ``instead_of`` are pending effects that may be replaced: all refused, by a node that has yet to note that
    it has sent their dead letters. The task gets a new epoch, so that late reports on earlier effects don't
    count. Unchanged unless it has succeeded, its outcome event was sent, and no other effects are pending.
    """

    task_id: str
    effects: bytes
    instead_of: bytes = b""

    def after(self, known: Task | None, now: float) -> Task | None:
        if known is None or known.state is not State.SUCCEEDED or not known.briefed:
            return known
        if known.effects not in (b"", self.instead_of):
            return known
        return replace(known, epoch=known.epoch + 1, effects=self.effects, until=now)


class CancelTask(msgspec.Struct, frozen=True):
    """Cancel a task: one that waits ends at once, one that runs at its next beat.

    A waiting task gets a new epoch, as it may have had an outcome before it was queued again. A message that
    the store keeps is due now: its receiver notifies the producer. A batch ends with the last of its tasks,
    and they are cancelled one by one."""

    task_id: str
    reason: str

    def after(self, known: Task | None, now: float) -> Task | None:
        if known is None or known.ended:
            return known
        if known.state is State.RUNNING or known.members:
            return replace(known, cancel=self.reason)
        ended = _ended(known, State.FAILED, b"", f"cancelled: {self.reason}", now)
        send_at = now if ended.message else ended.send_at
        return replace(ended, epoch=known.epoch + 1, cancel=self.reason, send_at=send_at)


class ResetTask(msgspec.Struct, frozen=True):
    """Queue a task again with all its tries, unless it runs or has succeeded, or is a batch."""

    task_id: str

    def after(self, known: Task | None, now: float) -> Task | None:
        if (
            known is None
            or known.members
            or known.state is State.SUCCEEDED
            or (known.state is State.RUNNING and known.until > now)
        ):
            return known
        return Task(known.task_id, known.type, group=known.group, epoch=known.epoch, queued_at=now)


TaskChange = (
    QueueTask
    | RestoreTask
    | DelayTask
    | HandOutMessage
    | MessageSent
    | StartAttempt
    | AttemptBeat
    | ReturnAttempt
    | EndAttempt
    | CountMember
    | BriefSent
    | EffectsLeft
    | ResendEffects
    | CancelTask
    | ResetTask
)

Answer = Task | Fenced | None
"""The record after a change; None for an unknown task, Fenced for a refused change."""

LOSABLE = frozenset({AttemptBeat, MessageSent, BriefSent, EffectsLeft})
"""The changes that a crash of the store may undo: a lost beat ends the attempt, and what was sent is sent
again."""


def judge(known: Task | None, change: TaskChange, now: float) -> Task | None:
    """Return the record after a change; None for an unknown task. Raises Fenced if the change is refused."""
    return change.after(known, now)


def expired(task: Task, before: float) -> bool:
    """Return True for a task that was at rest since ``before``, so that the store may delete it. A task with
    pending effects is kept longer, and one whose message is to be sent until then. If its queue delays the
    message, it counts from the delivery on."""
    if task.message:
        return False
    if task.effects:
        before -= EFFECTS_KEEP_S
    return max(task.moved_at, task.until, task.send_at) < before


def name_in_batch(batch_id: str, place: int) -> str:
    """Return the id of the task at ``place`` in a batch."""
    return f"{batch_id}-{place}"


def failed_in(batch: Task) -> list[str]:
    """Return the ids of the tasks of a batch that ended without success."""
    return [name_in_batch(batch.task_id, place) for place, mark in enumerate(batch.members) if mark == "2"]


def pauses(task: Task, now: float) -> bool:
    """Return True if a queued task waits for the end of its pause."""
    return task.state is State.QUEUED and task.until > now


def current_attempt(known: Task | None, task_id: str, epoch: int) -> Task:
    """Return the record if this attempt is the present one. Raises Fenced otherwise."""
    if known is None or known.state is not State.RUNNING or known.epoch != epoch:
        present = known.epoch if known else 0
        raise Fenced(f"task {task_id}: attempt {epoch} is over; epoch {present} stands", present)
    return known


def _ended(task: Task, state: State, result: bytes, detail: str, now: float) -> Task:
    progress = 1.0 if state is State.SUCCEEDED else task.progress
    return replace(
        task, state=state, until=0.0, progress=progress, result=result, detail=detail, ended_at=now
    )


def _earlier(task: Task) -> str:
    """Return the lines of a task's spent attempts as the next one begins, while there is room."""
    if not task.attempts:
        return task.earlier
    died = task.state is State.RUNNING
    why = "it ended without an outcome" if died else task.detail.partition("\n")[0]
    line = f"attempt {task.attempts} on {task.node}: {why}\n"
    has_room = len(task.earlier.encode()) + len(line.encode()) <= EARLIER_BYTES_MAX
    return task.earlier + line if has_room and not task.earlier.endswith(line) else task.earlier
