"""Turns a config into adapters: the only module that knows which adapter serves which URL.

Each function imports what it makes: a command that reads results needs neither an HTTP server nor slots, and
imports are most of what a process takes to start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import importlib
import re
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack
from urllib.parse import quote, urlsplit

from holdfast.app import App
from holdfast.cluster.limits import Limits
from holdfast.common.redaction import redact_url
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import ConfigError
from holdfast.ports.backup import Backup
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator
from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.ports.peer import Peer
from holdfast.ports.queue import Queue
from holdfast.ports.registry import Registry
from holdfast.ports.slots import Slots
from holdfast.ports.state import StateStore
from holdfast.ports.task_slots import TaskSlotMaker
from holdfast.ports.tasks import TaskStore
from holdfast.reports.ports.sink import Sink
from holdfast.reports.sinks.file import FileSink
from holdfast.services.file.backup import FileBackup
from holdfast.slot_wiring import open_objects, open_slot_objects
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import QUEUE_NUMBER
from holdfast.system.clock import SystemClock
from holdfast.system.files import OWNER, Access, access_for
from holdfast.tasks.names import brief_queue, task_queue
from holdfast.urls import by_scheme, extra, named, path_in

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry
    from pydantic import SecretStr

    from holdfast.cluster.host import Host
    from holdfast.cluster.node import Node
    from holdfast.config import Config
    from holdfast.devices.dispatcher import Connect
    from holdfast.devices.work import DeviceWork
    from holdfast.gateway.clients import Clients
    from holdfast.gateway.haproxy.front import HaproxyOptions
    from holdfast.gateway.listen import Tls
    from holdfast.gateway.service import Gateway
    from holdfast.http.serving import Connections, PeerTls
    from holdfast.reports.deliver_credentials import Credential, Credentials
    from holdfast.reports.deliver_pool import PoolLimits
    from holdfast.reports.dry_run import Outlook
    from holdfast.reports.order import ReportOrder
    from holdfast.reports.publish import Publisher
    from holdfast.services.aws.setup import SqsSetup
    from holdfast.services.aws.sqs import Sqs
    from holdfast.services.aws.url import SqsUrl
    from holdfast.services.redis.connection import RedisConnection
    from holdfast.services.redis.durability import Risk
    from holdfast.services.sqlite.database import Database
    from holdfast.streams.work import StreamWork
    from holdfast.tasks.handler import Job
    from holdfast.tasks.letters import Letters
    from holdfast.tasks.periodic import Deed, Times
    from holdfast.tasks.producer import Producer
    from holdfast.tasks.spec import TaskSettings
    from holdfast.tasks.work import TaskWork


class Closing(Protocol):
    """What is closed at the end."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Closing)
T = TypeVar("T")

SQLITE = "sqlite:///holdfast.db"
SQS_SCHEMES = ("sqs", "https", "http")
SINK_MODULES = {
    **dict.fromkeys(("ftp", "ftpes", "ftps"), ("holdfast.reports.sinks.ftp.sink",)),
    "sftp": ("holdfast.reports.sinks.sftp.sink",),
    "s3": ("holdfast.services.aws.client", "holdfast.services.aws.s3", "botocore.client"),
    **dict.fromkeys(("http", "https"), ("holdfast.reports.sinks.http",)),
}
"""What a destination takes, by its scheme, and is otherwise imported when the first is opened."""

PRODUCER_NEEDS = ("queue_url", "tasks_url")
"""What producers can't do without."""

REDIS_SCHEMES = tuple(
    f"{scheme}{kind}" for scheme in ("redis", "rediss") for kind in ("", "+sentinel", "+cluster")
)


