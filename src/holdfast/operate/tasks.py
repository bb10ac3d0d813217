"""Tasks of an app: listed, looked at, ended, run anew. ``services`` are those that know the app's tasks, as
:func:`holdfast.tasks.opening.producing` finds them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import NotKnown, OperationRefused
from holdfast.tasks.opening import PRODUCER_NEEDS, discovered, make_producer
from holdfast.tasks.rules.task import State, Task
from holdfast.wiring import Services


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
) -> Sequence[Task]:
    """Tasks in order of their trace ids, after the id ``after``: at most ``limit``, in this state, of this
    type, and that were queued, started or ended since this wall time."""
    return await services.task_store(app).list(limit, after, state=state, type=task_type, since=since)


async def counts(services: Services, app: str) -> Mapping[tuple[str, State], int]:
    """How many tasks of each type stand in each state."""
    return await services.task_store(app).counts()


async def runners(services: Services, app: str) -> list[TaskRunner]:
    """The living nodes that run each type."""
    from holdfast.tasks.discovery import Directory  # noqa: PLC0415

    listing = await Directory(services.registry(), app, services.clock).read()
    return [
        TaskRunner(name, each.node, each.address) for name, nodes in listing.types.items() for each in nodes
    ]


async def known(services: Services, app: str, trace_id: str) -> Task:
    """One task whole, with what it returned. Raises OperationRefused if it isn't known."""
    task = await make_producer(services, app).status(trace_id)
    if task is None:
        raise NotKnown(f"no task {trace_id!r} is known, or not any more; `holdfast tasks ls` lists them")
    return task


async def cancel(services: Services, app: str, trace_id: str, reason: str) -> None:
    """Have a task end: at once if it waits, within seconds if it runs. Raises OperationRefused if it isn't
    known, or has ended."""
    task = await known(services, app, trace_id)
    if task.ended:
        raise OperationRefused(f"task {trace_id!r} is {task.state.value} already")
    await make_producer(services, app).cancel(trace_id, reason)


async def retry(services: Services, app: str, trace_id: str) -> None:
    """Run a task anew that failed and lies with the dead letters. Raises OperationRefused if it doesn't."""
    task = await known(services, app, trace_id)
    await make_producer(services, app).retry(task)


@contextlib.asynccontextmanager
async def services_of(services: Services, app: str) -> AsyncIterator[Services]:
    """The services that know an app's tasks: these, or those that its nodes have told the registry."""
    found = await discovered(services.config, lambda: app, needs=PRODUCER_NEEDS, reads_only=True)
    if found is services.config:
        yield services
        return
    async with Services(found, reads_only=True) as others:
        yield others
