"""Turns a config into adapters: the only module that knows which adapter serves which URL."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import unquote, urlsplit

import structlog
from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, ProcessCollector

from holdfast.adapters.file.objects import FileObjects
from holdfast.adapters.forkserver.slots import ForkserverSlots
from holdfast.adapters.http.peer import HttpPeer
from holdfast.adapters.sqlite.coordinator import SqliteCoordinator
from holdfast.adapters.sqlite.database import Database
from holdfast.adapters.sqlite.queue import SqliteQueue
from holdfast.adapters.sqlite.state import SqliteState
from holdfast.adapters.system.clock import SystemClock
from holdfast.app import App
from holdfast.config import FORWARD_OVERHEAD_BYTES, Config, check
from holdfast.errors import ConfigError
from holdfast.log import redact
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator
from holdfast.ports.objects import Objects
from holdfast.ports.peer import Peer
from holdfast.ports.queue import Queue
from holdfast.ports.slots import Slots
from holdfast.ports.state import StateStore
from holdfast.runtime.limits import FORWARD_BYTES_MAX, Limits
from holdfast.runtime.metrics import NodeMetrics
from holdfast.runtime.node import Host, Node
from holdfast.streams.work import StreamWork


class Closing(Protocol):
    """What is closed at the end."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Closing)


class Services:
    """The services that a config names. Each is opened when first asked for, then shared, and closed at the
    end. Raises ConfigError for a URL that nothing here serves, and whatever opening raises."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self._closers: list[Callable[[], Any]] = []
        self._databases: dict[Path, Database] = {}
        self._queues: dict[str, Queue] = {}
        self._coordinator: Coordinator | None = None
        self._state: StateStore | None = None
        self._objects: Objects | None = None

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
            database = self._database("queue_url", self.config.queue_url)
            max_bytes = self.config.max_message_bytes
            self._queues[name] = self._kept(SqliteQueue(database, name, self.clock, max_bytes=max_bytes))
        return self._queues[name]

    def coordinator(self) -> Coordinator:
        """The coordinator."""
        if self._coordinator is None:
            database = self._database("coordinator_url", self.config.coordinator_url)
            self._coordinator = self._kept(SqliteCoordinator(database, self.clock))
        return self._coordinator

    def state(self) -> StateStore:
        """The state store."""
        if self._state is None:
            database = self._database("state_url", self.config.state_url)
            max_bytes = self.config.max_state_bytes
            self._state = self._kept(SqliteState(database, self.clock, max_state_bytes=max_bytes))
        return self._state

    def objects(self) -> Objects:
        """The object store."""
        if self._objects is None:
            self._objects = self._kept(open_objects(self.config.objects_url))
        return self._objects

    def peer(
        self,
        *,
        routes: Sequence[web.AbstractRouteDef] = (),
        ready: Callable[[], str] = lambda: "",
        registry: CollectorRegistry = REGISTRY,
    ) -> Peer:
        """A new peer; the rest is as :class:`~holdfast.adapters.http.peer.HttpPeer` has it."""
        secret = self.config.peer_secret
        return self._kept(
            HttpPeer(
                self.clock,
                self.config.host,
                self.config.port,
                secret=secret.get_secret_value() if secret else None,
                advertise=self.config.advertise,
                max_body_bytes=self.config.max_peer_bytes,
                routes=routes,
                ready=ready,
                registry=registry,
            )
        )

    def slots(self, app: str) -> Slots:
        """Makes slots for the app at ``module:name``."""
        return self._kept(
            ForkserverSlots(
                app,
                self.clock,
                memory_mb=self.config.slot_memory_mb,
                objects=f"{__name__}:{open_slot_objects.__name__}",
                objects_url=self.config.objects_url,
                prefix=self.config.node_name,
            )
        )

    def _kept(self, service: S) -> S:
        self._closers.append(service.close)
        return service

    def _database(self, setting: str, url: str) -> Database:
        path = _path(setting, url, "sqlite", "sqlite:///holdfast.db")
        if path not in self._databases:
            self._databases[path] = self._kept(
                Database.open(
                    path,
                    self.clock,
                    durability=self.config.durability,
                    lock_timeout_s=self.config.lock_timeout_s,
                )
            )
        return self._databases[path]


def open_objects(url: str) -> Objects:
    """The object store at ``url``. Raises ConfigError for one that nothing here serves."""
    return FileObjects(_objects_path(url))


def open_slot_objects(url: str) -> Objects:
    """As :func:`open_objects`, for a slot: one handler runs at a time, and nothing else waits."""
    return FileObjects(_objects_path(url), read_in_thread=False)


def make_node(services: Services, place: str) -> Node:
    """A node that runs the app at ``module:name``, not started yet. Raises ConfigError."""
    config, app = services.config, load_app(place)
    check(config, app.streams.values())
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)

    def why_not_ready() -> str:
        if not host.membership.alive:
            return "no membership at present"
        return "draining" if host.draining else ""

    host = Host(
        services.coordinator(),
        services.peer(ready=why_not_ready, registry=registry),
        services.clock,
        limits(config),
        structlog.get_logger().bind(node=config.node_name),
        config.node_name,
    )
    queues = {name: services.queue(name) for name in app.streams}
    streams = StreamWork(host, app.streams, queues, services.state(), services.slots(place))
    node = Node(host, [streams])
    registry.register(NodeMetrics(host, streams.load, lambda: gauges(streams)))
    return node


def gauges(streams: StreamWork) -> Iterable[tuple[str, str, float]]:
    """What a node holds at this moment, beside the limits that say how much it may."""
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
    yield "parked_streams", "Owned streams that are parked.", sum(bool(o.owner.parked) for o in owned)


def limits(config: Config) -> Limits:
    """What of a config the runtime goes by."""
    return Limits(
        ttl_s=config.ttl_s,
        renew_s=config.renew_s,
        visibility_s=config.visibility_s,
        receive_wait_s=config.receive_wait_s,
        max_held=config.max_held,
        forward_bytes_max=min(FORWARD_BYTES_MAX, config.max_peer_bytes - FORWARD_OVERHEAD_BYTES),
        peer_timeout_s=config.peer_timeout_s,
        custody_check_s=config.custody_check_s,
        give_back_s=config.give_back_s,
        custody_limit=config.custody_limit,
        slots=config.slots,
        spare_slots=config.spare_slots,
        streams_max=config.slots * config.streams_per_slot_max,
        move_timeout_s=config.move_timeout_s,
        drain_timeout_s=config.drain_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        max_state_bytes=config.max_state_bytes,
        results_keep_s=config.results_keep_s,
        dead_keep_s=config.dead_keep_s,
        idle_keep_s=config.idle_keep_s,
    )


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
    if not app.streams:
        raise ConfigError(f"app {place!r} declares no stream; decorate a handler with @{name}.stream(…)")
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


def _objects_path(url: str) -> Path:
    return _path("objects_url", url, "file", "file:./holdfast-objects")


def _path(setting: str, url: str, scheme: str, example: str) -> Path:
    """The path in a URL of ``scheme``: ``file:relative``, ``sqlite:///relative``, ``sqlite:////absolute``."""
    parts = urlsplit(url)
    if parts.scheme != scheme:
        raise ConfigError(f"{setting} is {redact(url)!r}: nothing serves that; use a URL such as {example!r}")
    path = unquote(parts.path)
    if scheme == "sqlite":
        path = path.removeprefix("/")
    if parts.netloc or parts.query or parts.fragment or not path:
        raise ConfigError(f"{setting} is {redact(url)!r}: it names no path; use a URL such as {example!r}")
    return Path(path)