class Services:
    """The services that a config names. Each is opened when first asked for, then shared, and closed at the
    end. With ``reads_only`` no database is made that is missing. Raises ConfigError for a URL that nothing
    here serves, and whatever opening raises."""

    def __init__(self, config: Config, clock: Clock | None = None, *, reads_only: bool = False) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.access = access_for(config.file_access)
        self._databases_access = None if reads_only else self.access
        self.meter = Meter()
        self._closers: list[Callable[[], Any]] = []
        self._databases: dict[Path, Database] = {}
        self._queues: dict[str, Queue] = {}
        self._sqs: Sqs | None = None
        self._sqs_streams: dict[str, str] = {}
        self._coordinator: Coordinator | None = None
        self._state: StateStore | None = None
        self._objects: Objects | None = None
        self._task_stores: dict[str, TaskStore] = {}
        self._registry: Registry | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close everything that was opened, last first."""
        while self._closers:
            await self._closers.pop()()

    def queue(self, name: str) -> Queue:
        """The queue ``name``, which is its stream's."""
        if name not in self._queues:
            openers: dict[str, Callable[[str], Queue]] = {
                "sqlite": lambda url: self._sqlite_queue(url, name),
                **dict.fromkeys(SQS_SCHEMES, lambda url: self._sqs_queue(url, name)),
            }
            examples = (SQLITE, "sqs://eu-west-1/")
            self._queues[name] = self._kept(by_scheme("queue_url", self.config.queue_url, openers, examples))
        return self._queues[name]

    async def filled_queues(self) -> list[str]:
        """The names of all queues that hold messages, whoever declares them. None from a service that
        doesn't tell: SQS lists names by their beginning, and not what is in them."""
        url = self.config.queue_url
        if urlsplit(url).scheme != "sqlite":
            return []
        from holdfast.services.sqlite.queue import filled  # noqa: PLC0415

        return await filled(self._database("queue_url", url))

    def queue_setup(self) -> SqsSetup | None:
        """What makes and checks the queues of streams; None where the service makes them by itself."""
        url = self.config.queue_url
        if urlsplit(url).scheme not in SQS_SCHEMES:
            return None
        with extra("sqs", "queue_url"):
            from holdfast.services.aws.setup import SqsSetup  # noqa: PLC0415
            from holdfast.services.aws.url import parse  # noqa: PLC0415
        parsed = parse(url)
        return SqsSetup(self._sqs_service(parsed), parsed)

    async def iam_policy(self, streams: Iterable[str]) -> dict[str, Any]:
        """What AWS must allow a node of ``streams``, as an IAM policy; no statement if nothing is there."""
        statements: list[dict[str, Any]] = []
        if setup := self.queue_setup():
            statements.append(await setup.statement(streams))
        objects = urlsplit(self.config.objects_url)
        if objects.scheme == "s3":
            with extra("s3", "objects_url"):
                from holdfast.services.aws.setup import object_statements  # noqa: PLC0415
            statements += object_statements(objects.netloc, objects.path)
        return {"Version": "2012-10-17", "Statement": statements}

    def coordinator(self) -> Coordinator:
        """The coordinator."""
        if self._coordinator is None:
            openers: dict[str, Callable[[str], Coordinator]] = {
                "sqlite": self._sqlite_coordinator,
                **dict.fromkeys(REDIS_SCHEMES, self._redis_coordinator),
                "zookeeper": self._zookeeper,
            }
            examples = (SQLITE, "redis://localhost", "zookeeper://localhost")
            self._coordinator = self._kept(
                by_scheme("coordinator_url", self.config.coordinator_url, openers, examples)
            )
        return self._coordinator

    def state(self) -> StateStore:
        """The state store."""
        if self._state is None:
            openers: dict[str, Callable[[str], StateStore]] = {
                "sqlite": self._sqlite_state,
                **dict.fromkeys(REDIS_SCHEMES, self._redis_state),
            }
            examples = (SQLITE, "redis://localhost")
            self._state = self._kept(by_scheme("state_url", self.config.state_url, openers, examples))
        return self._state

    def outbox_store(self) -> OutboxStore:
        """The tables of outboxes in the business's database: one more opening, which its user closes. Raises
        ConfigError without ``outbox_url``."""
        url = self.config.outbox_url
        if not url:
            raise ConfigError(
                "the app has an outbox: set outbox_url to the database that its commands are added in, such"
                " as 'sqlite:///office.db' or 'postgresql://user@host/office'"
            )
        with extra("outbox", "outbox_url"):
            from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox  # noqa: PLC0415
        return SqlOutbox(url, self.clock, durability=self.config.durability, access=self._databases_access)

    async def describe_outbox(self) -> str:
        """What the database of outboxes is, in words. Raises ConfigError, Unavailable."""
        store = self.outbox_store()
        try:
            return await store.describe()
        finally:
            await store.close()

    async def time_broker(self) -> tuple[float, str]:
        """How long a message takes to the broker of devices and back, the median in milliseconds, and what to
        do about it, if anything. Raises ConfigError, Unavailable."""
        with extra("outbox", "devices_url"):
            from holdfast.devices.services.mqtt import roundtrip  # noqa: PLC0415
            from holdfast.devices.services.mqtt.address import parse  # noqa: PLC0415
        address = parse(self.config.devices_url)
        times_ms = await roundtrip.measure(address, f"holdfast-doctor-{self.clock.new_id()}", self.clock)
        return statistics.median(times_ms), roundtrip.advice(times_ms)

    def devices(self, spec: OutboxSpec) -> Connect:
        """Makes the devices of an outbox's shards, from ``devices_url``. Raises ConfigError."""
        openers: dict[str, Callable[[str], Connect]] = dict.fromkeys(
            ("mqtt", "mqtts"), lambda url: self._mqtt(url, spec)
        )
        return by_scheme("devices_url", self.config.devices_url, openers, ("mqtt://localhost",))

    def _mqtt(self, url: str, spec: OutboxSpec) -> Connect:
        with extra("outbox", "devices_url"):
            from holdfast.devices.services.mqtt.address import parse  # noqa: PLC0415
            from holdfast.devices.services.mqtt.device import MqttDevices  # noqa: PLC0415
        address = parse(url)
        if spec.max_body > address.max_payload:
            raise ConfigError(
                f"outbox {spec.name!r} takes commands of max_body = {spec.max_body} bytes, and devices_url"
                f" lets none over max_payload = {address.max_payload} pass: lower max_body, or raise"
                " max_payload if the broker takes more"
            )
        if spec.shards > 1:  # else each would hear the answers to all the others
            address = dataclasses.replace(address, hears="own")

        def connect(identity: str, still_ours: Callable[[], Awaitable[bool]]) -> MqttDevices:
            return MqttDevices(
                address,
                identity,
                self.clock,
                topics=spec.topics,
                dialect=spec.dialect,
                still_ours=still_ours,
                check=identity == spec.identity(0),
            )

        return connect

    def task_store(self, app: str) -> TaskStore:
        """How the tasks of the app of that name stand."""
        if app not in self._task_stores:
            openers: dict[str, Callable[[str], TaskStore]] = {
                "sqlite": lambda url: self._sqlite_tasks(url, app),
                **dict.fromkeys(REDIS_SCHEMES, lambda url: self._redis_tasks(url, app)),
            }
            self._task_stores[app] = self._kept(
                by_scheme("tasks_url", self.config.tasks_url, openers, (SQLITE, "redis://localhost"))
            )
        return self._task_stores[app]

    def registry(self) -> Registry:
        """The documents that nodes, producers and operators share."""
        if self._registry is None:
            openers: dict[str, Callable[[str], Registry]] = {
                "sqlite": self._sqlite_registry,
                **dict.fromkeys(REDIS_SCHEMES, self._redis_registry),
            }
            self._registry = self._kept(
                by_scheme("registry_url", self.config.registry_url, openers, (SQLITE, "redis://localhost"))
            )
        return self._registry

    async def state_risks(self) -> list[Risk]:
        """What the settings of the state store's servers put at risk. Raises Unavailable."""
        store = self.state()
        if self.config.state_url.partition(":")[0] not in REDIS_SCHEMES:
            return []
        from holdfast.services.redis.state import RedisState  # noqa: PLC0415

        assert isinstance(store, RedisState)
        return await store.check()

    def objects(self) -> Objects:
        """The object store."""
        if self._objects is None:
            self._objects = self._kept(open_objects(self.config.objects_url, self.meter, self.access))
        return self._objects

    def peer(
        self,
        *,
        routes: Sequence[web.AbstractRouteDef] = (),
        ready: Callable[[], str] = lambda: "",
        connections: Connections | None = None,
        registry: CollectorRegistry | None = None,
    ) -> Peer:
        """A new peer; the rest is as :class:`~holdfast.services.http.peer.HttpPeer` has it."""
        from prometheus_client import REGISTRY  # noqa: PLC0415

        from holdfast.services.http.peer import HttpPeer  # noqa: PLC0415

        config = self.config
        return self._kept(
            HttpPeer(
                self.clock,
                self.config.host,
                self.config.port,
                secret=_revealed(config.peer_secret),
                also=_revealed(config.peer_secret_also),
                tls=peer_tls(config),
                advertise=self.config.advertise,
                max_body_bytes=self.config.max_peer_bytes,
                routes=routes,
                ready=ready,
                connections=connections,
                registry=registry or REGISTRY,
            )
        )

    def slots(self, app: str) -> Slots:
        """Makes slots for the app at ``module:name``."""
        from holdfast.slots.slots import ForkserverSlots  # noqa: PLC0415

        return self._kept(
            ForkserverSlots(
                app,
                self.clock,
                memory_mb=self.config.slot_memory_mb,
                objects=f"{open_slot_objects.__module__}:{open_slot_objects.__name__}",
                objects_url=self.config.objects_url,
                model_memory_mb=self.config.model_memory_mb,
                prefix=self.config.node_name,
                environment=self.config.environment(),
                meter=self.meter,
            )
        )

    def task_slots(self, app: str) -> TaskSlotMaker:
        """Makes slots for the tasks of the app at ``module:name``."""
        from holdfast.slots.task_slots import ForkserverTaskSlots  # noqa: PLC0415

        config = self.config
        return self._kept(
            ForkserverTaskSlots(
                app,
                self.clock,
                memory_mb=config.slot_memory_mb,
                prefix=f"{config.node_name}-task",
                environment=config.environment(),
            )
        )

    def _kept(self, service: S) -> S:
        self._closers.append(service.close)
        return service

    def _sqlite_queue(self, url: str, name: str) -> Queue:
        from holdfast.services.sqlite.queue import SqliteQueue  # noqa: PLC0415

        database, max_bytes = self._database("queue_url", url), self.config.max_message_bytes
        return SqliteQueue(database, name, self.clock, max_bytes=max_bytes)

    def _sqlite_coordinator(self, url: str) -> Coordinator:
        from holdfast.services.sqlite.coordinator import SqliteCoordinator  # noqa: PLC0415

        return SqliteCoordinator(self._database("coordinator_url", url), self.clock)

    def _sqlite_tasks(self, url: str, app: str) -> TaskStore:
        from holdfast.services.sqlite.tasks import SqliteTasks  # noqa: PLC0415

        return SqliteTasks(self._database("tasks_url", url), app, self.clock)

    def _sqlite_registry(self, url: str) -> Registry:
        from holdfast.services.sqlite.registry import SqliteRegistry  # noqa: PLC0415

        return SqliteRegistry(self._database("registry_url", url), self.clock)

    def _sqlite_state(self, url: str) -> StateStore:
        from holdfast.services.sqlite.state import SqliteState  # noqa: PLC0415

        database, max_bytes = self._database("state_url", url), self.config.max_state_bytes
        return SqliteState(database, self.clock, max_state_bytes=max_bytes)

    def _database(self, setting: str, url: str) -> Database:
        from holdfast.services.sqlite.database import Database  # noqa: PLC0415

        path = path_in(setting, url, SQLITE)
        if path not in self._databases:
            self._databases[path] = self._kept(
                Database.open(
                    path,
                    self.clock,
                    durability=self.config.durability,
                    lock_timeout_s=self.config.lock_timeout_s,
                    access=self._databases_access,
                )
            )
        return self._databases[path]

    def _sqs_queue(self, url: str, name: str) -> Queue:
        with extra("sqs", "queue_url"):
            from holdfast.services.aws.message import MAX_BYTES  # noqa: PLC0415
            from holdfast.services.aws.queue import SqsQueue  # noqa: PLC0415
            from holdfast.services.aws.url import parse  # noqa: PLC0415
        parsed = parse(url)
        queue = parsed.queue(name)
        sharing = self._sqs_streams.setdefault(queue, name)
        if sharing != name:
            raise ConfigError(
                f"queue_url is {redact_url(url)!r}: the streams {sharing!r} and {name!r} would share a queue;"
                " put '{stream}' into the queue's name, as in 'sqs://eu-west-1/frames-{stream}'"
            )
        max_bytes = min(self.config.max_message_bytes, MAX_BYTES)
        return SqsQueue(self._sqs_service(parsed), queue, self.clock, max_bytes=max_bytes)

    def _sqs_service(self, url: SqsUrl) -> Sqs:
        from holdfast.services.aws.client import AwsClient  # noqa: PLC0415
        from holdfast.services.aws.sqs import Sqs  # noqa: PLC0415

        if self._sqs is None:
            client = AwsClient("sqs", self.clock, self.meter, region=url.region, endpoint=url.endpoint)
            self._sqs = Sqs(self._kept(client))
        return self._sqs

    def _redis_coordinator(self, url: str) -> Coordinator:
        connection = self._redis("coordinator_url", url)
        from holdfast.services.redis.coordinator import RedisCoordinator  # noqa: PLC0415

        return RedisCoordinator(connection, self.clock)

    def _zookeeper(self, url: str) -> Coordinator:
        with extra("zookeeper", "coordinator_url"):
            from holdfast.services.zookeeper.address import parse  # noqa: PLC0415
            from holdfast.services.zookeeper.coordinator import ZooKeeperCoordinator  # noqa: PLC0415
            from holdfast.services.zookeeper.one_stream import OneStream  # noqa: PLC0415
        with named("coordinator_url", url):
            address = parse(url)
            coordinator = ZooKeeperCoordinator(address, self.clock, self.meter)
            return OneStream(coordinator, address.stream) if address.stream else coordinator

    def _redis_state(self, url: str) -> StateStore:
        connection = self._kept(self._redis("state_url", url))
        from holdfast.services.redis.state import RedisState  # noqa: PLC0415

        return RedisState(connection, self.clock, max_state_bytes=self.config.max_state_bytes)

    def _redis_tasks(self, url: str, app: str) -> TaskStore:
        connection = self._kept(self._redis("tasks_url", url))
        from holdfast.services.redis.tasks import RedisTasks  # noqa: PLC0415

        return RedisTasks(connection, app, self.clock)

    def _redis_registry(self, url: str) -> Registry:
        connection = self._redis("registry_url", url)
        from holdfast.services.redis.registry import RedisRegistry  # noqa: PLC0415

        return RedisRegistry(connection, self.clock)

    def _redis(self, setting: str, url: str) -> RedisConnection:
        """A connection for one of them: commits never delay a renewal."""
        with extra("redis", setting):
            from holdfast.services.redis.connection import RedisConnection, parse  # noqa: PLC0415
        with named(setting, url):
            return RedisConnection(parse(url), self.meter)


