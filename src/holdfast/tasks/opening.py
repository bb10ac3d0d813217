"""Opens producers, settings and dead letters of tasks, for senders and operators."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError
from holdfast.registration.services import backup_opener, service_of
from holdfast.registration.urls import named
from holdfast.system.files import OWNER, Access
from holdfast.system.log import get_logger
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.config.settings import Config
    from holdfast.ports.backup import Backup
    from holdfast.tasks.dead_letters import TaskDeadLetters
    from holdfast.tasks.periodic import PeriodicCall, Times
    from holdfast.tasks.producer import Producer
    from holdfast.tasks.values import TaskValues

PRODUCER_NEEDS = ("queue_url", "tasks_url")
"""The settings that a producer needs."""


async def discovered(
    config: Config, app: Callable[[], str], *, needs: Collection[str] = (), reads_only: bool = False
) -> Config:
    """Return the config with the missing settings of the app that ``app`` names, as the registry has them.
    The registry is read only if it is set by itself. ``reads_only`` is as for ``Services``. Raises as the
    registry does, InvalidMessage, and ConfigError if the registry lacks a setting that the caller
    ``needs``."""
    from holdfast.tasks.discovery import SHARED, Directory, usable  # noqa: PLC0415

    missing = [name for name in SHARED if not {name, "url"} & config.model_fields_set]
    if not missing or "registry_url" not in config.model_fields_set:
        return config
    async with Services(config, reads_only=reads_only) as services:
        listing = await Directory(services.registry(), app(), services.clock).read()
    known = {name: listing.settings[name] for name in missing if name in listing.settings}
    unknown = [name for name in missing if name in needs and name not in known]
    if unknown and not service_of(config.registry_url).one_host:
        raise ConfigError(
            f"registry_url is {redact_url(config.registry_url)!r}, and no node has written"
            f" {' and '.join(unknown)} of app {app()!r} there: start a node of it first, or set {unknown[0]}"
            " here as the nodes have it"
        )
    return config.model_copy(update=usable(known, config.registry_url))


@contextlib.asynccontextmanager
async def producing(config: Config, app: str, *, reads_only: bool = False) -> AsyncIterator[Services]:
    """Open the services of a producer or operator of an app, found as by ``discovered``. ``reads_only`` is as
    for ``Services``."""
    found = await discovered(config, lambda: app, needs=PRODUCER_NEEDS, reads_only=reads_only)
    async with Services(found, reads_only=reads_only) as services:
        yield services


@contextlib.asynccontextmanager
async def backup_at(place: str, access: Access = OWNER) -> AsyncIterator[Backup]:
    """Open a back-up of dead letters at a place: a URL, or the path of a file, which is made with ``access``.
    Raises ConfigError for a URL that nothing here serves."""
    url = place if re.match(r"[a-z]+:", place) else f"file:{quote(place)}"
    backup = backup_opener("the back-up", url)("the back-up", url, access)
    try:
        yield backup
    finally:
        await backup.close()


def dead_letter_backups(services: Services, app: str) -> Iterable[tuple[Times, PeriodicCall]]:
    """Yield the times at which the dead letters of an app's tasks are backed up, with the function that does
    it, if the config says where to. Raises ConfigError."""
    from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415
    from holdfast.tasks.periodic import DLQ_BACKUP, Times  # noqa: PLC0415

    config = services.config
    if not config.dlq_backup_url:
        return

    async def back_up(moment: dt.datetime) -> None:
        async with backup_at(config.dlq_backup_url, services.access) as backup:
            count = await make_dead_letters(services, app).back_up(backup, (), Choice())
        get_logger(__name__).info("dead letters backed up", app=app, copied=count)

    with named("dlq_backup_cron", config.dlq_backup_cron):
        times = Times(name=DLQ_BACKUP, cron=config.dlq_backup_cron)
    setting, url = "dlq_backup_url", config.dlq_backup_url
    backup_opener(setting, url)(setting, url, OWNER)  # a wrong one is refused now
    yield times, back_up


def make_dead_letters(services: Services, app: str) -> TaskDeadLetters:
    """Make the dead letters of an app. Raises ConfigError."""
    from holdfast.tasks.dead_letters import TaskDeadLetters  # noqa: PLC0415
    from holdfast.tasks.discovery import Directory  # noqa: PLC0415

    directory = Directory(services.registry(), app, services.clock)
    producer, log = make_producer(services, app), get_logger(__name__)
    return TaskDeadLetters(app, services.queue, services.task_store(app), directory, producer, log)


def make_producer(services: Services, app: str) -> Producer:
    """Make the producer of an app. Raises ConfigError."""
    from holdfast.tasks.discovery import Directory  # noqa: PLC0415
    from holdfast.tasks.producer import Producer  # noqa: PLC0415

    directory = Directory(services.registry(), app, services.clock)

    async def declared() -> Collection[str]:
        return (await directory.read()).types.keys()

    return Producer(
        app,
        services.queue,
        services.task_store(app),
        services.clock,
        get_logger(__name__),
        receive_wait_s=services.config.receive_wait_s,
        declared=declared,
        values=make_values(services, app),
    )


def make_values(services: Services, app: str) -> TaskValues:
    """Make the store of an app's large values. Raises ConfigError."""
    from holdfast.tasks.values import TaskValues  # noqa: PLC0415

    return TaskValues(app, services.clock, services.value_objects())
