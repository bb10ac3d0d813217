"""Tasks of an app: listed, shown, cancelled, retried. ``services`` must know the app's tasks, as the
services of :func:`holdfast.tasks.opening.producing` do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast.common.protocol import LookAtTask
from holdfast.common.record import reading
from holdfast.errors import HoldfastError, InvalidMessage, NotKnown, OperationRefused
from holdfast.operate import nodes
from holdfast.ports.coordinator import Member
from holdfast.ports.queue import Queue, TransferableQueue
from holdfast.rules.tasks.task import State, Task
from holdfast.tasks.names import task_queue
from holdfast.tasks.opening import PRODUCER_NEEDS, discovered, make_producer
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.tasks.discovery import Listing

CANCEL_ACTION, RETRY_ACTION = "cancel a task", "send a task again"
"""The names of actions in the audit log."""

DEFAULT_REASON = "by an operator"
"""The reason of a cancellation that gives none."""

WAITING_LOOKED_AT, WAITING_PAGE = 1000, 100
"""The most messages of a queue that are read to find the body of one task, and the size of a page."""

LOOK_TIMEOUT_S = 5.0
NO_STACKS = (
    "Its process doesn't answer: the handler is in a call that holds the interpreter, or the process stands"
    " still. If that lasts, stall_s or timeout_s of its type end it."
)
"""The explanation of a missing stack."""


class TaskRunner(NamedTuple):
    """A living node that runs a type of tasks, as in the registry."""

    type: str
    node: str
    address: str


async def listed(
    services: Services,
    app: str,
    limit: int,
    after: str = "",
    *,
    state: State | None = None,
    task_type: str = "",
    since: float = 0.0,
    down: bool = False,
) -> Sequence[Task]:
    """Tasks in order of their task ids, after the id ``after``: at most ``limit``, in this state, of this
    type, and that were queued, started or ended since this wall time; with ``down``, the other way round."""
    store = services.task_store(app)
    return await store.list(limit, after, state=state, type=task_type, since=since, down=down)


async def counts(services: Services, app: str) -> Mapping[tuple[str, State], int]:
    """Return how many tasks of each type are in each state."""
    return await services.task_store(app).counts()


async def runners(services: Services, app: str) -> list[TaskRunner]:
    """Return the living nodes that run each type."""
    listing = await _listing(services, app)
    return [
        TaskRunner(name, each.node, each.address) for name, runs in listing.types.items() for each in runs
    ]


async def _listing(services: Services, app: str) -> Listing:
    """Return the registry's record of an app."""
    from holdfast.tasks.discovery import Directory  # noqa: PLC0415

    return await Directory(services.registry(), app, services.clock).read()


async def tasks_warning(services: Services, app: str, types: Collection[str] = ()) -> str:
    """Return a warning if no living node runs the app, or some of these types, as for misspelt names; else an
    empty text."""
    try:
        running = {runner.type for runner in await runners(services, app)}
    except HoldfastError:  # the change is done anyway
        return ""
    if not running:
        return f"no node runs tasks of app {app!r} now"
    if missing := sorted({*types} - running):
        there = ", ".join(sorted(running))
        return f"no node runs tasks of type {', '.join(missing)}; nodes of {app} run {there}"
    return ""


async def known(services: Services, app: str, task_id: str) -> Task:
    """Return one task with its result. Raises NotKnown."""
    task = await make_producer(services, app).status(task_id)
    if task is None:
        raise not_known(task_id)
    return task


def not_known(*task_ids: str) -> NotKnown:
    """Return the error for tasks that aren't known."""
    named = ", ".join(map(repr, task_ids))
    return NotKnown(f"no task {named} is known, or it was deleted; `holdfast tasks ls` lists the tasks")


class TaskLook(msgspec.Struct):
    """The place of a running task in its code. ``stacks`` has the calls of each thread of its process, the
    newest last: files, lines and functions. It is null if the process doesn't answer: the handler holds the
    interpreter in a long call, or the process stands still. ``ran_s`` is the time since its start, and
    ``quiet_s`` the time since its last report of progress."""

    node: str
    stacks: str | None
    ran_s: float
    quiet_s: float
    progress: float
    note: str
    numbers: dict[str, float] = {}