def open_sink(
    url: str, credential: Credential, clock: Clock, meter: Meter | None = None, access: Access = OWNER
) -> Sink:
    """The sink at a destination's URL, not connected yet; ``access`` is for files of this machine. Raises
    ConfigError for one that nothing here serves, or that holds a password, and InvalidMessage for one outside
    of the credential's root."""
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


def make_node(services: Services, place: str | App) -> Node:
    """A node that runs the app at ``module:name``, not started yet; or that runs the app itself, where the
    slots of these services need no place to import it from. Raises ConfigError."""
    import structlog  # noqa: PLC0415
    from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

    from holdfast.cluster.host import Host  # noqa: PLC0415
    from holdfast.cluster.metrics import NodeMetrics  # noqa: PLC0415
    from holdfast.cluster.node import Node  # noqa: PLC0415
    from holdfast.http.serving import ConnectionMetrics, Connections  # noqa: PLC0415

    config, app = services.config, place if isinstance(place, App) else load_app(place)
    check_app(services, app)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    connections = Connections(services.clock, config.max_connections)
    registry.register(ConnectionMetrics(connections))

    def why_not_ready() -> str:
        if not host.membership.stands:
            return "no membership at present"
        if host.draining:
            return "draining"
        obstacles = streams.owners.obstacles.streams if streams is not None else {}
        return "; ".join(f"stream {name!r}: {known.reason}" for name, known in sorted(obstacles.items()))

    secret, also = _revealed(config.peer_secret), _revealed(config.peer_secret_also)
    routes: list[web.AbstractRouteDef] = []
    if app.streams:
        from holdfast.gateway import models  # noqa: PLC0415
        from holdfast.gateway.door import NodeRoutes  # noqa: PLC0415

        door = NodeRoutes(
            app.streams,
            services.clock,
            requests=lambda: _only(streams).requests,
            member=lambda: host.membership.id,
            max_body_bytes=config.max_message_bytes,
            secret=secret,
            also=also,
        )
        routes += [*door.routes(), models.of_node(app.models, lambda: _only(streams))]
    if app.tasks:
        from holdfast.tasks.api import TaskApi  # noqa: PLC0415

        api = TaskApi(
            app.tasks,
            make_producer(services, app.name),
            run_here=lambda task_type, message: _only(tasks).run_here(task_type, message),
            stop_here=lambda trace, why: _only(tasks).cancel(trace, why),
            max_body_bytes=config.max_message_bytes,
            secret=secret,
            also=also,
        )
        routes += api.routes()
    host = Host(
        services.coordinator(),
        services.peer(routes=routes, ready=why_not_ready, connections=connections, registry=registry),
        services.clock,
        Limits.of(config),
        structlog.get_logger().bind(node=config.node_name),
        config.node_name,
        services.meter,
        _machine,
    )
    place = "" if isinstance(place, App) else place
    streams = _streams(services, app, host, place) if app.streams else None
    tasks = _tasks(services, app, host, place) if app.tasks else None
    outboxes = _outboxes(services, app, host)
    node = Node(host, [*(work for work in (streams, tasks) if work is not None), *outboxes])
    registry.register(
        NodeMetrics(
            host,
            node.load,
            lambda: gauges(streams, tasks, app.models),
            lambda: streams.standstills.counts() if streams is not None else {},
        )
    )
    if outboxes:
        from holdfast.devices.metrics import OutboxMetrics  # noqa: PLC0415

        registry.register(OutboxMetrics(outboxes))
    return node


