"""The services at the URLs of a config.

Each method imports what it opens: a command that reads results needs neither an HTTP server nor slots, and
imports are most of what a process takes to start.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from socket import gethostname
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from holdfast.common.migrations import SchemaSteps
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator
from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.ports.peer import Peer
from holdfast.ports.queue import Queue
from holdfast.ports.queue_setup import QueueSetup
from holdfast.ports.registry import Registry
from holdfast.ports.slots import StreamSlotMaker, TaskSlotMaker
from holdfast.ports.state import DatabaseHealth, Risk, StateStore
from holdfast.ports.tasks import BriefingTasks, TaskStore
from holdfast.registration.services import (
    Closing,
    NotServed,
    Opening,
    Service,
    Shared,
    place_of,
    service_of,
    unserved,
)
from holdfast.registration.targets import TargetOpening
from holdfast.registration.urls import extra, find_secret
from holdfast.system.clock import SystemClock
from holdfast.system.files import access_for
from holdfast.system.log import get_logger
from holdfast.system.values import Values

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pydantic import SecretStr

    from holdfast.cluster.tracer import Tracer
    from holdfast.config.settings import Config
    from holdfast.http.metrics_page import MetricsPage, MetricsPageSettings
    from holdfast.http.serving import Connections
    from holdfast.http.tls import PeerTls
    from holdfast.ports.metrics import MetricsPush
    from holdfast.services.http.peer import HttpPeer

S = TypeVar("S", bound=Closing)

KEPT = ("queue_url", "coordinator_url", "state_url", "tasks_url", "registry_url")
"""The settings of services that may keep tables."""


class Services:
    """The services that a config names. Each is opened at its first use, shared, and closed at the end. With
    ``reads_only`` no missing database is made. Methods raise ConfigError for a URL that nothing serves, and
    the errors of opening."""

    def __init__(
        self, config: Config, clock: Clock | None = None, *, reads_only: bool = False, expands: bool = True
    ) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.access = access_for(config.file_access)
        self.reads_only = reads_only
        self._expands = expands
        self.meter = Meter()
        self._opened = Shared()
        self._caller: Peer | None = None

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
        return self._open("queue_url", lambda service, it: service.queue(it, name), name)

    async def filled_queues(self) -> list[str]:
        """Return the names of all queues that hold messages, of any app. Empty for a service that can't list
        them: SQS lists names, and not the number of messages."""
        url = self.config.queue_url
        return await service_of(url).filled_queues(self.opening("queue_url", url))

    async def queue_names(self) -> list[str]:
        """Return the names of queues that hold messages or dead letters, as far as the service lists them."""
        url = self.config.queue_url
        return await service_of(url).queue_names(self.opening("queue_url", url))

    async def task_apps(self) -> list[str]:
        """Return the names of the apps that have tasks, as far as the service lists them."""
        url = self.config.tasks_url
        return await service_of(url).task_apps(self.opening("tasks_url", url))

    def queue_setup(self) -> QueueSetup | None:
        """Return the set-up of queues; None if the service makes queues itself."""
        url = self.config.queue_url
        return service_of(url).queue_setup(self.opening("queue_url", url))

    async def iam_policy(self, streams: Collection[str], archives: Collection[str] = ()) -> dict[str, Any]:
        """Return the IAM policy for a node of ``streams`` that writes to ``archives``; without statements if
        no service is on AWS."""
        settings = ("queue_url", "objects_url", *(("values_url",) if self.config.values_url else ()))
        places = [(setting, getattr(self.config, setting)) for setting in settings]
        statements: list[dict[str, Any]] = []
        for setting, url in [*places, *(("archive", url) for url in sorted({*archives}))]:
            for statement in await service_of(url).iam_statements(self.opening(setting, url), streams):
                if statement not in statements:
                    statements.append(statement)
        return {"Version": "2012-10-17", "Statement": _numbered(statements)}

    def coordinator(self) -> Coordinator:
        return self._open("coordinator_url", lambda service, it: service.coordinator(it))

    def state(self) -> StateStore:
        return self._open("state_url", lambda service, it: service.state(it))

    async def risks(self) -> list[tuple[str, Risk]]:
        """Return the risks of data loss in the settings of servers, each with the setting that names the
        servers. Raises Unavailable."""
        found: list[tuple[str, Risk]] = []
        for url, setting in {self.config.queue_url: "queue_url", self.config.state_url: "state_url"}.items():
            risks = await service_of(url).risks(self.opening(setting, url))
            found += [(setting, risk) for risk in risks]
        return found

    async def database_health(self) -> dict[str, DatabaseHealth]:
        """Return the health of the databases, by a setting of each. Raises Unavailable."""
        found = {}
        for url, setting in self.kept_at().items():
            health = await service_of(url).database_health(self.opening(setting, url))
            if health is not None:
                found[setting] = health
        return found

    def prices(self) -> dict[tuple[str, str], float]:
        """Return the list prices of a million calls in dollars, by service and operation."""
        config = self.config
        found: dict[tuple[str, str], float] = {}
        for url in (*self.kept_at(), config.objects_url, config.values_url):
            if url:
                found |= service_of(url).prices(url)
        return found

    async def schema_steps(self, url: str) -> SchemaSteps | None:
        """Return the version and the missing migrations of the tables at the URL; None without tables.
        Changes nothing. Raises Unavailable, UnsupportedStore."""
        return await service_of(url).schema_steps(self.opening(self.kept_at()[url], url))

    async def migrate(self, *, contract: bool = False) -> list[tuple[str, list[int]]]:
        """Expand the tables of all services, and with ``contract`` contract them. Returns the URL of each,
        and the numbers of the applied migrations. Raises Unavailable."""
        done = []
        for url, setting in self.kept_at().items():
            applied = await service_of(url).migrate(self.opening(setting, url), contract=contract)
            if applied is not None:
                done.append((url, applied))
        return done

    def grants(self, role: str, *, only_to_send: bool = False, tasks: bool = False) -> list[str]:
        """Return the SQL statements that give a role the rights of a node; with ``only_to_send`` the rights
        of a sender of messages, and with ``tasks`` also of tasks."""
        statements: dict[str, None] = {}
        if only_to_send:
            for setting in ("queue_url", *(("tasks_url", "registry_url") if tasks else ())):
                url = getattr(self.config, setting)
                opening = self.opening(setting, url)
                statements |= dict.fromkeys(service_of(url).grants_to_send(opening, role, tasks=tasks))
            return list(statements)
        for url, setting in self.kept_at().items():
            statements |= dict.fromkeys(service_of(url).grants(self.opening(setting, url), role))
        return list(statements)

    def kept_at(self) -> dict[str, str]:
        """Return the URLs of the services that keep data, with a setting that names each."""
        return {url: setting for setting in KEPT if (url := getattr(self.config, setting))}

    def only_stream(self) -> str:
        """Return the stream that the coordinator's URL is for; "" if it is for all."""
        url = self.config.coordinator_url
        return service_of(url).only_stream(self.opening("coordinator_url", url))

    def opening(self, setting: str, url: str) -> Opening:
        """Return the opening of a URL for its service."""
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
            expands=self._expands,
        )

    def target_opening(self, url: str) -> TargetOpening:
        """Return the opening of a target's URL for its service."""
        secrets = {place: revealed(secret) or "" for place, secret in self.config.target_secrets.items()}
        return TargetOpening(
            url,
            self.clock,
            self.meter,
            secret=find_secret(url, secrets),
            plain_http=self.config.plain_http_targets == "any",
            opened=self._opened,
        )

    def _open(self, setting: str, open_port: Callable[[Service, Opening], S], name: str = "") -> S:
        def make() -> S:
            url, named = getattr(self.config, setting), self.config.named(setting)
            with served(setting, url, named):
                return open_port(service_of(url), self.opening(named, url))

        return self._opened.get((setting, name), make)

    def task_store(self, app: str) -> TaskStore:
        return self._open("tasks_url", lambda service, it: service.tasks(it, app), app)

    def briefing_tasks(self, app: str) -> BriefingTasks | None:
        """Return the app's task store if it sends briefs together with outcomes."""
        url = self.config.tasks_url
        if url != self.config.queue_url or not service_of(url).briefs_with_outcomes:
            return None
        return cast("BriefingTasks", self.task_store(app))

    def registry(self) -> Registry:
        """Return the registry: documents that nodes, producers and operators share."""
        return self._open("registry_url", lambda service, it: service.registry(it))

    def objects(self) -> Objects:
        return self._open("objects_url", lambda service, it: service.objects(it))

    def value_objects(self) -> Objects | None:
        """Return the object store for values that are too large for a queue; None without one."""
        url = self.config.values_url
        return self._objects_at("values_url", url) if url else None

    def values(self, app: str) -> Values:
        """Return the store of values of an app that are too large for a queue."""
        return Values(app, self.clock, self.value_objects())

    def slot_objects(self) -> Objects:
        """Return the object store for handlers in this process, outside of an event loop."""
        url = self.config.objects_url
        with served("objects_url", url):
            return service_of(url).slot_objects(url, self.meter)

    def archive(self, url: str) -> Objects:
        """Return the object store of a stream's archive. Raises ConfigError."""
        return self._objects_at("archive", url)

    def _objects_at(self, setting: str, url: str) -> Objects:
        try:
            return self._opened.get(
                (setting, url), lambda: service_of(url).objects(self.opening(setting, url))
            )
        except NotServed:
            raise unserved(setting, url, "objects") from None

    def peer(
        self,
        *,
        ready: Callable[[], str] = lambda: "",
        connections: Connections | None = None,
    ) -> HttpPeer:
        """Return a new peer. The arguments are described at HttpPeer."""
        from holdfast.services.http.peer import HttpPeer, PeerSettings  # noqa: PLC0415

        config = self.config
        return self._kept(
            HttpPeer(
                self.clock,
                PeerSettings(
                    host=config.host,
                    port=config.port,
                    secret=revealed(config.peer_secret),
                    also=revealed(config.peer_secret_also),
                    tls=peer_tls(config),
                    advertise=config.advertise,
                    max_body_bytes=config.max_peer_bytes,
                ),
                ready=ready,
                connections=connections,
            )
        )

    def caller(self) -> Peer:
        """Return the peer for programs that call nodes and serve none."""
        if self._caller is None:
            self._caller = self.peer()
        return self._caller

    def tracer(self, app: str) -> Tracer | None:
        """Return the tracer of a node of the app; None if traces are off. Raises ConfigError if the exporter
        isn't installed."""
        config = self.config
        if not config.trace_url:
            return None
        from holdfast.cluster.tracer import Tracer  # noqa: PLC0415

        with extra("otel", "trace_url"):
            from holdfast.services.otel.exporter import OtlpExporter  # noqa: PLC0415
        log = get_logger(__name__).bind(node=config.node_name)
        exporter = OtlpExporter(config.trace_url, self._resource(app), log)
        return Tracer(self._kept(exporter), config.trace_sample, self.clock)

    async def collector_takes(self, setting: Literal["trace_url", "metrics_url"]) -> bool:
        """Return True if the collector at the setting's URL accepts data. Raises ConfigError if the exporter
        isn't installed."""
        with extra("otel", setting):
            from holdfast.services.otel.check import takes_metrics, takes_spans  # noqa: PLC0415
        takes = takes_spans if setting == "trace_url" else takes_metrics
        return await takes(getattr(self.config, setting))

    def metrics_page(
        self, registry: CollectorRegistry, before: Callable[[], Awaitable[None]] | None = None
    ) -> MetricsPage:
        """Return the page of a program's metrics, not served yet. ``before`` is awaited before each read."""
        from holdfast.http.metrics_page import MetricsPage  # noqa: PLC0415

        return self._kept(
            MetricsPage(metrics_page_settings(self.config), self.clock, registry, before=before)
        )

    def metrics_push(
        self,
        registry: CollectorRegistry,
        program: str,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> MetricsPush | None:
        """Return the exporter of ``registry`` to a collector under the name ``program``; None if no collector
        is set. ``before`` is awaited before each read. Raises ConfigError if the exporter isn't installed."""
        config = self.config
        if not config.metrics_url:
            return None
        with extra("otel", "metrics_url"):
            from holdfast.services.otel.metrics import OtlpMetrics  # noqa: PLC0415
        return OtlpMetrics(
            config.metrics_url,
            self._resource(program),
            registry,
            config.metrics_every_s,
            self.clock,
            get_logger(__name__).bind(node=config.node_name),
            before=before,
        )

    def _resource(self, program: str) -> dict[str, str]:
        """Return the attributes of this process, by OpenTelemetry's semantic conventions."""
        return {
            "service.name": program,
            "service.instance.id": self.config.node_name,
            "host.name": gethostname(),
        }

    def slots(self, app: str) -> StreamSlotMaker:
        """Return the maker of slots for the app at ``module:name``."""
        from holdfast.slots.stream_slots import StreamSlotSettings, stream_slots  # noqa: PLC0415

        with served("objects_url", self.config.objects_url):
            objects = place_of(self.config.objects_url)
        settings = StreamSlotSettings(
            app=app,
            prefix=self.config.node_name,
            memory_mb=self.config.slot_memory_mb,
            environment=self.config.environment(),
            show_locals=self.config.log_tracebacks == "locals",
            objects=objects,
            objects_url=self.config.objects_url,
            model_memory_mb=self.config.model_memory_mb,
        )
        return self._kept(stream_slots(settings, self.clock, self.meter))

    def task_slots(self, app: str) -> TaskSlotMaker:
        """Return the maker of slots for the tasks of the app at ``module:name``."""
        from holdfast.slots.task_slots import TaskSlotSettings, task_slots  # noqa: PLC0415

        settings = TaskSlotSettings(
            app=app,
            prefix=f"{self.config.node_name}-task",
            memory_mb=self.config.slot_memory_mb,
            environment=self.config.environment(),
            show_locals=self.config.log_tracebacks == "locals",
        )
        return self._kept(task_slots(settings, self.clock))

    def _kept(self, opened: S) -> S:
        return self._opened.keep(opened)


def _numbered(statements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the ids of statements that are equal: AWS accepts each id once."""
    count = Counter[str]()
    made = []
    for statement in statements:
        name = statement["Sid"]
        count[name] += 1
        made.append(statement | {"Sid": name if count[name] == 1 else f"{name}{count[name]}"})
    return made


@contextlib.contextmanager
def served(setting: str, url: str, named: str = "") -> Iterator[None]:
    """Raise a ConfigError with examples if nothing serves the URL inside. ``named`` is the name of the
    setting in the error, if it differs."""
    try:
        yield
    except NotServed:
        raise unserved(named or setting, url, setting.removesuffix("_url")) from None


def peer_tls(config: Config) -> PeerTls | None:
    """Return the certificates for TLS between nodes; None without TLS."""
    from holdfast.http.tls import PeerTls  # noqa: PLC0415

    if config.peer_tls_cert is None or config.peer_tls_key is None or config.peer_tls_ca is None:
        return None
    return PeerTls(config.peer_tls_cert, config.peer_tls_key, config.peer_tls_ca, config.peer_tls_name)


def metrics_page_settings(config: Config) -> MetricsPageSettings:
    """Return the settings of the page of metrics: its address, and the token of its readers."""
    from holdfast.http.metrics_page import MetricsPageSettings  # noqa: PLC0415

    return MetricsPageSettings(
        host=config.metrics_host,
        port=config.metrics_port,
        token=revealed(config.metrics_token),
        tls=peer_tls(config),
    )


def revealed(secret: SecretStr | None) -> str | None:
    """Return the text of a secret."""
    return secret.get_secret_value() if secret else None