async def look(services: Services, app: str, task_id: str) -> TaskLook:
    """Return where a running task is, without stopping it. Raises OperationRefused if it doesn't run."""
    task = await known(services, app, task_id)
    if task.state is not State.RUNNING:
        raise OperationRefused(f"task {task_id!r} doesn't run: it is {task.state.value}")
    # By its membership: a node that was started again under the same name doesn't run the task.
    entry = (await _listing(services, app)).nodes.get(task.member)
    if entry is None:
        raise OperationRefused(f"node {task.node!r}, where task {task_id!r} began, isn't there any more")
    member = Member(task.member, task.node, entry.address)
    text = await nodes.ask(services, member, LookAtTask(member.id, task_id), LOOK_TIMEOUT_S)
    with reading(f"the report of {task.node} about {task_id}"):
        report = msgspec.json.decode(text, type=dict[str, Any])
        return msgspec.convert({"node": task.node, **report}, TaskLook)


async def sent_body(services: Services, app: str, task: Task) -> bytes | None:
    """Return the body of a task, if it can be read without taking anything from a queue: for a delayed
    task, for one in the dead letters, and for one among the first ``WAITING_LOOKED_AT`` messages of a queue
    that can be read. Else, and for a body in an object store, return None."""
    data = task.message
    if not data and task.state is not State.SUCCEEDED:
        queue = services.queue(task_queue(app, task.type))
        data = await (_dead_body(queue, task) if task.ended else _waiting_body(queue, task))
    if not data:
        return None
    from holdfast.tasks.wire import Envelope, decode_task  # noqa: PLC0415

    try:
        body = decode_task(data, Envelope(app=app, task_id=task.task_id, task_type=task.type)).body
    except InvalidMessage:  # a message that isn't a task is shown unchanged
        return data
    return None if body.stored is not None else body.data


async def _dead_body(queue: Queue, task: Task) -> bytes:
    letters = [] if queue.hides_dead_letters else await queue.dead_letters(1, "", task.task_id)
    return letters[0].body if letters else b""


async def _waiting_body(queue: Queue, task: Task) -> bytes:
    if not hasattr(queue, "waiting"):
        return b""
    queue, after = cast("TransferableQueue", queue), ""
    for _ in range(0, WAITING_LOOKED_AT, WAITING_PAGE):
        messages = await queue.waiting(WAITING_PAGE, after)
        found = next((message.body for message in messages if message.key == task.task_id), None)
        if found is not None or not messages:
            return found or b""
        after = messages[-1].id
    return b""


async def cancel(services: Services, app: str, task_id: str, reason: str) -> None:
    """Cancel a task: at once if it waits, within seconds if it runs. Raises NotKnown, and OperationRefused
    if it has ended."""
    task = await known(services, app, task_id)
    if task.ended:
        raise OperationRefused(f"task {task_id!r} has ended already: {task.state.value}")
    await make_producer(services, app).cancel(task_id, reason)


async def retry(services: Services, app: str, task_id: str) -> None:
    """Run a task again that failed and is in the dead letters. Raises OperationRefused if it isn't."""
    task = await known(services, app, task_id)
    await make_producer(services, app).retry(task)


async def check_app(services: Services, app: str) -> None:
    """Raise NotKnown for an app that neither the task store nor the registry knows: a request that only reads
    mustn't open a new store."""
    if app in await services.task_apps():
        return
    from holdfast.tasks.discovery import Directory, Listing  # noqa: PLC0415

    # Not every service lists the apps that have tasks, but nodes announce theirs.
    directory = Directory(services.registry(), app, services.clock)
    if not app.isidentifier() or await directory.read() == Listing():
        raise NotKnown(f"no tasks of an app {app[:200]!r} are known")


@contextlib.asynccontextmanager
async def services_of(services: Services, app: str) -> AsyncIterator[Services]:
    """Yield the services that know an app's tasks: these, or the ones that its nodes have put into the
    registry."""
    found = await discovered(services.config, lambda: app, needs=PRODUCER_NEEDS, reads_only=True)
    if found is services.config:
        yield services
        return
    async with Services(found, reads_only=True) as others:
        yield others
