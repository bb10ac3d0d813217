"""The schedule of an app: operators change it while nodes run."""

from __future__ import annotations

from holdfast.tasks.discovery import DeclaredTimes, Directory
from holdfast.tasks.schedule import ScheduleEntry, Schedules
from holdfast.wiring.services import Services

SET_ACTION, REMOVE_ACTION = "set in the schedule", "remove from the schedule"
"""The names of actions in the audit log."""


async def schedule(services: Services, app: str) -> dict[str, ScheduleEntry]:
    """Return the entries of an app's schedule by name, without the times that its code declares."""
    return dict(sorted((await _schedules(services, app).read()).items()))


async def declared(services: Services, app: str) -> dict[str, DeclaredTimes]:
    """Return the times that the code of an app's living nodes declares, by name."""
    return (await Directory(services.registry(), app, services.clock).read()).times


async def set_entry(services: Services, app: str, name: str, entry: ScheduleEntry) -> None:
    """Add an entry, or replace the one of that name, from now on. Raises InvalidMessage, ConfigError and
    OperationRefused."""
    now = await services.task_store(app).now()
    await _schedules(services, app).set(name, entry, now)


async def remove_entry(services: Services, app: str, name: str) -> None:
    """Remove an entry; tasks that were sent continue. Raises OperationRefused without one."""
    await _schedules(services, app).remove(name)


def _schedules(services: Services, app: str) -> Schedules:
    return Schedules(services.registry(), app, services.clock)
