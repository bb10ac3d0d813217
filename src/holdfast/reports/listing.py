"""The ordered files of a day with their states, for the command line, the console's pages and the API."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.extend import TaskState
from holdfast.extend.products import check_app, services_of
from holdfast.reports.audit import TASK_TYPE, Audit, Row

if TYPE_CHECKING:
    from holdfast.extend import Task, TaskStore
    from holdfast.extend.products import Services

STATES = tuple(state for state in TaskState if state is not TaskState.DUPLICATED)
"""The states of a file."""

PAGE_TASKS = 500
TASKS_READ_MAX = 10_000
"""Tasks of an app that are read in each state, to find reports that no node has begun."""

GETS_AT_ONCE = 50

LEFT_OUT = f"There may be more that no node has begun: {TASKS_READ_MAX} tasks in each state were read."
"""The remark beside an incomplete list of files."""


class FilesFound(NamedTuple):
    """Files of a day. ``complete`` is False if there may be more that no node has begun."""

    rows: list[Row]
    complete: bool


def today(services: Services) -> dt.date:
    return dt.datetime.fromtimestamp(services.clock.wall(), dt.UTC).date()


async def files_of(
    services: Services, day: dt.date, *, customer: str = "", state: TaskState | None = None, app: str = ""
) -> FilesFound:
    """Return the files of a day, by task id and number.

    With the name of an app, its reports that no node has begun come last: waiting ones of any day, and ended
    ones of this day. Of their orders only the customer is known. Raises NotKnown for an unknown
    app.
    """
    if app:
        await check_app(services, app)
    rows = await Audit(services.registry(), services.clock).day(day)
    begun = {row.trace for row in rows}
    rows = await _with_ended_tasks(services, [row for row in rows if customer in ("", row.customer)])
    complete = True
    if app:
        async with services_of(services, app) as theirs:
            waiting, complete = await _never_begun(theirs.task_store(app), app, day, begun)
        rows += [row for row in waiting if customer in ("", row.customer)]
    return FilesFound([row for row in rows if state in (None, row.state)], complete)


async def _with_ended_tasks(services: Services, rows: Sequence[Row]) -> list[Row]:
    """Return the rows; a row whose task has ended without its node gets the state of the task."""
    ended: dict[tuple[str, str], Task] = {}
    open_ids: dict[str, set[str]] = {}
    for row in rows:
        if row.app and row.state in (TaskState.RUNNING, TaskState.QUEUED):
            open_ids.setdefault(row.app, set()).add(row.trace)
    for app, ids in open_ids.items():
        async with services_of(services, app) as theirs:
            for task in await _ended(theirs.task_store(app), ids):
                ended[app, task.task_id] = task
    return [_as_it_ended(row, ended.get((row.app, row.trace))) for row in rows]


async def _ended(store: TaskStore, ids: set[str]) -> list[Task]:
    found: list[Task] = []
    in_order = sorted(ids)
    for start in range(0, len(in_order), GETS_AT_ONCE):
        tasks = await asyncio.gather(*map(store.get, in_order[start : start + GETS_AT_ONCE]))
        found += [task for task in tasks if task and task.ended and task.state is not TaskState.SUCCEEDED]
    return found


def _as_it_ended(row: Row, task: Task | None) -> Row:
    if task is None or row.state not in (TaskState.RUNNING, TaskState.QUEUED):
        return row
    return msgspec.structs.replace(row, state=task.state, error=task.detail, ended_at=task.ended_at)


async def _never_begun(store: TaskStore, app: str, day: dt.date, begun: set[str]) -> tuple[list[Row], bool]:
    """Return rows of an app's tasks that no node has begun, and whether they are complete."""
    midnight = dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()
    starts = {TaskState.QUEUED: 0.0, TaskState.FAILED: midnight, TaskState.TIMEOUT: midnight}
    rows, complete = list[Row](), True
    for state, since in starts.items():
        tasks, all_read = await _listed(store, state, since)
        complete &= all_read
        rows += [
            _row_of(task, app, day)
            for task in tasks
            if task.task_id not in begun and not task.attempts and _is_of(task, day)
        ]
    return rows, complete


async def _listed(store: TaskStore, state: TaskState, since: float) -> tuple[list[Task], bool]:
    """Return the reports' tasks of a state, up to ``TASKS_READ_MAX``, and whether they are complete."""
    found: list[Task] = []
    while len(found) < TASKS_READ_MAX:
        after = found[-1].task_id if found else ""
        limit = min(PAGE_TASKS, TASKS_READ_MAX - len(found))
        page = await store.list(limit, after, state=state, type=TASK_TYPE, since=since)
        if not page:
            return found, True
        found += page
    return found, False


def _is_of(task: Task, day: dt.date) -> bool:
    """Return whether a task hasn't ended, or ended on this day in UTC."""
    return not task.ended or dt.datetime.fromtimestamp(task.ended_at, dt.UTC).date() == day


def _row_of(task: Task, app: str, day: dt.date) -> Row:
    return Row(
        app=app,
        trace=task.task_id,
        customer=task.group,
        report="",
        day=day,
        destination="",
        name="",
        state=task.state,
        ordered_at=task.queued_at,
        ended_at=task.ended_at,
        error=task.detail,
    )
