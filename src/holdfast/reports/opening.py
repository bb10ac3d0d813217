"""Opens what reports need: destinations by their URLs, a publisher, and the task that orders go to."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from holdfast.app import App
from holdfast.errors import ConfigError
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.registry import Registry
from holdfast.reports.ports.sink import Sink
from holdfast.system.files import OWNER, Access
from holdfast.urls import by_scheme, extra, path_in

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.reports.deliver_credentials import Credential, Credentials
    from holdfast.reports.deliver_pool import PoolLimits
    from holdfast.reports.dry_run import Outlook
    from holdfast.reports.order import ReportOrder
    from holdfast.reports.publish import Publisher
    from holdfast.tasks.handler import Job
    from holdfast.tasks.spec import TaskSettings

SINK_MODULES = {
    **dict.fromkeys(("ftp", "ftpes", "ftps"), ("holdfast.reports.sinks.ftp.sink",)),
    "sftp": ("holdfast.reports.sinks.sftp.sink",),
    "s3": ("holdfast.services.aws.client", "holdfast.services.aws.s3", "botocore.client"),
    **dict.fromkeys(("http", "https"), ("holdfast.reports.sinks.http",)),
}
"""What a destination takes, by its scheme, and is otherwise imported when the first is opened."""


def open_sink(
    url: str, credential: Credential, clock: Clock, meter: Meter | None = None, access: Access = OWNER
) -> Sink:
    """The sink at a destination's URL, not connected yet; ``access`` is for files of this machine. Raises
    ConfigError for one that nothing here serves, or that holds a password, and InvalidMessage for one outside
    of the credential's root."""
    from holdfast.reports.sinks.file import FileSink  # noqa: PLC0415

    credential.check(url)
    ftp = functools.partial(_ftp_sink, credential=credential)
    http = functools.partial(_http_sink, credential=credential)
    openers: dict[str, Callable[[str], Sink]] = {
        "file": lambda url: FileSink(path_in("destination", url, "file:/srv/reports"), access=access),
        "ftp": ftp,
        "ftpes": ftp,
        "ftps": ftp,
        "sftp": functools.partial(_sftp_sink, credential=credential),
        "s3": functools.partial(_s3_sink, credential=credential, clock=clock, meter=meter),
        "http": http,
        "https": http,
    }
    examples = ("ftpes://host/folder", "sftp://host/folder", "s3://bucket/prefix", "https://host/folder")
    return by_scheme("destination", url, openers, examples)


def _ftp_sink(url: str, credential: Credential) -> Sink:
    from holdfast.reports.sinks.ftp.sink import FtpSink  # noqa: PLC0415
    from holdfast.reports.sinks.ftp.url import FtpUrl  # noqa: PLC0415

    return FtpSink(FtpUrl.parse(url), credential.user or "anonymous", credential.password)


def _sftp_sink(url: str, credential: Credential) -> Sink:
    with extra("reports", "destination"):
        from holdfast.reports.sinks.sftp.session import Login  # noqa: PLC0415
        from holdfast.reports.sinks.sftp.sink import SftpSink  # noqa: PLC0415
    from holdfast.reports.sinks.sftp.url import SftpUrl  # noqa: PLC0415

    told = credential
    login = Login(told.user, told.password, told.key, told.passphrase, told.known_hosts)
    return SftpSink(SftpUrl.parse(url), login)


def _s3_sink(url: str, credential: Credential, clock: Clock, meter: Meter | None) -> Sink:
    with extra("s3", "destination"):
        from holdfast.services.aws.client import Keys  # noqa: PLC0415
    from holdfast.reports.sinks.s3.sink import S3Sink, S3SinkUrl  # noqa: PLC0415

    told = credential
    keys = (
        Keys(told.access_key_id, told.secret_access_key, told.session_token) if told.access_key_id else None
    )
    where = S3SinkUrl.parse(url, region=told.region or None)
    return S3Sink(where, clock, meter, endpoint=told.endpoint_url or None, keys=keys)


def _http_sink(url: str, credential: Credential) -> Sink:
    from holdfast.reports.sinks.http import HttpSink  # noqa: PLC0415

    headers = {"Authorization": credential.authorization} if credential.authorization else {}
    return HttpSink(url, headers, user=credential.user, password=credential.password)


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
    from holdfast.config import load  # noqa: PLC0415
    from holdfast.reports.deliver_credentials import Credentials  # noqa: PLC0415
    from holdfast.wiring import Services  # noqa: PLC0415 - now: slots that are forked afterwards have it

    with extra("reports", "report.publish"):
        from holdfast.reports.task import declare  # noqa: PLC0415
    for scheme in preload:
        if scheme not in SINK_MODULES:
            raise ConfigError(f"preload: {scheme!r} is no destination's; there are {', '.join(SINK_MODULES)}")
        with extra("s3" if scheme == "s3" else "reports", "destination"):
            for module in SINK_MODULES[scheme]:
                importlib.import_module(module)

    # Where an attempt runs, and once there: who only declares the task needs no settings.
    settled = functools.cache(lambda: config or load())

    @contextlib.asynccontextmanager
    async def opened(job: Job) -> AsyncIterator[tuple[Publisher, float]]:
        async with Services(settled()) as services:
            task = await services.task_store(job.app).get(job.trace_id)
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
    """What an order would make, with so many of its first rows; reads, and is for a thread."""
    with extra("reports", "report.publish"):
        from holdfast.reports.dry_run import look_ahead  # noqa: PLC0415

    return look_ahead(order, ordered_at, lambda name: credentials.find(name).fields(), rows)
