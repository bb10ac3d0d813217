"""The actions on one task. The command line has its own commands for them: they take several tasks, and their
help must not wait for the imports of the API."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.operate import tasks
from holdfast.operate.actions import Action, Done, NoFields
from holdfast.tasks.api import TaskStanding
from holdfast.tasks.api import shown as standing_of
from holdfast.wiring.services import Services


class TaskName(NamedTuple):
    """The name of a task: its app and its id."""

    app: str
    trace_id: str

    def __str__(self) -> str:
        return f"{self.app}/{self.trace_id}"


class CancelReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason that the task's producer gets."""

    reason: Annotated[str, Meta(max_length=1000, title="Reason")] = tasks.DEFAULT_REASON


class SentTaskId(msgspec.Struct):
    """The id of a task that was sent."""

    trace_id: str


@partial(
    Action,
    name="cancelTask",
    title="Cancel the task",
    audit=tasks.CANCEL_ACTION,
    unavailable="It has ended.",
    status=202,
)
async def cancel(services: Services, task: TaskName, chosen: CancelReason) -> Done[TaskStanding]:
    """Cancel a task: at once if it waits, within seconds if it runs."""
    async with tasks.services_of(services, task.app) as theirs:
        await tasks.cancel(theirs, task.app, task.trace_id, chosen.reason)
        standing = standing_of(await tasks.known(theirs, task.app, task.trace_id))
    return Done(standing, f"task {task.trace_id} is being cancelled")


@partial(
    Action,
    name="retryTask",
    title="Send it again",
    audit=tasks.RETRY_ACTION,
    unavailable="It hasn't failed.",
    status=202,
)
async def retry(services: Services, task: TaskName, chosen: NoFields) -> Done[SentTaskId]:
    """Run a task again, with all its tries, that failed and is in the dead letters."""
    async with tasks.services_of(services, task.app) as theirs:
        await tasks.retry(theirs, task.app, task.trace_id)
    return Done(SentTaskId(task.trace_id), f"task {task.trace_id} was sent again")


ACTIONS: Sequence[Action[TaskName]] = (cancel, retry)
"""All actions on a task, by its name."""
