"""The console's page of reports: the ordered files of a day, their states and destinations."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from holdfast.errors import HoldfastError
from holdfast.extend import TaskState
from holdfast.extend.pages import ConsoleParts, Group, RequestRefused, whole_number
from holdfast.extend.tools import redact
from holdfast.reports.audit import Row
from holdfast.reports.listing import LEFT_OUT, STATES, FilesFound, files_of, today

SHOWN = 100
OFFSET_MAX = 10**9 - 1


class FileQuestion(NamedTuple):
    """The query of the page of files. ``offset``: the number of files to skip."""

    day: dt.date
    customer: str = ""
    state: TaskState | None = None
    app: str = ""
    offset: int = 0

    @property
    def path(self) -> str:
        named = {"date": self.day, "customer": self.customer, "state": self.state and self.state.value}
        named |= {"app": self.app, "from": self.offset or None}
        return f"/reports?{urlencode({name: value for name, value in named.items() if value})}"


class ReportPages:
    """The pages of one console."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def day(self, request: web.Request) -> web.Response:
        services = self._parts.services
        question = _question(request, today(services))
        apps, found, refused = list[str](), FilesFound([], complete=True), ""
        try:
            apps = await services.task_apps()
            day, customer, state, app, _ = question
            found = await files_of(services, day, customer=customer, state=state, app=app)
        except HoldfastError as error:
            refused = redact(str(error))
        rows, first, last = found.rows, question.offset, question.offset + SHOWN
        one_day = dt.timedelta(days=1)
        return self._parts.renderer.page(
            request,
            "reports/reports.html",
            title="Reports",
            question=question,
            apps=sorted(apps),
            states=STATES,
            refused=refused,
            left_out="" if found.complete else LEFT_OUT,
            files=[(row, _task_path(row)) for row in rows[first:last]],
            total=len(rows),
            size=sum(row.size for row in rows),
            rows=sum(row.rows for row in rows),
            failed=sum(row.state in (TaskState.FAILED, TaskState.TIMEOUT) for row in rows),
            before=question._replace(day=question.day - one_day, offset=0).path,
            after=question._replace(day=question.day + one_day, offset=0).path,
            earlier=question._replace(offset=max(0, first - SHOWN)).path if first else "",
            later=question._replace(offset=last).path if last < len(rows) else "",
        )


def _question(request: web.Request, today: dt.date) -> FileQuestion:
    query = request.query
    try:
        day = dt.date.fromisoformat(query.get("date", "") or today.isoformat())
        state = TaskState(query["state"]) if query.get("state") else None
    except ValueError as error:
        raise RequestRefused(400, "reports", "No such files", str(error)) from None
    if not dt.date.min < day < dt.date.max:
        raise RequestRefused(
            400, "reports", "No such files", "it is the first or the last day of the calendar"
        )
    offset = whole_number(query.get("from", ""), OFFSET_MAX) or 0
    customer = query.get("customer", "").strip()
    return FileQuestion(day, customer, state, query.get("app", ""), offset)


def _task_path(row: Row) -> str:
    """Return the address of the page of a file's task; "" for a file without a task."""
    return f"/task?{urlencode({'app': row.app, 'trace': row.trace})}" if row.app else ""


def groups(parts: ConsoleParts) -> list[Group]:
    """Return the routes, by the right that they need."""
    return [("read", [web.get("/reports", ReportPages(parts).day)])]
