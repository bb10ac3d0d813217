"""The pages of tasks: lists, one task, limits and the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from holdfast.common.codec import decode_plain, encode
from holdfast.common.redaction import redact
from holdfast.console.access import Group
from holdfast.console.api.known import check_app
from holdfast.console.pages.acting import act, action_route, field, number
from holdfast.console.parts import ConsoleParts
from holdfast.console.rendering import html_response
from holdfast.errors import ConfigError, HoldfastError
from holdfast.http.problem import RequestRefused
from holdfast.operate import limits, periodic
from holdfast.operate import tasks as operations
from holdfast.operate.task_actions import ACTIONS, TaskName
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import BATCH, State, Task
from holdfast.tasks.discovery import DeclaredTimes
from holdfast.tasks.periodic import Times
from holdfast.tasks.schedule import ScheduleEntry

ROWS = 50
PAGE = 200
LOOKED_MAX = 2000
"""The most tasks that are read for one page of the list, so that no filter reads a whole store."""

CANCELLED = "cancelled"
"""The state of cancelled tasks on pages. In the store they have failed."""

TIMES = {
    "": "Any time",
    "900": "Last 15 minutes",
    "3600": "Last hour",
    "86400": "Last day",
    "604800": "Last week",
}
"""The choices for the time of the last change, in seconds."""

NAME_MAX = 300
STATES = [*(state.value for state in State if state is not State.DUPLICATED), CANCELLED]
ENDED_BADLY = (State.FAILED, State.TIMEOUT)


class ScheduleRow(NamedTuple):
    """An entry of the schedule, and its next time. ``task_type`` is empty if the app's code declares the
    entry."""

    name: str
    cron: str
    zone: str
    next_at: float | None
    task_type: str = ""


class TaskRow(NamedTuple):
    """A task in the list. ``state`` is that of the store, or cancelled. ``due_at`` is the time at which a
    waiting task may begin, and ``note`` its progress in words, or its error."""

    task: Task
    path: str
    state: str
    runtime_s: float | None
    due_at: float
    note: str


class FoundTasks(NamedTuple):
    """Tasks that match, the number that was read, and the id after which there may be more; "" at
    the end."""

    tasks: Sequence[Task]
    looked: int
    after: str


class TaskQuestion(NamedTuple):
    """A search for tasks: of an app, in a state, of a type, queued, begun or ended within a time, and after
    the one with this task id."""

    app: str
    state: str = ""
    task_type: str = ""
    within: str = ""
    after: str = ""

    def fits(self, task: Task, now: float) -> bool:
        """Return True if a task of the right state in the store matches."""
        if self.state in (CANCELLED, *ENDED_BADLY) and task.cancelled != (self.state == CANCELLED):
            return False
        return not self.within or task.moved_at >= now - float(self.within)

    @property
    def query(self) -> str:
        """The search as the query of an address."""
        named = {
            "app": self.app,
            "state": self.state,
            "type": self.task_type,
            "within": self.within,
            "after": self.after,
        }
        return urlencode({name: value for name, value in named.items() if value})


class TaskPages:
    """The pages of tasks."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def list(self, request: web.Request) -> web.Response:
        """Answer with the tasks of an app."""
        question = await self._asked(request)
        apps = {app.app: app for app in self._parts.overview.tasks}
        content = await self._rows(question) if question.app else ""
        return self._parts.renderer.page(
            request,
            "tasks.html",
            title="Tasks",
            question=question,
            apps=sorted(apps),
            types=sorted(name for name in apps[question.app].types if name != BATCH)
            if question.app in apps
            else [],
            states=STATES,
            times=TIMES,
            limits=await limits.listed(self._parts.services, question.app) if question.app else [],
            schedule=await self._schedule(question.app) if question.app else [],
            part_path=f"/parts/tasks?{question.query}",
            content=self._parts.renderer.safe(content),
        )

    async def part(self, request: web.Request) -> web.Response:
        """Answer with the rows."""
        return html_response(await self._rows(await self._asked(request)))

    async def _rows(self, question: TaskQuestion) -> str:
        self._parts.attention.asked()
        return await self._parts.cache.get(question, lambda: self._make_rows(question))

    async def _make_rows(self, question: TaskQuestion) -> str:
        store = self._parts.services.task_store(question.app)
        now = await store.now()
        found = await _find(store, question, now)
        totals = next((app for app in self._parts.overview.tasks if app.app == question.app), None)
        return self._parts.renderer.part(
            "parts/tasks.html",
            app=question.app,
            rows=[_row(question.app, task, now) for task in found.tasks],
            looked=found.looked if found.after and len(found.tasks) < ROWS else 0,
            totals=totals,
            batch=BATCH,
            first=question._replace(after="").query if question.after else "",
            later=question._replace(after=found.after).query if found.after else "",
        )

    async def _schedule(self, app: str) -> Sequence[ScheduleRow]:
        async with operations.services_of(self._parts.services, app) as services:
            entries = await periodic.schedule(services, app)
            declared = await periodic.declared(services, app)
        now = self._parts.clock.wall()
        return [
            *(
                ScheduleRow(name, each.cron, each.zone, _next_at(name, each, now))
                for name, each in declared.items()
            ),
            *(
                ScheduleRow(name, each.cron, each.zone, _next_at(name, each, now), each.task_type)
                for name, each in entries.items()
            ),
        ]

    # --- one task

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the page of one task."""
        app, trace = request.query.get("app", ""), request.query.get("trace", "")
        content = await self._task(app, trace)
        return self._parts.renderer.page(
            request,
            "task.html",
            title=f"Task {trace}",
            app=app,
            trace=trace,
            actions=ACTIONS,
            part_path=f"/parts/task?{urlencode({'app': app, 'trace': trace})}",
            content=self._parts.renderer.safe(content),
        )

    async def show_part(self, request: web.Request) -> web.Response:
        """Answer with what changes on it."""
        return html_response(await self._task(request.query.get("app", ""), request.query.get("trace", "")))

    async def _task(self, app: str, trace: str) -> str:
        from holdfast.tasks.api import shown  # noqa: PLC0415

        self._parts.attention.asked()
        await check_app(self._parts, app)
        task = await self._parts.services.task_store(app).get(trace)
        if task is None:
            raise _no_task(trace)
        standing = shown(task)
        value = encode(standing.value) if standing.value is not None else b""
        return self._parts.renderer.part(
            "parts/task.html",
            task=task,
            standing=standing,
            value=value,
            now=self._parts.clock.wall(),
            off=" ".join(_off(task)),
            state=state_of(task),
            body=await self._body(app, task),
            stack_path=f"/task/stack?{urlencode({'app': app, 'trace': trace})}",
        )

    async def _body(self, app: str, task: Task) -> bytes | None:
        """Return the body of a task, or None if it can't be read; other pages show errors of queues."""
        if task.type == BATCH:
            return None
        try:
            async with operations.services_of(self._parts.services, app) as services:
                return await operations.sent_body(services, app, task)
        except HoldfastError:
            return None

    async def stack(self, request: web.Request) -> web.Response:
        """Answer with where a running task is."""
        app, trace = request.query.get("app", ""), request.query.get("trace", "")
        await check_app(self._parts, app)
        found, refused = None, ""
        try:
            async with operations.services_of(self._parts.services, app) as services:
                found = await operations.look(services, app, trace)
        except HoldfastError as error:
            refused = redact(str(error))
        return self._parts.renderer.page(
            request,
            "stack.html",
            title=f"Stack of task {trace}",
            app=app,
            trace=trace,
            back=_path(app, trace),
            found=found,
            refused=refused,
            no_stacks=operations.NO_STACKS,
        )

    # --- what is done

    async def subject(self, form: Mapping[str, object]) -> tuple[TaskName, str]:
        """Return the task that a form names, and the path of its page."""
        task = TaskName(field(form, "app"), field(form, "trace"))
        await check_app(self._parts, task.app)
        return task, _path(task.app, task.trace_id)

    async def set_limits(self, request: web.Request) -> web.Response:
        """Change the limits of an app."""
        form = await request.post()
        app = field(form, "app")
        await check_app(self._parts, app)
        given = {
            name: field(form, name) for name in ("maximum", "per_node", "type", "rate") if field(form, name)
        }

        async def change() -> str:
            maximum = number(form, "maximum", "the limit of all nodes together")
            per_node = number(form, "per_node", "the limit of each node")
            rates = {given["type"]: _rate(given.get("rate", ""))} if "type" in given else {}
            if maximum is None and per_node is None and not rates:
                raise ConfigError("the form is empty: give a limit or a rate")
            await limits.change_limits(
                self._parts.services, app, maximum=maximum, per_node=per_node, rates=rates
            )
            return f"the limits of {app} are changed"

        return await act(
            self._parts,
            request,
            limits.SET_ACTION,
            app,
            change,
            back=f"/tasks?{urlencode({'app': app})}",
            details=given,
        )

    async def schedule(self, request: web.Request) -> web.Response:
        """Add an entry to the schedule, or change one."""
        form = await request.post()
        app, name = field(form, "app"), field(form, "name")
        await check_app(self._parts, app)
        given = {each: field(form, each) for each in ("cron", "zone", "type") if field(form, each)}

        async def put() -> str:
            if not name:
                raise ConfigError("the entry has no name; give it one")
            cron, zone = field(form, "cron"), field(form, "zone") or "UTC"
            try:
                body = decode_plain((field(form, "body") or "null").encode())
            except ValueError as error:
                raise ConfigError(f"the body isn't JSON: {error}") from None
            entry = ScheduleEntry(cron=cron, zone=zone, task_type=field(form, "type"), body=body)
            async with operations.services_of(self._parts.services, app) as services:
                await periodic.set_entry(services, app, name, entry)
            return f"{name} is sent at {cron} ({zone})"

        back = f"/tasks?{urlencode({'app': app})}"
        return await act(
            self._parts,
            request,
            periodic.SET_ACTION,
            f"{app}/{name}",
            put,
            back=back,
            details=given,
        )

    async def unschedule(self, request: web.Request) -> web.Response:
        """Remove an entry of the schedule."""
        form = await request.post()
        app, name = field(form, "app"), field(form, "name")
        await check_app(self._parts, app)

        async def remove() -> str:
            async with operations.services_of(self._parts.services, app) as services:
                await periodic.remove_entry(services, app, name)
            return f"{name} is removed from the schedule"

        back = f"/tasks?{urlencode({'app': app})}"
        return await act(self._parts, request, periodic.REMOVE_ACTION, f"{app}/{name}", remove, back=back)

    async def _asked(self, request: web.Request) -> TaskQuestion:
        query = request.query
        apps = [app.app for app in self._parts.overview.tasks]
        app = query.get("app", "") or (apps[0] if apps else "")
        if app:
            await check_app(self._parts, app)
        state = query.get("state", "")
        return TaskQuestion(
            app,
            state if state in STATES else "",
            query.get("type", "")[:NAME_MAX],
            within if (within := query.get("within", "")) in TIMES else "",
            query.get("after", "")[:NAME_MAX],
        )


