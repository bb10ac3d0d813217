"""Tasks of an app: listed, looked at, ended, run anew. ``services`` are those that know the app's tasks, as
:func:`holdfast.tasks.opening.producing` finds them."""

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
"""What the audit log calls what is done, whether on a page, by the API or on the command line."""

DEFAULT_REASON = "by an operator"
"""The reason of a cancellation that gives none."""

WAITING_LOOKED_AT, WAITING_PAGE = 1000, 100
"""The most messages of a queue that are read to find the body of one task, and how many at once."""

LOOK_TIMEOUT_S = 5.0
NO_STACKS = (
    "Its process doesn't answer: the handler is in a call that holds the interpreter, or the process stands"
    " still. If that lasts, stall_s or timeout_s of its type end it."
)
"""What to say where a process doesn't tell its stacks."""


class TaskRunner(NamedTuple):
    """A living node that runs a type of tasks, as the registry knows it."""

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
    """The living nodes that run each type."""
    listing = await _listing(services, app)
    return [
        TaskRunner(name, each.node, each.address) for name, runs in listing.types.items() for each in runs
    ]


async def _listing(services: Services, app: str) -> Listing:
    """Return the registry's record of an app."""
    from holdfast.tasks.discovery import Directory  # noqa: PLC0415

    return await Directory(services.registry(), app, services.clock).read()


async def tasks_warning(services: Services, app: str, types: Collection[str] = ()) -> str:
    """Return a warning if no living node runs the app, or none runs some of these types; else an empty text.
    Most of such names are misspelt."""
    try:
        running = {runner.type for runner in await runners(services, app)}
    except HoldfastError:  # what was set is set in any case
        return ""
    if not running:
        return f"no node runs tasks of app {app!r} now"
    if missing := sorted({*types} - running):
        there = ", ".join(sorted(running))
        return f"no node runs tasks of type {', '.join(missing)}; nodes of {app} run {there}"
    return ""


async def known(services: Services, app: str, task_id: str) -> Task:
    """One task whole, with what it returned. Raises OperationRefused if it isn't known."""
    task = await make_producer(services, app).status(task_id)
    if task is None:
        raise not_known(task_id)
    return task


def not_known(*task_ids: str) -> NotKnown:
    """Return what to raise for tasks that aren't known."""
    named = ", ".join(map(repr, task_ids))
    return NotKnown(f"no task {named} is known, or not any more; `holdfast tasks ls` lists them")


class TaskLook(msgspec.Struct):
    """The place of a running task in its code. ``stacks`` has the calls of each thread of its process,
    the newest last: files, lines and functions; null if the process doesn't answer, because the handler holds
    the interpreter (a long call of a library that doesn't release it) or the process stands still. ``ran_s``
    is how long it has run, ``quiet_s`` how long ago it last said how far it is."""

    node: str
    stacks: str | None
    ran_s: float
    quiet_s: float
    progress: float
    note: str
    numbers: dict[str, float] = {}


async def look(services: Services, app: str, task_id: str) -> TaskLook:
    """Look where a running task is, without a halt. Raises OperationRefused if it doesn't run."""
    task = await known(services, app, task_id)
    if task.state is not State.RUNNING:
        raise OperationRefused(f"task {task_id!r} doesn't run: it is {task.state.value}")
    # By its membership: a node that was started again under the same name doesn't run the task.
    entry = (await _listing(services, app)).nodes.get(task.member)
    if entry is None:
        raise OperationRefused(f"node {task.node!r}, where task {task_id!r} began, isn't there any more")
    member = Member(task.member, task.node, entry.address)
    text = await nodes.ask(services, member, LookAtTask(member.id, task_id), LOOK_TIMEOUT_S)
    with reading(f"what {task.node} tells of {task_id}"):
        told = msgspec.json.decode(text, type=dict[str, Any])
        return msgspec.convert({"node": task.node, **told}, TaskLook)


async def sent_body(services: Services, app: str, task: Task) -> bytes | None:
    """Return the body that a task was sent with, where nothing is taken from a queue to read it: of a delayed
    one, of one that lies with the dead letters, and of one that waits or runs, where its queue can be looked
    into and has it among the first ``WAITING_LOOKED_AT``. None elsewhere, and for a body that is stored
    apart."""
    data = task.message
    if not data and task.state is not State.SUCCEEDED:
        queue = services.queue(task_queue(app, task.type))
        data = await (_dead_body(queue, task) if task.ended else _waiting_body(queue, task))
    if not data:
        return None
    from holdfast.tasks.wire import Envelope, decode_task  # noqa: PLC0415

    try:
        body = decode_task(data, Envelope(app=app, task_id=task.task_id, task_type=task.type)).body
    except InvalidMessage:  # what can't be read as a task is shown as it is
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
    """Have a task end: at once if it waits, within seconds if it runs. Raises OperationRefused if it isn't
    known, or has ended."""
    task = await known(services, app, task_id)
    if task.ended:
        raise OperationRefused(f"task {task_id!r} is {task.state.value} already")
    await make_producer(services, app).cancel(task_id, reason)


async def retry(services: Services, app: str, task_id: str) -> None:
    """Run a task anew that failed and lies with the dead letters. Raises OperationRefused if it doesn't."""
    task = await known(services, app, task_id)
    await make_producer(services, app).retry(task)


async def check_app(services: Services, app: str) -> None:
    """Raise NotKnown for an app of which neither the task store nor the registry knows anything. Whoever may
    only read must not have stores opened that nobody uses."""
    if app in await services.task_apps():
        return
    from holdfast.tasks.discovery import Directory, Listing  # noqa: PLC0415

    # Not every service lists the apps that have tasks, but nodes announce theirs.
    directory = Directory(services.registry(), app, services.clock)
    if not app.isidentifier() or await directory.read() == Listing():
        raise NotKnown(f"no tasks of an app {app[:200]!r} are known")


@contextlib.asynccontextmanager
async def services_of(services: Services, app: str) -> AsyncIterator[Services]:
    """The services that know an app's tasks: these, or those that its nodes have told the registry."""
    found = await discovered(services.config, lambda: app, needs=PRODUCER_NEEDS, reads_only=True)
    if found is services.config:
        yield services
        return
    async with Services(found, reads_only=True) as others:
        yield others
