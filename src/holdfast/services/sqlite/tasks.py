"""The task store in SQLite.

The rules of tasks decide. Changes of any kind that come together are one read and one write of all their
tasks. Between the two, each change is decided in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.common.record import reading
from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    LOSABLE,
    Answer,
    HandOutMessage,
    RestoreTask,
    State,
    Task,
    TaskChange,
    judge,
)
from holdfast.services.sqlite.database import Database, Transaction

EXPIRE_BATCH = 500
"""Tasks that one transaction checks, so that others don't wait long for it."""

STANDING = """
WITH k (trace) AS (VALUES {rows})
SELECT group_concat(t.record) FROM k CROSS JOIN tasks t ON t.trace = k.trace AND t.app = ?"""

WRITE = """
WITH c (trace, type, state, moved_at, record) AS (VALUES {rows})
INSERT INTO tasks (trace, type, state, moved_at, record, app, known_at)
SELECT c.*, ?, ? FROM c WHERE trace IS NOT NULL
ON CONFLICT (app, trace) DO UPDATE
SET type = excluded.type, state = excluded.state, moved_at = excluded.moved_at, record = excluded.record"""

COUNT = """
WITH c (type, state, count) AS (VALUES {rows})
INSERT INTO task_counts (type, state, count, app) SELECT c.*, ? FROM c WHERE type IS NOT NULL
ON CONFLICT (app, type, state) DO UPDATE SET count = count + excluded.count"""

GET = "SELECT record FROM tasks WHERE app = ? AND trace = ?"

LIST = """
SELECT record FROM tasks WHERE app = ? AND moved_at >= ? {filters} ORDER BY trace {order} LIMIT ?"""

COUNTS = "SELECT type, state, count FROM task_counts WHERE app = ? AND count > 0"

OLDEST = "SELECT id, app, known_at, record FROM tasks WHERE id > ? ORDER BY id LIMIT ?"

DUE = "SELECT trace FROM delayed_tasks WHERE app = ? AND send_at <= ? ORDER BY send_at LIMIT ?"

DELAY = """
INSERT INTO delayed_tasks (app, trace, send_at) VALUES (?, ?, ?)
ON CONFLICT (app, trace) DO UPDATE SET send_at = excluded.send_at"""

SENT = "DELETE FROM delayed_tasks WHERE app = ? AND trace = ?"

DROP = "DELETE FROM tasks WHERE id IN (VALUES {rows})"

_encode = msgspec.json.encode
_task = msgspec.json.Decoder(Task)
_tasks = msgspec.json.Decoder(list[Task])

Answers = list[Answer]


class ExpiryPage(NamedTuple):
    """A page of checked tasks, up to the id ``last``. ``more``: later ones may have expired too."""

    dropped: int
    last: int
    more: bool


async def apps_of(database: Database) -> list[str]:
    """Return the names of all apps that have or had tasks, in order."""
    return [name for (name,) in await database.rows("SELECT name FROM task_apps ORDER BY name")]