async def _find(store: TaskStore, question: TaskQuestion, now: float) -> FoundTasks:
    """Return a page of the tasks that match, highest ids first: ids from Holdfast begin with their time."""
    known = question.state and question.state != CANCELLED
    state = State(question.state) if known else None
    found, looked, after = list[Task](), 0, question.after
    while looked < LOOKED_MAX:
        page = await store.list(PAGE, after, state=state, type=question.task_type, down=True)
        for task in page:
            if len(found) == ROWS:
                return FoundTasks(found, looked, after)
            looked, after = looked + 1, task.task_id
            if question.fits(task, now):
                found.append(task)
        if len(page) < PAGE:
            return FoundTasks(found, looked, "")
    return FoundTasks(found, looked, after)


def _row(app: str, task: Task, now: float) -> TaskRow:
    runs = task.state is State.RUNNING
    till = now if runs else task.ended_at
    runtime_s = max(0.0, till - task.started_at) if till and task.started_at else None
    due_at = max(task.send_at, task.until) if task.state is State.QUEUED else 0.0
    note = task.note if runs else task.cancel or task.detail.partition("\n")[0]
    return TaskRow(
        task, _path(app, task.task_id), state_of(task), runtime_s, due_at if due_at > now else 0.0, note[:300]
    )


def state_of(task: Task) -> str:
    """Return the state of a task as the pages name it."""
    return CANCELLED if task.cancelled else task.state.value


