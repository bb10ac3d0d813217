"""The task store in PostgreSQL. Its time is the database's clock.

The rules of tasks decide. Changes that arrive together are one read and one write of all their tasks, whose
rows are locked between. The changes are judged in order.

A new epoch isn't the next number, but one that was never issued: a standby that takes over may not have had
the last attempts, and these must stay fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.common.queue_calls import CALL_BYTES, by_bytes
from holdfast.common.record import reading
from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    LOSABLE,
    Answer,
    BriefSent,
    EndAttempt,
    HandOutMessage,
    ResendEffects,
    StartAttempt,
    State,
    Task,
    TaskChange,
    judge,
)
from holdfast.services.postgres.arrays import numbers, words
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection, weight_of
from holdfast.services.postgres.messages import (
    SEND,
    SentMessage,
    body_bytes,
    sent_columns,
    sent_message,
    topic_of,
)

EXPIRE_BATCH = 500
"""Tasks that one transaction checks, so that others don't wait long for it."""

CHANCE = 1 << 20
"""Range of the random step to the next epoch where the server's clock is behind a task's last one."""

# In order of trace, in which all transactions lock them.
STANDING = """
SELECT trace, ctid::text, record FROM {schema}.tasks
WHERE app = %s AND trace = ANY (%b::bytea[]) ORDER BY trace FOR UPDATE"""

# After the rows are locked.
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

# Adding a task that another transaction has added meanwhile fails; the repetition finds that task.
ADD = """
INSERT INTO {schema}.tasks (app, trace, type, state, open, moved_at, record, known_at)
SELECT %s, a.*, %s
FROM unnest(%b::bytea[], %b::bytea[], %s::text[], %s::boolean[], %s::float8[], %b::bytea[]) AS a"""

RESTORE = """
INSERT INTO {schema}.tasks (app, trace, type, state, open, moved_at, record, known_at)
SELECT %s, a.*, a.moved_at
FROM unnest(%b::bytea[], %b::bytea[], %s::text[], %s::boolean[], %s::float8[], %b::bytea[])
    AS a (trace, type, state, open, moved_at, record)
ORDER BY trace ON CONFLICT DO NOTHING RETURNING trace"""

# As many steps as there are apps.
APPS = """
WITH RECURSIVE apps (app) AS (
    SELECT min(app) FROM {schema}.tasks
    UNION ALL SELECT (SELECT min(t.app) FROM {schema}.tasks AS t WHERE t.app > a.app)
    FROM apps AS a WHERE app IS NOT NULL
)
SELECT app FROM apps WHERE app IS NOT NULL"""

# By their places, which are fixed while they are locked. Joined by app and trace, without statistics, the
# server would compare all tasks with all changed ones.
UPDATE = """
UPDATE {schema}.tasks AS t
SET type = a.type, state = a.state, open = a.open, moved_at = a.moved_at, record = a.record
FROM unnest(%s::tid[], %b::bytea[], %s::text[], %s::boolean[], %s::float8[], %b::bytea[])
    AS a (place, type, state, open, moved_at, record)
WHERE t.ctid = a.place"""

DELAY = """
INSERT INTO {schema}.delayed_tasks (app, trace, send_at)
SELECT %s, a.trace, a.send_at FROM unnest(%b::bytea[], %s::float8[]) AS a (trace, send_at)
ON CONFLICT (app, trace) DO UPDATE SET send_at = excluded.send_at"""

SENT = "DELETE FROM {schema}.delayed_tasks WHERE app = %s AND trace = ANY (%b::bytea[])"

DUE = """
SELECT trace FROM {schema}.delayed_tasks
WHERE app = %s AND send_at <= extract(epoch FROM statement_timestamp())::float8 + %s
ORDER BY send_at LIMIT %s"""

GET = "SELECT record FROM {schema}.tasks WHERE app = %s AND trace = %b"

LIST = """
SELECT record FROM {schema}.tasks
WHERE app = %(app)s AND moved_at >= %(since)s {filters}
ORDER BY trace {order} LIMIT %(limit)s"""

COUNTS = "SELECT type, state, count(*) FROM {schema}.tasks WHERE app = %s GROUP BY type, state"

# Passes over rows that are being changed.
OLDEST = """
SELECT known_at, trace, record FROM {schema}.tasks
WHERE app = %s AND known_at < %s AND (known_at, trace) > (%s, %b)
ORDER BY known_at, trace LIMIT %s FOR UPDATE SKIP LOCKED"""

DROP = "DELETE FROM {schema}.tasks WHERE app = %s AND trace = ANY (%b::bytea[])"

_encode = msgspec.json.encode
_task = msgspec.json.Decoder(Task)

Answers = list[Answer]
MakeBrief = Callable[[Task], SentMessage | None]
Traces = list[bytes]
Briefs = list[SentMessage]


