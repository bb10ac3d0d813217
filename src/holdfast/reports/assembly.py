"""Makes sinks by their URLs, a publisher, and the task type of orders."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Unpack

from holdfast import App
from holdfast.errors import ConfigError
from holdfast.extend import OWNER, Access, Clock, Meter, Registry, extra, lookup, schemes
from holdfast.reports.deliver_credentials import Credential, Credentials
from holdfast.reports.ports.destination import SINKS, SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink

if TYPE_CHECKING:
    from holdfast import Job
    from holdfast.extend.products import Config, TaskSettings
    from holdfast.reports.deliver_pool import PoolLimits
    from holdfast.reports.publish import Publisher


def open_sink(
    url: str, credential: Credential, clock: Clock, meter: Meter | None = None, access: Access = OWNER
) -> Sink:
    """Return the sink at a destination's URL, not connected yet. ``access``: the modes of files of this
    machine. Raises ConfigError for an unknown scheme or a URL with a password, and InvalidMessage for a URL
    outside the credential's root."""
    credential.check(url)
    service = lookup(SINKS, "destination", url, SinkService)
    return service.sink(SinkOpening(url, credential, clock, meter, access))


def publish_reports(
    app: App,
    *,
    credentials: Credentials | None = None,
    limits: PoolLimits | None = None,
    roots: Sequence[str] = (),
    destinations: Sequence[str] = (),
    preload: Sequence[str] = (),
    config: Config | None = None,
    **settings: Unpack[TaskSettings],
) -> None:
    """Declare the task type ``report.publish`` in an app: its body is an order, whose files are delivered.

    Args:
        credentials: finds the secrets that orders name; by default from the environment.
        limits: of one attempt's connections and rates.
        roots: URLs that sources must lie below; without any, all sources are allowed.
        destinations: URLs that destinations must lie below; without any, all are allowed.
        preload: schemes of destinations, such as ``s3``, whose libraries are imported now. Then slots that
            are forked later have them; else each slot imports them for its first report.
        config: names the registry of the audit (``registry_url``); by default the node's.
        settings: of ``App.task``, in place of the defaults in :mod:`holdfast.reports.task`.
    """
    # Imported now, so that slots that are forked later have them.
    from holdfast.extend.products import Services, load  # noqa: PLC0415

    with extra("reports", "report.publish"):
        from holdfast.reports.task import declare  # noqa: PLC0415
    for scheme in preload:
        if scheme not in (known := schemes(SINKS)):
            raise ConfigError(
                f"preload: {scheme!r} isn't a scheme of destinations, which are {', '.join(known)}"
            )
        lookup(SINKS, "preload", scheme, SinkService).preload()

    # Loaded once, where an attempt runs: a program that only declares the task needs no settings.
    settled = functools.cache(lambda: config or load())

    @contextlib.asynccontextmanager
    async def opened(job: Job) -> AsyncIterator[tuple[Publisher, float]]:
        async with Services(settled()) as services:
            task = await services.task_store(job.app).get(job.task_id)
            registry, known = services.registry(), credentials or Credentials()
            async with report_publisher(
                services.clock, registry, known, limits, roots, destinations, services.access
            ) as publisher:
                yield publisher, (task.queued_at if task else 0.0) or services.clock.wall()

    declare(app, opened, **settings)


@contextlib.asynccontextmanager
async def report_publisher(
    clock: Clock,
    registry: Registry,
    credentials: Credentials,
    limits: PoolLimits | None = None,
    roots: Sequence[str] = (),
    destinations: Sequence[str] = (),
    access: Access = OWNER,
) -> AsyncIterator[Publisher]:
    """Open a publisher, whose audit is in a registry."""
    with extra("reports", "report.publish"):
        from holdfast.reports.publish import Publisher  # noqa: PLC0415
    from holdfast.reports.audit import Audit  # noqa: PLC0415

    publisher = Publisher(
        clock,
        lambda url, credential: open_sink(url, credential, clock, access=access),
        credentials,
        Audit(registry, clock),
        limits=limits,
        roots=roots,
        destinations=destinations,
    )
    try:
        yield publisher
    finally:
        await publisher.close()
