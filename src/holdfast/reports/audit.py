"""The audit: one row for each file that was ordered, kept when its message is long gone.

Rows are documents of the registry, which lists by prefix, changes by compare-and-set, and is there on each
store that holds tasks: so there is no store of their own to set up. A row holds also how far the file's
delivery is, so that whoever comes next goes on from it; and as each write names the version that it replaces,
a worker that was taken for dead can't write over what its successor knows.

``reports/days/DAY/TRACE/NUMBER`` is a row, ``reports/tasks/TRACE`` when a task was ordered.
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
    """An attempt at a task, as the audit tells of it. ``ordered_at`` is a wall time in seconds; what was said
    at the task's first attempt counts."""

    trace: str
    ordered_at: float
    app: str = ""
    attempt: int = 1
    tries: int = 1
    epoch: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file.

    ``day`` is the one that the report is for; ``number`` counts a report's files from 1. ``state`` is
    running, succeed, failed, or queued for another attempt. Times are wall times in seconds; ``attempts``
    are the task's. ``error`` says why the last attempt failed. ``record`` is how far its delivery is.
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
    """The rows in one registry. Raises as that does."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._versions: dict[str, int] = {}

    async def ordered_at(self, trace: str, at: float) -> float:
        """Note ``at`` as the time when a task was ordered, and return it; or return the time that was noted
        first, so that its date stays the same."""
        name = TASKS + trace
        for _ in range(TRIES):
            try:
                if await self._registry.put(name, msgspec.json.encode(_Ordered(at)), 0):
                    return at
            except OutcomeUnknown:
                await self._pause()
            if found := await self._registry.get(name):
                return _decode_ordered(found.body).at
        raise Unavailable(f"the registry doesn't keep {name}")

    async def find(self, day: dt.date, trace: str, number: int) -> Row | None:
        """A row as it stands. What ``keep`` writes next replaces this one."""
        name = _name(day, trace, number)
        found = await self._registry.get(name)
        self._versions[name] = found.version if found else 0
        return _decode(found.body) if found else None

    async def keep(self, row: Row) -> None:
        """Write a row in place of what was found or kept here before. Raises Fenced if somebody else did."""
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
                raise Fenced(f"another attempt at {row.trace!r} goes on with {row.name!r}", row.epoch)
            self._versions[name] = standing.version
            return
        raise Unavailable(f"the registry doesn't keep {name}")

    async def day(self, day: dt.date) -> list[Row]:
        """The rows of one day, by trace and number."""
        return [_decode(document.body) for document in await self._registry.list(f"{DAYS}{day}/")]

    async def forget(self, before: dt.date) -> int:
        """Drop the rows of earlier days; returns how many."""
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


def _name(day: dt.date, trace: str, number: int) -> str:
    return f"{DAYS}{day}/{trace}/{number:06}"
