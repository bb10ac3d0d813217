"""Tasks of apps, their limits and their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.common.message import check_key
from holdfast.common.settings import COUNT_MAX, SECONDS_MAX
from holdfast.console.api.known import check_app
from holdfast.console.api.lists import LIMIT, Cursor, Limit, Next, cursor, place_in
from holdfast.console.api.operations import Call, Operation, derived, described
from holdfast.console.overview import TaskTotals
from holdfast.console.parts import ConsoleParts
from holdfast.operate import limits, periodic, tasks
from holdfast.operate.actions import NoFields
from holdfast.operate.limits import LimitRecord
from holdfast.operate.task_actions import ACTIONS, SentTaskId, TaskName
from holdfast.operate.tasks import TaskLook, services_of
from holdfast.rules.tasks.task import State
from holdfast.tasks.api import TaskStanding
from holdfast.tasks.api import shown as standing_of
from holdfast.tasks.discovery import DeclaredTimes
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.tasks.schedule import ScheduleEntry

MaybeLimit = Annotated[int, Meta(ge=0, le=COUNT_MAX, description="0 means no limit.")] | None
Since = Annotated[
    float,
    Meta(
        ge=0,
        le=SECONDS_MAX,
        description="Only tasks that were queued, started or ended within this number of seconds before now.",
    ),
]
Rate = Annotated[float, Meta(ge=0, le=COUNT_MAX)]


class TasksQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose tasks."""

    state: State | None = None
    type: str = ""
    since_s: Since | None = None
    down: Annotated[
        bool, Meta(description="The highest ids first: of ids that Holdfast makes, the newest.")
    ] = False
    limit: Limit = LIMIT
    cursor: Cursor = ""


class TaskList(msgspec.Struct):
    """A page of tasks in order of their ids. `listTaskApps` has the number of all."""

    tasks: list[TaskStanding]
    next: Next


class TaskApps(msgspec.Struct):
    """The apps that have tasks, with the number of each type in each state."""

    apps: list[TaskTotals]


class NewTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task to send. Of the tasks of one type with the same ``dedupe``, only the first is run. ``then`` is
    sent when it has succeeded, ``on_failure`` if it ends otherwise."""

    task_type: Annotated[str, Meta(min_length=1)]
    body: Any = None
    task_id: str = msgspec.field(default="", name="trace_id")
    dedupe: str = ""
    group: str = ""
    priority: int = 0
    delay_s: float = 0.0
    at: datetime | None = None
    timeout_s: float | None = None
    tries: int | None = None
    then: list[NewTask] = []
    on_failure: list[NewTask] = []

    def order(self) -> Order:
        """Return the task as producers send it. Raises InvalidMessage."""
        if self.task_id:
            check_key(self.task_id, "trace_id")
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return Order(
            **given
            | {
                "then": [each.order() for each in self.then],
                "on_failure": [each.order() for each in self.on_failure],
            }
        )


class LimitList(msgspec.Struct):
    """The limits of all apps that have any."""

    limits: list[LimitRecord]


class NewLimits(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"maximum": "global", "per_node": "node"},
):
    """The limits to change; a limit that is left out stays. ``rates`` are attempts per second by type; null
    is the rate that the app's code declares."""

    maximum: MaybeLimit = None
    per_node: MaybeLimit = None
    strict: bool | None = None
    rates: dict[str, Rate | None] = {}


class NewEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task in the schedule. ``cron`` has five fields, in the time zone ``zone``."""

    cron: str
    task_type: str
    body: Any = None
    zone: str = "UTC"
    missed: Literal["all", "last", "skip"] = "last"
    window_s: float = 3600.0
    group: str = ""
    priority: int = 0
    timeout_s: float | None = None
    tries: int | None = None


class ScheduleView(msgspec.Struct):
    """The schedule of an app by name, and the times that the code of its living nodes declares."""

    entries: dict[str, ScheduleEntry]
    declared: dict[str, DeclaredTimes]


class TaskOperations:
    """Operations on tasks, limits and schedules."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._services = parts.services

    def all(self) -> Sequence[Operation]:
        """Return all of them."""
        app, one = "/tasks/{app}", "/tasks/{app}/{trace_id}"
        return [
            described(self._apps, "GET", "/tasks", "listTaskApps"),
            described(self._list, "GET", app, "listTasks"),
            described(
                self._send,
                "POST",
                app,
                "sendTask",
                action="send a task",
                status=202,
                body_bytes_max=4 * self._services.config.max_message_bytes,
            ),
            described(self._show, "GET", one, "getTask"),
            described(self._stack, "GET", f"{one}/stack", "getTaskStack"),
            *(
                derived(action, one, lambda path: TaskName(path["app"], path["trace_id"]), self._services)
                for action in ACTIONS
            ),
            described(self._limits, "GET", "/limits", "listLimits"),
            described(self._set_limits, "PATCH", "/limits/{app}", "setLimits", action=limits.SET_ACTION),
            described(self._schedule, "GET", "/periodic/{app}", "getSchedule"),
            described(
                self._set_periodic, "PUT", "/periodic/{app}/{name}", "setPeriodic", action=periodic.SET_ACTION
            ),
            described(
                self._remove_periodic,
                "DELETE",
                "/periodic/{app}/{name}",
                "removePeriodic",
                action=periodic.REMOVE_ACTION,
            ),
        ]

    # --- tasks

    async def _apps(self, call: Call[NoFields, None]) -> TaskApps:
        """List the apps that have tasks, with the number in each state."""
        self._parts.attention.asked()
        return TaskApps(list(self._parts.overview.tasks))

    async def _list(self, call: Call[TasksQuery, None]) -> TaskList:
        """List tasks of an app."""
        query = call.query
        await check_app(self._parts, call.path["app"])
        (after,) = place_in(query.cursor, (str,)) or ("",)
        since = 0.0 if query.since_s is None else self._parts.clock.wall() - query.since_s
        async with services_of(self._services, call.path["app"]) as services:
            found = await tasks.listed(
                services,
                call.path["app"],
                query.limit,
                after,
                state=query.state,
                task_type=query.type,
                since=since,
                down=query.down,
            )
        more = len(found) == query.limit
        return TaskList([standing_of(task) for task in found], cursor(found[-1].task_id) if more else "")

    async def _send(self, call: Call[NoFields, NewTask]) -> SentTaskId:
        """Send a task.

        A task with a `trace_id` may be sent again without harm if no answer comes."""
        app = call.path["app"]
        async with services_of(self._services, app) as services:
            (trace,) = await make_producer(services, app).send([call.body.order()])
        call.outcome = trace
        return SentTaskId(trace)

    async def _show(self, call: Call[NoFields, None]) -> TaskStanding:
        """Show one task: state, progress, result or error."""
        app = call.path["app"]
        await check_app(self._parts, app)
        async with services_of(self._services, app) as services:
            return standing_of(await tasks.known(services, app, call.path["trace_id"]))

    async def _stack(self, call: Call[NoFields, None]) -> TaskLook:
        """Show where a running task is: the stack of its handler, and its progress.

        The handler goes on. There are files, lines and functions, and no values."""
        app = call.path["app"]
        await check_app(self._parts, app)
        async with services_of(self._services, app) as services:
            return await tasks.look(services, app, call.path["trace_id"])

    # --- limits

    async def _limits(self, call: Call[NoFields, None]) -> LimitList:
        """List the limits of apps, and how many tasks nodes may run at present."""
        return LimitList(await limits.listed(self._services))

    async def _set_limits(self, call: Call[NoFields, NewLimits]) -> LimitRecord:
        """Change how many tasks of an app may run at once, and how many begin per second."""
        change = call.body
        return await limits.change_limits(
            self._services,
            call.path["app"],
            maximum=change.maximum,
            per_node=change.per_node,
            strict=change.strict,
            rates=change.rates,
        )

    # --- by the clock

    async def _schedule(self, call: Call[NoFields, None]) -> ScheduleView:
        """List the schedule."""
        return await self._view(call.path["app"])

    async def _view(self, app: str) -> ScheduleView:
        async with services_of(self._services, app) as services:
            return ScheduleView(
                await periodic.schedule(services, app), await periodic.declared(services, app)
            )

    async def _set_periodic(self, call: Call[NoFields, NewEntry]) -> ScheduleView:
        """Add a task to the schedule, or change its times or the task."""
        app, entry = call.path["app"], ScheduleEntry(**msgspec.structs.asdict(call.body))
        async with services_of(self._services, app) as services:
            await periodic.set_entry(services, app, call.path["name"], entry)
        return await self._view(app)

    async def _remove_periodic(self, call: Call[NoFields, None]) -> ScheduleView:
        """Remove a task from the schedule. Tasks that were sent continue."""
        app = call.path["app"]
        async with services_of(self._services, app) as services:
            await periodic.remove_entry(services, app, call.path["name"])
        return await self._view(app)