def _outboxes(services: Services, app: App, host: Host) -> list[DeviceWork]:
    if not app.outboxes:
        return []
    from holdfast.devices.work import DeviceWork  # noqa: PLC0415

    return [
        DeviceWork(
            host,
            outbox,
            services.outbox_store(),
            services.devices(outbox.spec),
            app=app.name,
            briefs=services.queue(outbox.spec.briefs) if outbox.spec.briefs else None,
        )
        for outbox in app.outboxes.values()
    ]


def _streams(services: Services, app: App, host: Host, place: str) -> StreamWork:
    from holdfast.streams.work import StreamWork  # noqa: PLC0415

    queues = {name: services.queue(name) for name in app.streams}
    return StreamWork(host, app.streams, queues, services.state(), services.slots(place), models=app.models)


def _tasks(services: Services, app: App, host: Host, place: str) -> TaskWork:
    from holdfast.tasks.discovery import SHARED, Announcer, Directory, shareable  # noqa: PLC0415
    from holdfast.tasks.hand import TaskQueues  # noqa: PLC0415
    from holdfast.tasks.periodic import PeriodicSender, Scheduler  # noqa: PLC0415
    from holdfast.tasks.permits import PermitKeeper  # noqa: PLC0415
    from holdfast.tasks.work import TaskWork  # noqa: PLC0415

    queues = {name: services.queue(task_queue(app.name, name)) for name in app.tasks}
    producer = make_producer(services, app.name)
    deeds: list[tuple[Times, Deed]] = [
        *((each, PeriodicSender(each, producer, services.clock)) for each in app.periodics.values()),
        *backing_up(services, app.name),
    ]
    announcer = Announcer(
        Directory(services.registry(), app.name, services.clock),
        host,
        types=app.tasks,
        deeds=[times.name for times, _ in deeds],
        settings=shareable(
            {name: getattr(services.config, name) for name in SHARED}, services.config.registry_url
        ),
    )
    return TaskWork(
        host,
        app.name,
        app.tasks,
        TaskQueues(queues, services.queue(brief_queue(app.name))),
        services.task_store(app.name),
        services.task_slots(place),
        PermitKeeper(
            services.registry(),
            app.name,
            host,
            member=lambda: host.membership.id,
        ),
        scheduler=Scheduler(
            app.name,
            deeds,
            services.registry(),
            services.clock,
            host.log,
            leads=announcer.leads,
        ),
        announcer=announcer,
    )