class TaskRequest(NamedTuple):
    """A change of a task. ``brief`` makes the outcome event to send; None if none can be sent."""

    change: TaskChange
    task_id: bytes
    brief: MakeBrief | None = None


class ExpiryPage(NamedTuple):
    """A page of checked tasks, up to ``last``. ``more``: later ones may have expired too."""

    dropped: int
    last: tuple[float, bytes]
    more: bool


async def apps_of(database: PostgresDatabase) -> list[str]:
    """Return the names of all apps that have tasks, in order."""
    return [app for (app,) in await database.lane("state").rows(database.sql(APPS))]


class PostgresTasks(TaskStore):
    """The tasks of one app in a database."""

    def __init__(
        self, database: PostgresDatabase, app: str, clock: Clock, *, max_message_bytes: int = 1 << 20
    ) -> None:
        self._database = database
        self._lane = database.lane("state")
        self._app = app
        self._clock = clock
        self._max_message_bytes = max_message_bytes
        self._standing, self._now = map(database.sql, (STANDING, NOW))
        self._add, self._update = map(database.sql, (ADD, UPDATE))
        self._delay, self._sent, self._due = map(database.sql, (DELAY, SENT, DUE))
        self._get, self._counts = map(database.sql, (GET, COUNTS))
        self._oldest, self._drop, self._send = map(database.sql, (OLDEST, DROP, SEND))

    # --- changes

    async def change(self, changes: Sequence[TaskChange]) -> Answers:
        return await self._change(changes)

    async def due(self, ahead_s: float, limit: int, lease_s: float) -> list[Task]:
        task_ids = [task_id for (task_id,) in await self._lane.rows(self._due, (self._app, ahead_s, limit))]
        answers = await self.change(
            [HandOutMessage(task_id.decode(), ahead_s, lease_s) for task_id in task_ids]
        )
        return [task for task in answers if isinstance(task, Task) and task.message]

    async def end_and_brief(
        self, ends: Sequence[EndAttempt], queue: str, brief: Callable[[Task], Outgoing]
    ) -> list[Task | Fenced]:
        def sent(task: Task) -> SentMessage | None:
            message = brief(task)
            return sent_message(queue, message) if len(message.body) <= self._max_message_bytes else None

        answers = cast("list[Task | Fenced]", await self._change(ends, sent))
        self._database.bells.ring([topic_of(queue)])
        return answers

    # --- reading

    async def get(self, task_id: str) -> Task | None:
        rows = await self._lane.rows(self._get, (self._app, task_id.encode()))
        with reading(f"the record of task {task_id!r}"):
            return _task.decode(rows[0][0]) if rows else None

    async def list(
        self,
        limit: int,
        after: str = "",
        *,
        state: State | None = None,
        type: str = "",  # noqa: A002 - the port's
        since: float = 0.0,
        down: bool = False,
    ) -> list[Task]:
        filters = ""
        if after or not down:
            filters += "AND trace < %(after)b " if down else "AND trace > %(after)b "
        if state is not None:
            filters += "AND state = %(state)s "
            if state is not State.SUCCEEDED:
                filters += "AND open "  # the index has this condition
        if type:
            filters += "AND type = %(type)b"
        asked = {
            "app": self._app,
            "after": after.encode(),
            "since": since,
            "state": state and state.value,
            "type": type.encode(),
            "limit": limit,
        }
        query = LIST.replace("{filters}", filters).replace("{order}", "DESC" if down else "")
        rows = await self._lane.rows(self._database.sql(query), asked)
        with reading("a task's record"):
            return [_task.decode(record) for (record,) in rows]

    async def counts(self) -> dict[tuple[str, State], int]:
        rows = await self._lane.rows(self._counts, (self._app,))
        return {(kind.decode(), State(state)): count for kind, state, count in rows}

    async def now(self) -> float:
        [(now,)] = await self._lane.rows(self._now, ())
        return float(now)

    async def expire(self, before: float) -> int:
        dropped, page = 0, ExpiryPage(0, (0.0, b""), more=True)
        while page.more:
            page = await self._lane.write(partial(self._expire, before=before, after=page.last))
            dropped += page.dropped
        return dropped

    async def restore(self, tasks: Sequence[Task]) -> None:
        if tasks:
            await self._lane.write(partial(self._restore, tasks=tasks))

    async def close(self) -> None:
        pass

    # --- how it is done

    async def _change(self, changes: Sequence[TaskChange], brief: MakeBrief | None = None) -> Answers:
        if not changes:
            return []
        requests = [TaskRequest(change, change.task_id.encode(), brief) for change in changes]
        durable = not all(type(change) in LOSABLE for change in changes)
        weight = weight_of(len(requests), sum(map(_bytes_of, requests)))
        return await self._lane.write_many(self._apply, requests, durable=durable, weight=weight)

    async def _apply(
        self, connection: Connection, calls: Sequence[Sequence[TaskRequest]]
    ) -> Sequence[Answers]:
        """Judge the changes of all calls that came together, in order."""
        task_ids = {change.task_id for changes in calls for change in changes}
        before, places, now = await self._locked(connection, task_ids)
        standing: dict[bytes, Task | None] = dict(before)
        briefs: Briefs = []
        answers = [[self._judge(standing, change, now, briefs) for change in changes] for changes in calls]
        added: dict[bytes, Task] = {}
        changed: dict[str, Task] = {}
        delayed: dict[bytes, float] = {}
        sent: Traces = []
        for task_id in sorted(task_ids):
            task, was = standing.get(task_id), before.get(task_id)
            if task is None or task is was:
                continue
            if was is None:
                added[task_id] = task
            else:
                changed[places[task_id]] = task
            if task.message:
                delayed[task_id] = task.send_at
            elif was is not None and was.message:
                sent.append(task_id)
        if added:
            columns = _columns(added.values())
            await connection.execute(self._add, (self._app, now, [*added], *columns))
        if changed:
            await connection.execute(self._update, (words(changed), *_columns(changed.values())))
        if delayed:
            await connection.execute(self._delay, (self._app, [*delayed], numbers(delayed.values())))
        if sent:
            await connection.execute(self._sent, (self._app, sent))
        for part in by_bytes(briefs, body_bytes, CALL_BYTES):
            await connection.execute(self._send, sent_columns(part))
        return answers

    async def _locked(
        self, connection: Connection, task_ids: Iterable[bytes]
    ) -> tuple[dict[bytes, Task], dict[bytes, str], float]:
        """Return the tasks of these traces that exist, locked until the end of the transaction; the places of
        their rows; and the time after they were locked."""
        rows = await connection.execute(self._standing, (self._app, list(task_ids)), binary=True)
        clock = await connection.execute(self._now, binary=True)
        with reading("a task's record"):
            found = await rows.fetchall()
            before = {task_id: _task.decode(record) for task_id, _, record in found}
        [now] = await clock.fetchone() or (0.0,)
        return before, {task_id: place for task_id, place, _ in found}, now

    def _judge(
        self,
        standing: dict[bytes, Task | None],
        request: TaskRequest,
        now: float,
        briefs: Briefs,
    ) -> Answer:
        """Make one change; the message to send with it is added to ``briefs``."""
        was = standing.get(request.task_id)
        try:
            after = judge(was, request.change, now)
        except Fenced as refusal:
            return refusal
        if isinstance(request.change, StartAttempt | ResendEffects) and after is not None:
            epoch = was.epoch if was else 0
            if after.epoch > epoch:
                chance = int(self._clock.random() * CHANCE)
                next_epoch = max(epoch + 1 + chance, int(now * 1e6) + chance % 1024)
                after = msgspec.structs.replace(after, epoch=next_epoch)
        if request.brief is not None and after is not None and not after.briefed:
            brief = request.brief(after)
            if brief is not None:
                briefs.append(brief)
                after = judge(after, BriefSent(after.task_id, after.epoch), now)
        standing[request.task_id] = after
        return after

    async def _restore(self, connection: Connection, tasks: Sequence[Task]) -> None:
        rows = {task.task_id.encode(): task for task in tasks}
        query = self._database.sql(RESTORE)
        parameters = (self._app, [*rows], *_columns(rows.values()))
        added = await connection.execute(query, parameters, binary=True)
        new = {task_id for (task_id,) in await added.fetchall()}
        delayed = {task_id: task.send_at for task_id, task in rows.items() if task.message and task_id in new}
        if delayed:
            await connection.execute(self._delay, (self._app, [*delayed], numbers(delayed.values())))

    async def _expire(self, connection: Connection, before: float, after: tuple[float, bytes]) -> ExpiryPage:
        """Drop the expired tasks of the next page."""
        looked = await connection.execute(
            self._oldest, (self._app, before, *after, EXPIRE_BATCH), binary=True
        )
        page = await looked.fetchall()
        with reading("a task's record"):
            expired = [task_id for _, task_id, record in page if rules.expired(_task.decode(record), before)]
        if expired:
            await connection.execute(self._drop, (self._app, expired))
        return ExpiryPage(len(expired), page[-1][:2] if page else after, len(page) == EXPIRE_BATCH)


def _bytes_of(request: TaskRequest) -> int:
    """Return the size of what a change brings, twice where it may be sent with its outcome too."""
    size = sum(len(value) for value in msgspec.structs.astuple(request.change) if isinstance(value, bytes))
    return size if request.brief is None else 2 * size


def _columns(tasks: Collection[Task]) -> tuple[Any, ...]:
    """Return the columns of tasks: type, state, whether each is open, when it moved, and its record."""
    return (
        [task.type.encode() for task in tasks],
        words(task.state.value for task in tasks),
        numbers(task.state is not State.SUCCEEDED for task in tasks),
        numbers(task.moved_at for task in tasks),
        [_encode(task) for task in tasks],
    )
