"""Turns a config into what it names: the services at its URLs, and what stands on them.

Each function imports what it makes: a command that reads results needs neither an HTTP server nor slots, and
imports are most of what a process takes to start.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import re
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from holdfast.app import App
from holdfast.cluster.limits import Limits
from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError
from holdfast.ports.backup import Backup
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator
from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.ports.peer import Peer
from holdfast.ports.queue import Queue
from holdfast.ports.queue_setup import QueueSetup
from holdfast.ports.registry import Registry
from holdfast.ports.slots import StreamSlotMaker, TaskSlotMaker
from holdfast.ports.state import Risk, StateStore
from holdfast.ports.tasks import TaskStore
from holdfast.registration import (
    NODE_PARTS,
    Closing,
    NotServed,
    Opening,
    Service,
    Shared,
    backup_opener,
    loaded,
    place_of,
    service_of,
)
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import QUEUE_NUMBER
from holdfast.system.clock import SystemClock
from holdfast.system.files import OWNER, Access, access_for
from holdfast.tasks.names import brief_queue, task_queue
from holdfast.urls import named, nothing_serves

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry
    from pydantic import SecretStr

    from holdfast.cluster.host import Host
    from holdfast.cluster.node import Node, NodePart
    from holdfast.config import Config
    from holdfast.gateway.clients import Clients
    from holdfast.gateway.haproxy.plane import HaproxyOptions
    from holdfast.gateway.listen import Tls
    from holdfast.gateway.service import Gateway
    from holdfast.http.serving import Connections, PeerTls
    from holdfast.streams.work import StreamWork
    from holdfast.tasks.dead_letters import Letters
    from holdfast.tasks.periodic import Deed, Times
    from holdfast.tasks.producer import Producer
    from holdfast.tasks.work import TaskWork


S = TypeVar("S", bound=Closing)
T = TypeVar("T")

SQLITE = "sqlite:///holdfast.db"
EXAMPLES = {
    "queue_url": (SQLITE, "sqs://eu-west-1/"),
    "coordinator_url": (SQLITE, "redis://localhost", "zookeeper://localhost"),
    "state_url": (SQLITE, "redis://localhost"),
    "tasks_url": (SQLITE, "redis://localhost"),
    "registry_url": (SQLITE, "redis://localhost"),
    "objects_url": ("file:./holdfast-objects", "s3://bucket/prefix"),
}
"""What to write, told to whoever names what nothing serves."""

PRODUCER_NEEDS = ("queue_url", "tasks_url")
"""What producers can't do without."""


class Services:
    """The services that a config names. Each is opened when first asked for, then shared, and closed at the
    end. With ``reads_only`` no database is made that is missing. Raises ConfigError for a URL that nothing
    here serves, and whatever opening raises."""

    def __init__(self, config: Config, clock: Clock | None = None, *, reads_only: bool = False) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.access = access_for(config.file_access)
        self.reads_only = reads_only
        self.meter = Meter()
        self._opened = Shared()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close everything that was opened, last first."""
        await self._opened.close()

    def queue(self, name: str) -> Queue:
        """The queue ``name``, which is its stream's."""
        return self._open("queue_url", lambda service, it: service.queue(it, name), name)

    async def filled_queues(self) -> list[str]:
        """The names of all queues that hold messages, whoever declares them. None from a service that
        doesn't tell: SQS lists names by their beginning, and not what is in them."""
        url = self.config.queue_url
        return await service_of(url).filled_queues(self.opening("queue_url", url))

    def queue_setup(self) -> QueueSetup | None:
        """What makes and checks the queues of streams; None where the service makes them by itself."""
        url = self.config.queue_url
        return service_of(url).queue_setup(self.opening("queue_url", url))

    async def iam_policy(self, streams: Collection[str]) -> dict[str, Any]:
        """What AWS must allow a node of ``streams``, as an IAM policy; no statement if nothing is there."""
        statements: list[dict[str, Any]] = []
        for setting in ("queue_url", "objects_url"):
            url = getattr(self.config, setting)
            statements += await service_of(url).iam_statements(self.opening(setting, url), streams)
        return {"Version": "2012-10-17", "Statement": statements}

    def coordinator(self) -> Coordinator:
        """The coordinator."""
        return self._open("coordinator_url", lambda service, it: service.coordinator(it))

    def state(self) -> StateStore:
        """The state store."""
        return self._open("state_url", lambda service, it: service.state(it))

    async def state_risks(self) -> list[Risk]:
        """What the settings of the state store's servers put at risk. Raises Unavailable."""
        url = self.config.state_url
        return await service_of(url).state_risks(self.opening("state_url", url))

    def only_stream(self) -> str:
        """The one stream that the coordinator's URL keeps claims of, where it is for one alone."""
        url = self.config.coordinator_url
        return service_of(url).only_stream(self.opening("coordinator_url", url))

    def opening(self, setting: str, url: str) -> Opening:
        """What a service is told of a URL to open."""
        return Opening(
            setting,
            url,
            self.clock,
            self.meter,
            self.access,
            self.reads_only,
            durability=self.config.durability,
            lock_timeout_s=self.config.lock_timeout_s,
            max_message_bytes=self.config.max_message_bytes,
            max_state_bytes=self.config.max_state_bytes,
            opened=self._opened,
        )

    def _open(self, setting: str, open_port: Callable[[Service, Opening], S], name: str = "") -> S:
        url = getattr(self.config, setting)
        with served(setting, url):
            return self._opened.get(
                (setting, name), lambda: open_port(service_of(url), self.opening(setting, url))
            )

    def task_store(self, app: str) -> TaskStore:
        """How the tasks of the app of that name stand."""
        return self._open("tasks_url", lambda service, it: service.tasks(it, app), app)

    def registry(self) -> Registry:
        """The documents that nodes, producers and operators share."""
        return self._open("registry_url", lambda service, it: service.registry(it))

    def objects(self) -> Objects:
        """The object store."""
        return self._open("objects_url", lambda service, it: service.objects(it))

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

    def slots(self, app: str) -> StreamSlotMaker:
        """Makes slots for the app at ``module:name``."""
        from holdfast.slots.stream_slots import StreamSlotSettings, stream_slots  # noqa: PLC0415

        with served("objects_url", self.config.objects_url):
            objects = place_of(self.config.objects_url)
        settings = StreamSlotSettings(
            app=app,
            prefix=self.config.node_name,
            memory_mb=self.config.slot_memory_mb,
            environment=self.config.environment(),
            objects=objects,
            objects_url=self.config.objects_url,
            model_memory_mb=self.config.model_memory_mb,
        )
        return self._kept(stream_slots(settings, self.clock, self.meter))

    def task_slots(self, app: str) -> TaskSlotMaker:
        """Makes slots for the tasks of the app at ``module:name``."""
        from holdfast.slots.task_slots import TaskSlotSettings, task_slots  # noqa: PLC0415

        settings = TaskSlotSettings(
            app=app,
            prefix=f"{self.config.node_name}-task",
            memory_mb=self.config.slot_memory_mb,
            environment=self.config.environment(),
        )
        return self._kept(task_slots(settings, self.clock))

    def _kept(self, opened: S) -> S:
        return self._opened.keep(opened)