def _only(work: T | None) -> T:
    """The work that a route is for, which is only there with it."""
    assert work is not None
    return work


def check_app(services: Services, app: App) -> None:
    """Raise ConfigError if the streams of ``app`` can't run on these services, or contradict the config."""
    from holdfast.config import check  # noqa: PLC0415

    config = services.config
    check(config, app.streams.values())
    _check_one_stream(config, app)
    others = {*app.streams, *(task_queue(app.name, name) for name in app.tasks)}
    for name, outbox in app.outboxes.items():
        if outbox.spec.briefs in others:
            raise ConfigError(
                f"outbox {name!r}: briefs is {outbox.spec.briefs!r}, the queue of a stream or task of this"
                " app; give it one that only briefs go to"
            )
    for name, model in app.models.items():
        for setting in ("model_memory_mb", "slot_memory_mb"):
            if 0 < (limit_mb := getattr(config, setting)) < model.memory_mb:
                raise ConfigError(
                    f"model {name!r} has memory_mb = {model.memory_mb}, and {setting} is {limit_mb}:"
                    f" no slot could hold it; raise {setting}"
                )
    for name, stream in app.streams.items():
        if services.queue(name).seq_kind == "absent" and stream.seq == QUEUE_NUMBER:
            raise ConfigError(
                f"stream {name!r} has seq='queue', and queue_url is {redact_url(config.queue_url)!r}: that"
                " queue doesn't number messages; declare seq= as the field that holds it, leave it out,"
                " or use a FIFO queue, whose name ends in '.fifo'"
            )