def _off(task: Task) -> Iterable[str]:
    """Yield what can't be done to a task as it stands."""
    if task.ended:
        yield "cancel"
    if task.state not in ENDED_BADLY:
        yield "retry"


def _next_at(name: str, times: DeclaredTimes | ScheduleEntry, now: float) -> float | None:
    """Return the next time; None where this version can't read what another one has written."""
    try:
        return Times(name=name, cron=times.cron, zone=times.zone).next_at(now)
    except HoldfastError:
        return None


def _rate(text: str) -> float | None:
    """A rate of attempts per second; None, for what the code declares, if it is empty."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ConfigError(f"the rate must be a number of attempts per second; this is {text[:50]!r}")
    return value


def _path(app: str, trace: str) -> str:
    return f"/task?{urlencode({'app': app, 'trace': trace})}"


def _no_task(trace: str) -> RequestRefused:
    return RequestRefused(
        404,
        "no-task",
        "Task not found",
        f"no task {trace[:NAME_MAX]!r} is known, or it was deleted",
    )


def groups(parts: ConsoleParts) -> list[Group]:
    """The routes of tasks."""
    pages = TaskPages(parts)
    return [
        (
            "read",
            [
                web.get("/tasks", pages.list),
                web.get("/parts/tasks", pages.part),
                web.get("/task", pages.show),
                web.get("/parts/task", pages.show_part),
                web.get("/task/stack", pages.stack),
            ],
        ),
        (
            "operate",
            [
                *(action_route(parts, action, "/task", pages.subject) for action in ACTIONS),
                web.post("/tasks/limits", pages.set_limits),
                web.post("/tasks/schedule", pages.schedule),
                web.post("/tasks/unschedule", pages.unschedule),
            ],
        ),
    ]