@contextlib.contextmanager
def served(setting: str, url: str) -> Iterator[None]:
    """Says that nothing serves a URL, and what to write instead."""
    try:
        yield
    except NotServed:
        raise nothing_serves(setting, url, EXAMPLES[setting]) from None


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
        from holdfast.gateway.node_routes import NodeRoutes  # noqa: PLC0415

        messages = NodeRoutes(
            app.streams,
            services.clock,
            requests=lambda: _only(streams).requests,
            member=lambda: host.membership.id,
            max_body_bytes=config.max_message_bytes,
            secret=secret,
            also=also,
        )
        routes += [*messages.routes(), models.of_node(app.models, lambda: _only(streams))]
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
    parts: list[NodePart] = [part(services, app, host) for part in loaded(NODE_PARTS)]
    works = [work for part in parts for work in part.works]
    node = Node(host, [*(work for work in (streams, tasks) if work is not None), *works])
    registry.register(
        NodeMetrics(
            host,
            node.load,
            lambda: gauges(streams, tasks, app.models),
            lambda: streams.standstills.counts() if streams is not None else {},
        )
    )
    for collector in (each for part in parts for each in part.collectors):
        registry.register(collector)
    return node


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
    _check_one_stream(services.only_stream(), app)
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


def _check_one_stream(one: str, app: App) -> None:
    """Where claims have bare ids, they can be of one stream only, and of no outbox."""
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
    if unknown and not service_of(config.registry_url).one_host:
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
    backup = _open_backup("the back-up", url, access)
    try:
        yield backup
    finally:
        await backup.close()


def _open_backup(setting: str, url: str, access: Access = OWNER) -> Backup:
    opener = backup_opener(url)
    if opener is None:
        raise nothing_serves(setting, url, ("file:letters.jsonl", "sqlite:///letters.db"))
    return opener(setting, url, access)


def backing_up(services: Services, app: str) -> Iterable[tuple[Times, Deed]]:
    """What backs up the dead letters of an app's tasks, and when, if the config says where to. Raises
    ConfigError."""
    import structlog  # noqa: PLC0415

    from holdfast.tasks.dead_letters import Choice  # noqa: PLC0415
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
    _open_backup("dlq_backup_url", config.dlq_backup_url)  # a wrong one is refused now
    yield times, back_up


def make_letters(services: Services, app: str) -> Letters:
    """The dead letters of the tasks of the app of that name. Raises ConfigError."""
    import structlog  # noqa: PLC0415

    from holdfast.tasks.dead_letters import Letters  # noqa: PLC0415
    from holdfast.tasks.discovery import Directory  # noqa: PLC0415

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