def _check_one_stream(config: Config, app: App) -> None:
    """Where claims have bare ids, they can be of one stream only, and of no outbox."""
    if not config.coordinator_url.startswith("zookeeper:"):
        return
    with extra("zookeeper", "coordinator_url"):
        from holdfast.services.zookeeper.address import parse  # noqa: PLC0415
    with named("coordinator_url", config.coordinator_url):
        one = parse(config.coordinator_url).stream
    others = sorted({*app.streams, *(f"outbox {name}" for name in app.outboxes)} - {one})
    if one and one not in app.streams:
        raise ConfigError(
            f"coordinator_url names ?stream={one}, which the app doesn't declare; it declares"
            f" {', '.join(others) or 'no stream'}: name one of its streams, or leave ?stream= out"
        )
    if one and others:
        raise ConfigError(
            f"coordinator_url names ?stream={one}, but the app declares {', '.join(others)} as well, whose"
            " claims could not be told apart: leave ?stream= out, or give the others an app of their own"
        )


async def discovered(
    config: Config, app: Callable[[], str], *, needs: Collection[str] = (), reads_only: bool = False
) -> Config:
    """The config with what is not set, and told by the registry of the app that ``app`` names. Nobody is
    asked unless the registry is set by itself. ``reads_only`` is as that of ``Services``. Raises as the
    registry does, or InvalidMessage; ConfigError if nobody has told it what the caller ``needs``."""
    from holdfast.tasks.discovery import SHARED, Directory, usable  # noqa: PLC0415

    missing = [name for name in SHARED if not {name, "url"} & config.model_fields_set]
    if not missing or "registry_url" not in config.model_fields_set:
        return config
    async with Services(config, reads_only=reads_only) as services:
        listing = await Directory(services.registry(), app(), services.clock).read()
    told = {name: listing.settings[name] for name in missing if name in listing.settings}
    unknown = [name for name in missing if name in needs and name not in told]
    if unknown and not config.registry_url.startswith("sqlite:"):
        raise ConfigError(
            f"registry_url is {redact_url(config.registry_url)!r}, and no node has told it"
            f" {' and '.join(unknown)} of app {app()!r}: start a node of it first, or set {unknown[0]} here"
            " as the nodes have it"
        )
    return config.model_copy(update=usable(told, config.registry_url))


