"""Makes what reports need, as settings name it: sinks by their URLs, a publisher, and the task that orders
go to."""

from __future__ import annotations

import contextlib
import datetime as dt
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
    from holdfast.reports.dry_run import Outlook
    from holdfast.reports.order import ReportOrder
    from holdfast.reports.publish import Publisher


def open_sink(
    url: str, credential: Credential, clock: Clock, meter: Meter | None = None, access: Access = OWNER
) -> Sink:
    """The sink at a destination's URL, not connected yet; ``access`` is for files of this machine. Raises
    ConfigError for one that nothing here serves, or that holds a password, and InvalidMessage for one outside
    of the credential's root."""
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
    """Declare the task type ``report.publish`` in an app: its body is an order, its files are delivered.

    Args:
        credentials: finds the secrets that orders name; those of the environment, if not given.
        limits: of one attempt's connections and rates.
        roots: folders and prefixes that sources must lie in, as URLs; any, if there are none.
        destinations: what destinations must lie below, as URLs; any, if there are none.
        preload: schemes of destinations, such as ``s3``, whose libraries are imported now: slots that are
            forked afterwards have them, or each imports them for its first report.
        config: says where rows of the audit are kept (``registry_url``); without, the node's own.
        settings: of ``App.task``, in place of those of :mod:`holdfast.reports.task`.
    """
    # Now, for slots that are forked afterwards to have them.
    from holdfast.extend.products import Services, load  # noqa: PLC0415

    with extra("reports", "report.publish"):
        from holdfast.reports.task import declare  # noqa: PLC0415
    for scheme in preload:
        if scheme not in (known := schemes(SINKS)):
            raise ConfigError(f"preload: {scheme!r} is no destination's; there are {', '.join(known)}")
        lookup(SINKS, "preload", scheme, SinkService).preload()

    # Where an attempt runs, and once there: who only declares the task needs no settings.
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
    """A publisher of reports, whose audit is in a registry."""
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


def report_sample(
    order: ReportOrder, ordered_at: dt.datetime, credentials: Credentials, rows: int
) -> Outlook:
    """Return a preview of an order's report with its first ``rows`` rows. This reads the sources and blocks:
    call it in a thread."""
    with extra("reports", "report.publish"):
        from holdfast.reports.dry_run import look_ahead  # noqa: PLC0415

    return look_ahead(order, ordered_at, lambda name: credentials.find(name).fields(), rows)