class SqliteTasks(TaskStore):
    """The tasks of one app in a database."""

    def __init__(self, database: Database, app: str, clock: Clock) -> None:
        self._database = database
        self._app = app
        self._clock = clock
        self._known_number: int | None = None

    # --- changes

    async def change(self, changes: Sequence[TaskChange]) -> Answers:
        if not changes:
            return []
        if self._known_number is None:
            await self._number()
        confirmed = not all(type(change) in LOSABLE for change in changes)
        answers: Answers = await self._database.submit(self._apply, changes, confirmed=confirmed)
        return answers

    async def due(self, ahead_s: float, limit: int, lease_s: float) -> list[Task]:
        task_ids = [task_id for (task_id,) in await self._rows(DUE, self._clock.wall() + ahead_s, limit)]
        answers = await self.change([HandOutMessage(task_id, ahead_s, lease_s) for task_id in task_ids])
        answered = list(zip(task_ids, answers, strict=True))
        gone = [
            task_id
            for task_id, task in answered
            if task is None or (isinstance(task, Task) and not task.message)
        ]
        if gone:
            # Processes of an older version write no message of a task that they cancel.
            rows = [(self._known_number, task_id) for task_id in gone]
            await self._database.write(lambda transaction: [transaction.execute(SENT, row) for row in rows])
        return [task for task in answers if isinstance(task, Task) and task.message]

    # --- reading

    async def get(self, task_id: str) -> Task | None:
        rows = await self._rows(GET, task_id)
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
        filters, values = "", []
        if after or not down:
            filters += "AND trace < ? " if down else "AND trace > ? "
            values.append(after)
        if state is not None:
            filters += "AND state = ? "
            values.append(state.value)
            if state is not State.SUCCEEDED:
                filters += f"AND state <> '{State.SUCCEEDED}' "  # the index has this condition
        if type:
            filters += "AND type = ?"
            values.append(type)
        query = LIST.format(filters=filters, order="DESC" if down else "")
        rows = await self._rows(query, since, *values, limit)
        with reading("a task's record"):
            return [_task.decode(record) for (record,) in rows]

    async def counts(self) -> dict[tuple[str, State], int]:
        return {(kind, State(state)): count for kind, state, count in await self._rows(COUNTS)}

    async def now(self) -> float:
        return self._clock.wall()

    async def expire(self, before: float) -> int:
        number, dropped, page = await self._number(), 0, ExpiryPage(0, 0, more=True)
        while page.more:
            page = await self._database.write(partial(_expire, number=number, before=before, after=page.last))
            dropped += page.dropped
        return dropped

    async def restore(self, tasks: Sequence[Task]) -> None:
        await self.change([RestoreTask(task) for task in tasks])

    async def close(self) -> None:
        pass

    # --- how it is done

    def _apply(self, transaction: Transaction, calls: Sequence[Sequence[TaskChange]]) -> Sequence[Answers]:
        """Judge the changes of all calls that came together, in order."""
        now, number = self._clock.wall(), self._known_number
        task_ids = {change.task_id: None for changes in calls for change in changes}
        before = _standing(transaction, number, task_ids)
        standing: dict[str, Task | None] = dict(before)
        answers = [[_judge(standing, change, now) for change in changes] for changes in calls]
        rows, counts, delayed = [], Counter[tuple[str, str]](), []
        for task_id, task in standing.items():
            was = before.get(task_id)
            if task is not None and task is not was:
                kind = (task.type, task.state._value_)
                rows.append((task_id, *kind, task.moved_at, _encode(task).decode()))
                counts[kind] += 1
                if task.message or (was is not None and was.message):
                    delayed.append(task)
                if was is not None:
                    counts[was.type, was.state._value_] -= 1
        if rows:
            transaction.change_rows(WRITE, rows, number, now)
            _count(transaction, number, counts)
        for task in delayed:
            if task.message:
                transaction.execute(DELAY, (number, task.task_id, task.send_at))
            else:
                transaction.execute(SENT, (number, task.task_id))
        return answers

    async def _rows(self, query: str, *parameters: Any) -> Sequence[Any]:
        return await self._database.rows(query, await self._number(), *parameters, confirmed=True)

    async def _number(self) -> int:
        """Return the app's number in the database, which gives it one at the first use."""
        if self._known_number is None:
            self._known_number = await self._database.write(self._enter)
        return self._known_number

    def _enter(self, transaction: Transaction) -> int:
        transaction.execute("INSERT OR IGNORE INTO task_apps (name) VALUES (?)", (self._app,))
        [number] = transaction.execute("SELECT id FROM task_apps WHERE name = ?", (self._app,)).fetchone()
        return int(number)


def _standing(transaction: Transaction, number: int | None, task_ids: Iterable[str]) -> dict[str, Task]:
    texts = transaction.texts(STANDING, [(task_id,) for task_id in task_ids], number)
    return {task.task_id: task for text in texts for task in _tasks.decode(f"[{text}]")}


def _judge(standing: dict[str, Task | None], change: TaskChange, now: float) -> Answer:
    try:
        after = judge(standing.get(change.task_id), change, now)
    except Fenced as refusal:
        return refusal
    standing[change.task_id] = after
    return after


def _count(transaction: Transaction, number: int | None, counts: Counter[tuple[str, str]]) -> None:
    rows = [(*kind, count) for kind, count in counts.items() if count]
    if rows:
        transaction.change_rows(COUNT, rows, number)


def _expire(transaction: Transaction, number: int, before: float, after: int) -> ExpiryPage:
    """Drop the expired tasks of the next page."""
    page = transaction.execute(OLDEST, (after, EXPIRE_BATCH)).fetchall()
    counts, expired = Counter[tuple[str, str]](), []
    for row, app, _, record in page:
        if app == number and rules.expired(task := _task.decode(record), before):
            expired.append((row,))
            counts[task.type, task.state._value_] -= 1
    if expired:
        transaction.change_rows(DROP, expired)
        _count(transaction, number, counts)
    more = len(page) == EXPIRE_BATCH and page[-1][2] < before
    return ExpiryPage(len(expired), page[-1][0] if more else after, more)