@contextlib.asynccontextmanager
async def producing(config: Config, app: str, *, reads_only: bool = False) -> AsyncIterator[Services]:
    """The services of whoever sends the tasks of the app of that name, or looks after them, found as by
    ``discovered``. ``reads_only`` is as that of ``Services``."""
    found = await discovered(config, lambda: app, needs=PRODUCER_NEEDS, reads_only=reads_only)
    async with Services(found, reads_only=reads_only) as services:
        yield services


async def look_for_queues(services: Services, app: App) -> list[str]:
    """Raise ConfigError if a queue of the app isn't there, and may not be made (``create_queues``); returns
    what is missing beside, in words."""
    setup, lacking = services.queue_setup(), list[str]()
    if setup is None:
        return lacking
    for name, visibility_s in queues_of(app).items():
        if services.config.create_queues:
            await setup.create(name, visibility_s=visibility_s, tags={}, encrypt=False, kms_key="")
        elif text := await setup.lacking(name):
            lacking.append(text)
    return lacking


def queues_of(app: App) -> dict[str, float]:
    """The names of an app's queues, each with how long it should hide, in seconds, what is received by
    somebody who doesn't say for how long."""
    from holdfast.tasks.producer import BRIEF_VISIBILITY_S  # noqa: PLC0415

    streams = {name: spec.timeout_s + spec.gap_timeout_s for name, spec in app.streams.items()}
    tasks = {task_queue(app.name, name): spec.visibility_s for name, spec in app.tasks.items()}
    names = [spec.briefs for outbox in app.outboxes.values() if (spec := outbox.spec).briefs]
    briefs = dict.fromkeys([*([brief_queue(app.name)] if app.tasks else ()), *names], BRIEF_VISIBILITY_S)
    return streams | tasks | briefs


@contextlib.asynccontextmanager
async def backup_at(place: str, access: Access = OWNER) -> AsyncIterator[Backup]:
    """Where dead letters are kept: a URL, or the path of a file, which is made with ``access``. Raises
    ConfigError for a URL that nothing here serves."""
    url = place if re.match(r"[a-z]+:", place) else f"file:{quote(place)}"
    backup = _open_backup(url, "the back-up", access)
    try:
        yield backup
    finally:
        await backup.close()


def _open_backup(url: str, setting: str, access: Access = OWNER) -> Backup:
    openers: dict[str, Callable[[str], Backup]] = {
        "file": lambda url: FileBackup(path_in(setting, url, "file:letters.jsonl"), access),
        **dict.fromkeys(("sqlite", "postgresql", "postgres"), lambda url: _sql_backup(setting, url, access)),
    }
    return by_scheme(setting, url, openers, ("file:letters.jsonl", "sqlite:///letters.db"))


def _sql_backup(setting: str, url: str, access: Access) -> Backup:
    with extra("outbox", setting):
        from holdfast.devices.services.sqlalchemy.backup import SqlBackup  # noqa: PLC0415
    with named(setting, url):
        return SqlBackup(url, access)


def backing_up(services: Services, app: str) -> Iterable[tuple[Times, Deed]]:
    """What backs up the dead letters of an app's tasks, and when, if the config says where to. Raises
    ConfigError."""
    import structlog  # noqa: PLC0415

    from holdfast.tasks.letters import Choice  # noqa: PLC0415
    from holdfast.tasks.periodic import DLQ_BACKUP, Times  # noqa: PLC0415

    config = services.config
    if not config.dlq_backup_url:
        return

    async def back_up(moment: dt.datetime) -> None:
        async with backup_at(config.dlq_backup_url, services.access) as backup:
            count = await make_letters(services, app).back_up(backup, (), Choice())
        structlog.get_logger().info("dead letters backed up", app=app, copied=count)

    with named("dlq_backup_cron", config.dlq_backup_cron):
        times = Times(name=DLQ_BACKUP, cron=config.dlq_backup_cron)
    _open_backup(config.dlq_backup_url, "dlq_backup_url")  # a wrong one is refused now
    yield times, back_up


def make_letters(services: Services, app: str) -> Letters:
    """The dead letters of the tasks of the app of that name. Raises ConfigError."""
    import structlog  # noqa: PLC0415

    from holdfast.tasks.discovery import Directory  # noqa: PLC0415
    from holdfast.tasks.letters import Letters  # noqa: PLC0415

    directory = Directory(services.registry(), app, services.clock)
    producer, log = make_producer(services, app), structlog.get_logger()
    return Letters(app, services.queue, services.task_store(app), directory, producer, log)


def make_producer(services: Services, app: str) -> Producer:
    """What sends the tasks of the app of that name, and hears of their outcomes. Raises ConfigError."""
    import structlog  # noqa: PLC0415

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
        structlog.get_logger(),
        receive_wait_s=services.config.receive_wait_s,
        declared=declared,
    )


