"""The audit: one row for each ordered file, kept longer than its message.

Rows are documents of the registry, which lists by prefix, changes by compare-and-set, and exists on each
store of tasks: no further store is needed. A row also holds the record of the file's delivery, from which the
next attempt goes on. Each write names the version that it replaces, so a worker that counts as dead can't
overwrite the row of its successor.

``reports/days/DAY/TASK_ID/NUMBER`` is a row, ``reports/tasks/TASK_ID`` the time when a task was ordered.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from holdfast.errors import Fenced, OutcomeUnknown, Unavailable
from holdfast.extend import Clock, Document, Registry, TaskState
from holdfast.reports.deliver_plan import Record

TASK_TYPE = "report.publish"
DAYS = "reports/days/"
TASKS = "reports/tasks/"
TRIES = 5
PAUSE_S = 0.2


class AuditedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a task, for the audit. ``ordered_at`` is a wall time in seconds; that of the first
    attempt counts."""

    task_id: str
    ordered_at: float
    app: str = ""
    attempt: int = 1
    tries: int = 1
    epoch: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The audit row of one file.

    ``day`` is the report's day; ``number`` counts a report's files from 1. ``state`` is running, succeed,
    failed, or queued for another attempt. Times are wall times in seconds; ``attempts`` are the task's.
    ``error`` is that of the last attempt. ``record`` is that of the delivery; ``trace`` is the task's id.
    """

    app: str = ""
    trace: str
    number: int = 1
    epoch: int = 0
    customer: str
    report: str
    day: dt.date
    destination: str
    name: str
    state: TaskState = TaskState.RUNNING
    ordered_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    size: int = 0
    rows: int = 0
    sha256: str = ""
    attempts: int = 0
    error: str = ""
    record: Record | None = None


class _Ordered(msgspec.Struct, frozen=True):
    at: float


_decode = msgspec.json.Decoder(Row).decode
_decode_ordered = msgspec.json.Decoder(_Ordered).decode


class Audit:
    """The rows in one registry. Raises the registry's errors."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._versions: dict[str, int] = {}

    async def ordered_at(self, task_id: str, at: float) -> float:
        """Return the time when a task was ordered: the time of the first call. So its date stays the same in
        later attempts."""
        name = TASKS + task_id
        for _ in range(TRIES):
            try:
                if await self._registry.put(name, msgspec.json.encode(_Ordered(at)), 0):
                    return at
            except OutcomeUnknown:
                await self._pause()
            if found := await self._registry.get(name):
                return _decode_ordered(found.body).at
        raise Unavailable(f"the registry doesn't answer whether it keeps {name}")

    async def find(self, day: dt.date, task_id: str, number: int) -> Row | None:
        """Return the present row, which the next ``keep`` replaces; or None."""
        name = _name(day, task_id, number)
        found = await self._registry.get(name)
        self._versions[name] = found.version if found else 0
        return _decode(found.body) if found else None

    async def keep(self, row: Row) -> None:
        """Replace the row that was found or kept here last. Raises Fenced if another writer did."""
        name, body = _name(row.day, row.trace, row.number), msgspec.json.encode(row)
        standing: Document | None
        for _ in range(TRIES):
            version = self._versions.get(name, 0)
            try:
                standing = await self._registry.put(name, body, version)
            except OutcomeUnknown:
                standing = await self._registry.get(name)
                if (standing.version if standing else 0) == version:
                    await self._pause()
                    continue
                if standing is not None and standing.body != body:
                    standing = None
            if standing is None:
                raise Fenced(f"another attempt at {row.trace!r} owns {row.name!r}", row.epoch)
            self._versions[name] = standing.version
            return
        raise Unavailable(f"the registry doesn't answer whether it keeps {name}")

    async def day(self, day: dt.date) -> list[Row]:
        """Return the rows of one day, by task id and number."""
        return [_decode(document.body) for document in await self._registry.list(f"{DAYS}{day}/")]

    async def forget(self, before: dt.date) -> int:
        """Drop the rows of earlier days, and return how many."""
        dropped = 0
        for document in await self._registry.list(DAYS):
            row = _decode(document.body)
            if row.day < before and await self._registry.drop(document.name, document.version):
                dropped += 1
                if ordered := await self._registry.get(TASKS + row.trace):
                    await self._registry.drop(ordered.name, ordered.version)
        return dropped

    async def _pause(self) -> None:
        await self._clock.sleep(PAUSE_S * self._clock.random())


def _name(day: dt.date, task_id: str, number: int) -> str:
    return f"{DAYS}{day}/{task_id}/{number:06}"
