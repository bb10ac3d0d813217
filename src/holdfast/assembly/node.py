"""The assembly of a node from an app and the services of a config.

Each function imports the modules that it needs: a node of streams needs no modules of tasks, and imports take
most of a process's start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import holdfast
from holdfast.app.app import App
from holdfast.assembly.checks import check_app, queues_of
from holdfast.assembly.loading import load_app
from holdfast.assembly.products import products
from holdfast.cluster.limits import Limits
from holdfast.errors import ConfigError
from holdfast.system.log import get_logger
from holdfast.system.machine import Machine
from holdfast.tasks.names import event_queue, task_queue
from holdfast.wiring.services import Services, revealed

if TYPE_CHECKING:
    from aiohttp import web

    from holdfast.cluster.deliverer import Targets
    from holdfast.cluster.host import Host
    from holdfast.cluster.node import Node
    from holdfast.cluster.stats import Numbers
    from holdfast.ports.target import Target
    from holdfast.streams.work import StreamWork
    from holdfast.tasks.periodic import PeriodicCall, Times
    from holdfast.tasks.work import TaskWork


def make_node(services: Services, place: str | App) -> Node:
    """Return a node, not started yet, that runs the app at ``module:name``, or the app itself if the slots of
    these services need no place to import it from. Raises ConfigError."""
    from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

    from holdfast.cluster.host import Host  # noqa: PLC0415
    from holdfast.cluster.metrics import NodeMetrics, NodesWanted  # noqa: PLC0415
    from holdfast.cluster.node import Node  # noqa: PLC0415
    from holdfast.cluster.service_metrics import ServiceMetrics  # noqa: PLC0415
    from holdfast.http.serving import ConnectionMetrics, Connections  # noqa: PLC0415

    config, app = services.config, place if isinstance(place, App) else load_app(place)
    check_app(services, app)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    connections = Connections(services.clock, config.max_connections)
    registry.register(ConnectionMetrics(connections))

    def why_not_ready() -> str:
        if not host.membership.stands:
            return host.membership.misfit or "no membership at present"
        if host.draining:
            return "draining"
        obstacles = streams.obstacles.streams if streams is not None else {}
        return "; ".join(f"stream {name!r}: {known.reason}" for name, known in sorted(obstacles.items()))

    async def read_services() -> None:
        await of_services.refresh()

    peer = services.peer(ready=why_not_ready, connections=connections)
    host = Host(
        services.coordinator(),
        peer,
        services.clock,
        Limits.of(config),
        get_logger(__name__).bind(node=config.node_name),
        config.node_name,
        services.meter,
        Machine().shares,
        services.tracer(app.name),
    )
    place = "" if isinstance(place, App) else place
    streams = _streams(services, app, host, place) if app.streams else None
    tasks = _tasks(services, app, host, place) if app.tasks else None
    if streams is not None:
        peer.add_routes(_stream_routes(services, app, host, streams))
    if tasks is not None:
        peer.add_routes(_task_routes(services, app, tasks))
    parts = [part for product in products() if (part := product.node_part(services, app, host)) is not None]
    works = [work for part in parts for work in part.works]

    def gauges() -> Iterable[tuple[str, str, float]]:
        if tasks is not None:
            yield from tasks.gauges()
        if streams is not None:
            yield from streams.gauges({name: model.memory_mb for name, model in app.models.items()})

    def numbers() -> Iterable[Numbers]:
        for work in (streams, tasks):
            if work is not None:
                yield from work.numbers()

    queues = {name: services.queue(name) for name in queues_of(app)}
    of_services = ServiceMetrics(host, queues, services.risks, services.database_health)
    registry.register(of_services)
    registry.register(NodesWanted(host, app.name, of_services.ready))
    node = Node(
        host,
        [*(work for work in (streams, tasks) if work is not None), *works],
        services.metrics_push(registry, app.name, read_services),
        app.name,
        holdfast.__version__,
        config.revision,
        page=services.metrics_page(registry, read_services),
    )
    registry.register(
        NodeMetrics(
            host,
            node.load,
            gauges,
            lambda: streams.waiting_streams.counts() if streams is not None else {},
            numbers,
            services.prices(),
        )
    )
    for collector in (each for part in parts for each in part.collectors):
        registry.register(collector)
    return node


def _streams(services: Services, app: App, host: Host, place: str) -> StreamWork:
    from holdfast.streams.storage import StreamStorage  # noqa: PLC0415
    from holdfast.streams.work import StreamWork  # noqa: PLC0415

    storage = StreamStorage(
        {name: services.queue(name) for name in app.streams},
        services.state(),
        {name: services.archive(stream.archive) for name, stream in app.streams.items() if stream.archive},
        services.values(app.name),
    )
    return StreamWork(
        host,
        app.streams,
        storage,
        services.slots(place),
        models=app.models,
        targets=_targets(services, app, host),
    )


def _stream_routes(services: Services, app: App, host: Host, work: StreamWork) -> list[web.AbstractRouteDef]:
    from holdfast.gateway import models  # noqa: PLC0415
    from holdfast.gateway.node_routes import NodeRoutes  # noqa: PLC0415

    config = services.config
    routes = NodeRoutes(
        app.streams,
        services.clock,
        requests=work.requests,
        queries=work.queries,
        member=lambda: host.membership.id,
        max_body_bytes=config.max_message_bytes,
        secret=revealed(config.peer_secret),
        also=revealed(config.peer_secret_also),
    )
    return [*routes.routes(), models.of_node(app.models, work)]


def _task_routes(services: Services, app: App, work: TaskWork) -> list[web.AbstractRouteDef]:
    from holdfast.tasks.api import TaskApi  # noqa: PLC0415
    from holdfast.tasks.opening import make_producer  # noqa: PLC0415

    config = services.config
    api = TaskApi(
        app.tasks,
        make_producer(services, app.name),
        run_here=work.run_here,
        stop_here=work.cancel,
        max_body_bytes=config.max_message_bytes,
        secret=revealed(config.peer_secret),
        also=revealed(config.peer_secret_also),
    )
    return api.routes()


def _targets(services: Services, app: App, host: Host) -> Targets:
    """Make the targets of effects. Raises ConfigError if the package for one is missing."""
    from holdfast.cluster.deliverer import Targets  # noqa: PLC0415
    from holdfast.wiring.target_urls import TargetUrls  # noqa: PLC0415

    made: dict[tuple[str, str], Target] = {}
    if app.streams:
        from holdfast.streams.target import StreamTarget  # noqa: PLC0415

        values = services.values(app.name)
        made |= {
            ("stream", name): StreamTarget(spec, services.queue(name), values)
            for name, spec in app.streams.items()
        }
    if app.tasks:
        from holdfast.tasks.opening import make_producer  # noqa: PLC0415
        from holdfast.tasks.target import TaskTarget  # noqa: PLC0415

        producer = make_producer(services, app.name)
        made |= {("task", name): TaskTarget(name, producer) for name in app.tasks}
    for product in products():
        made |= product.targets(services, app, host)
    if missing := sorted({f"{kind}:{name}" for kind, name in app.targets.values()} - _named(made)):
        raise ConfigError(
            f"nothing takes effects for {', '.join(missing)}: install the package that declares them"
        )
    declared = {called: made[standing] for called, standing in app.targets.items()}
    return Targets(declared, TargetUrls(services))


def _named(made: Iterable[tuple[str, str]]) -> set[str]:
    return {f"{kind}:{name}" for kind, name in made}


def _tasks(services: Services, app: App, host: Host, place: str) -> TaskWork:
    from holdfast.tasks.concurrency import ConcurrencyLimiter  # noqa: PLC0415
    from holdfast.tasks.discovery import (  # noqa: PLC0415
        SHARED,
        Announcer,
        DeclaredTimes,
        Directory,
        shareable,
    )
    from holdfast.tasks.opening import dead_letter_backups, make_producer, make_values  # noqa: PLC0415
    from holdfast.tasks.periodic import PeriodicSender, Scheduler  # noqa: PLC0415
    from holdfast.tasks.schedule import SCHEDULE, ScheduleFollower  # noqa: PLC0415
    from holdfast.tasks.storage import TaskStorage  # noqa: PLC0415
    from holdfast.tasks.work import TaskWork  # noqa: PLC0415

    queues = {name: services.queue(task_queue(app.name, name)) for name in app.tasks}
    storage = TaskStorage(
        app.name,
        queues,
        services.queue(event_queue(app.name)),
        services.task_store(app.name),
        services.registry(),
        make_values(services, app.name),
        services.briefing_tasks(app.name),
    )
    producer = make_producer(services, app.name)
    periodics: list[tuple[Times, PeriodicCall]] = [
        *((each, PeriodicSender(each, producer, services.clock)) for each in app.periodics.values()),
        *dead_letter_backups(services, app.name),
    ]
    announcer = Announcer(
        Directory(services.registry(), app.name, services.clock),
        host,
        types=app.tasks,
        periodics=[*(times.name for times, _ in periodics), SCHEDULE],
        times={times.name: DeclaredTimes(times.cron, times.zone) for times, _ in periodics},
        settings=shareable(
            {name: getattr(services.config, name) for name in SHARED}, services.config.registry_url
        ),
    )
    return TaskWork(
        host,
        app.tasks,
        storage,
        services.task_slots(place),
        ConcurrencyLimiter(
            services.registry(),
            app.name,
            host,
            member=lambda: host.membership.id,
        ),
        producer,
        targets=_targets(services, app, host),
        scheduler=ScheduleFollower(
            app.name,
            Scheduler(
                app.name,
                periodics,
                services.registry(),
                services.clock,
                host.log,
                leads=announcer.leads,
            ),
            lambda periodic: PeriodicSender(periodic, producer, services.clock),
            services.registry(),
            services.clock,
            host.log,
        ),
        announcer=announcer,
    )