def peer_tls(config: Config) -> PeerTls | None:
    """The certificates by which nodes speak TLS, if they do."""
    from holdfast.http.serving import PeerTls  # noqa: PLC0415

    if config.peer_tls_cert is None or config.peer_tls_key is None or config.peer_tls_ca is None:
        return None
    return PeerTls(config.peer_tls_cert, config.peer_tls_key, config.peer_tls_ca)


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _machine() -> tuple[float, float]:
    """The shares of this machine's processors and of its memory in use; none where the system doesn't tell,
    as when there are no file descriptors left to ask it by."""
    import psutil  # noqa: PLC0415

    try:
        return psutil.cpu_percent() / 100, psutil.virtual_memory().percent / 100
    except (OSError, psutil.Error):
        return 0.0, 0.0


def make_gateway(
    services: Services,
    host: str,
    port: int,
    *,
    haproxy: HaproxyOptions | None = None,
    tls: Tls | None = None,
    access_log: bool = False,
    clients: Clients | None = None,
    no_auth: bool = False,
) -> Gateway:
    """A gateway for clients, not started yet; the rest is as
    :class:`~holdfast.gateway.service.Gateway` has it. Raises ConfigError."""
    import structlog  # noqa: PLC0415

    from holdfast.cluster.host import Host  # noqa: PLC0415
    from holdfast.gateway.listen import GatewaySettings  # noqa: PLC0415
    from holdfast.gateway.service import Gateway  # noqa: PLC0415

    config = services.config
    log = structlog.get_logger()
    return Gateway(
        Host(services.coordinator(), services.peer(), services.clock, Limits.of(config), log, "gateway"),
        GatewaySettings(
            host=host,
            port=port,
            max_body_bytes=config.max_message_bytes,
            max_connections=config.max_connections,
            secret=_revealed(config.peer_secret),
            peer_tls=peer_tls(config),
            tls=tls,
            access_log=access_log,
            foreign=config.foreign_streams == "forward",
            no_auth=no_auth,
        ),
        haproxy=haproxy,
        clients=clients,
    )


def gauges(
    streams: StreamWork | None, tasks: TaskWork | None, models: Mapping[str, ModelSpec]
) -> Iterable[tuple[str, str, float]]:
    """What a node holds at this moment, beside the limits that say how much it may."""

    if tasks is not None:
        yield "tasks_held", "Tasks in hand (limit: max_held).", len(tasks.hand)
        yield "tasks_running", "Attempts that run (limit: task_slots).", len(tasks.slots.running)
    if streams is None:
        return
    owned = list(streams.owners)
    yield (
        "held",
        "Messages in inboxes (limit: inbox_limit a stream, max_held).",
        sum(o.owner.waiting for o in owned),
    )
    yield (
        "custody",
        "Messages in custody for other owners (limits: custody_limit, max_held).",
        streams.router.custody,
    )
    loaded = streams.pool.models
    yield (
        "model_memory_mb",
        "Memory of the models loaded in all slots, as declared (limit: model_memory_mb a slot).",
        sum(models[name].memory_mb * count for name, count in loaded.items()),
    )
    yield (
        "streams_without_models",
        "Declared streams that can't run here, for a model of theirs doesn't load.",
        len(streams.owners.obstacles.streams),
    )
    yield "parked_streams", "Owned streams that are parked.", sum(bool(o.owner.parked) for o in owned)


def load_app(place: str) -> App:
    """The app at ``module:name``, found from the working directory too. Raises ConfigError."""
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"app {place!r} must be 'module:name', such as 'myproject.streams:app'")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(_why_not_imported(place, module_name, error)) from error
    app = getattr(module, name, None)
    if app is None:
        apps = [known for known, value in vars(module).items() if isinstance(value, App)]
        hint = (
            f"did you mean '{module_name}:{apps[0]}'?"
            if apps
            else "it has no App; make one with holdfast.App(…)"
        )
        raise ConfigError(f"app {place!r}: module {module_name!r} has no {name!r}; {hint}")
    if not isinstance(app, App):
        raise ConfigError(f"app {place!r} is {type(app).__name__}, not a holdfast.App; name the App itself")
    if not (app.streams or app.tasks or app.outboxes):
        raise ConfigError(
            f"app {place!r} declares no stream, task or outbox; decorate a handler with @{name}.stream(…) or"
            f" @{name}.task(…)"
        )
    return app


def _why_not_imported(place: str, module_name: str, error: Exception) -> str:
    parents = [module_name[:end] for end, char in enumerate(f"{module_name}.") if char == "."]
    if isinstance(error, ModuleNotFoundError) and error.name in parents:
        return (
            f"app {place!r}: there is no module {error.name!r} here or in the environment;"
            f" run this in the project's directory ({Path.cwd()}), or install the project"
        )
    what = f"{type(error).__name__}: {error}"
    return f"app {place!r}: importing {module_name!r} failed: {what}; correct the module"
