"""Tasks that are sent by the clock, as operators add, change and remove them while nodes run."""

from __future__ import annotations

from holdfast.tasks.discovery import DeclaredTimes, Directory
from holdfast.tasks.schedule import ScheduleEntry, Schedules
from holdfast.wiring.services import Services

SET_ACTION, REMOVE_ACTION = "set in the schedule", "remove from the schedule"
"""What the audit log calls what is done, whether on a page, by the API or on the command line."""


async def schedule(services: Services, app: str) -> dict[str, ScheduleEntry]:
    """The entries of an app's schedule, by name. What its code declares isn't in it."""
    return dict(sorted((await _schedules(services, app).read()).items()))


async def declared(services: Services, app: str) -> dict[str, DeclaredTimes]:
    """Return the times at which the living nodes of an app do what its code declares, by name."""
    return (await Directory(services.registry(), app, services.clock).read()).times


async def set_entry(services: Services, app: str, name: str, entry: ScheduleEntry) -> None:
    """Add an entry, or put it in the place of the one of that name. It counts from now on. Raises
    InvalidMessage, ConfigError and OperationRefused for one that can't be."""
    now = await services.task_store(app).now()
    await _schedules(services, app).set(name, entry, now)


async def remove_entry(services: Services, app: str, name: str) -> None:
    """Remove an entry. What was sent goes on. Raises OperationRefused if there is none."""
    await _schedules(services, app).remove(name)


def _schedules(services: Services, app: str) -> Schedules:
    return Schedules(services.registry(), app, services.clock)
