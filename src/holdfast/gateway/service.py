"""A gateway. It follows members and claims, and stores nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import Startable
from holdfast.cluster.view import View
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, Retry
from holdfast.gateway.assigner import Assigner
from holdfast.gateway.clients import Clients
from holdfast.gateway.forwarder import Forwarder
from holdfast.gateway.haproxy.plane import HaproxyOptions, HaproxyPlane
from holdfast.gateway.listen import BACKLOG, GatewaySettings, listen
from holdfast.gateway.python_plane import PythonPlane
from holdfast.http.metrics_page import MetricsPage
from holdfast.http.serving import (
    TLS_HANDSHAKE_S,
    ConnectionMetrics,
    Connections,
    OwnSite,
    problems,
)
from holdfast.ports.metrics import MetricsPush
from holdfast.rules.cluster.gateway import GatewayPlacing, Routes

CLOSE_TIMEOUT_S = 5.0


class Gateway(Startable):
    """A gateway, with its data plane in Python alone or behind HAProxy. If it crashes, ``crashed`` has the
    error.

    Args:
        haproxy: the options of HAProxy, if it is used.
        clients: the clients that may use the gateway, and their rates; None for no limits. If keys are
            needed, pages of any site may send requests; else only pages of this server's own site.
        push: makes the push of its metrics; None if metrics aren't pushed.
    """

    def __init__(
        self,
        host: Host,
        settings: GatewaySettings,
        *,
        haproxy: HaproxyOptions | None = None,
        clients: Clients | None = None,
        push: Callable[[CollectorRegistry], MetricsPush | None] = lambda registry: None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._clients = clients
        self._clock, self._limits, self._log = host.clock, host.limits, host.log
        self.crashed, self._tasks = host.crashed, host.tasks
        self.routes = Routes()
        self.view = View(host)
        placing = GatewayPlacing(self.routes, self.view.members, foreign=settings.foreign)
        assigner = Assigner(host.coordinator, self.view, placing)
        self._forwarder = Forwarder(
            assigner,
            self.routes,
            self.view,
            host.clock,
            secret=settings.secret,
            tls=settings.peer_tls,
        )
        host.news.on_left.append(self._forwarder.left)
        host.news.on_claim.append(assigner.claimed)
        host.news.on_missed.append(self.routes.clear)
        self._connections = Connections(host.clock, settings.max_connections)
        registry = CollectorRegistry()
        registry.register(ConnectionMetrics(self._connections))
        registry.register(GatewayMetrics(self.routes, self.view, self._forwarder))
        self._metrics = push(registry)
        self.plane: HaproxyPlane | None = None
        if haproxy is not None:
            self.plane = HaproxyPlane(haproxy, host, settings, self.routes, self.view, clients)
        more = self.plane.metrics if self.plane is not None else None
        self.page = MetricsPage(settings.metrics, host.clock, registry, more=more)
        python_plane = PythonPlane(
            self._forwarder,
            self.view,
            host.clock,
            not_ready=self._not_ready,
            max_body_bytes=settings.max_body_bytes,
            middlewares=[self._connections.note, problems, *self._checks()],
        )
        logs = settings.access_log and self.plane is None
        self._runner = web.AppRunner(
            python_plane.app(),
            access_log=logging.getLogger("aiohttp.access") if logs else None,
            handler_cancellation=True,
            auto_decompress=False,  # bodies are passed on unchanged
            shutdown_timeout=CLOSE_TIMEOUT_S,
        )
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.AbstractServer] = []
        self.address = ""

    def _checks(self) -> list[Middleware]:
        """Return the checks of a client's site, key and rate, which HAProxy makes itself."""
        if self.plane is not None:
            return []
        keys = self._clients is not None and self._clients.need_keys
        own_site = self._settings.own_site(keys=keys)
        checks: list[Middleware] = [OwnSite(any_host=own_site == "any host").check] if own_site else []
        return checks if self._clients is None else [*checks, self._clients.admit]

    def _not_ready(self) -> str:
        return self._connections.trouble if self.view.members else "no node is running"

    async def _start(self) -> None:
        try:
            await self._read_members()
            self._listen()
            await self._serve()
            await self.page.serve()
        except BaseException:
            await self._close()
            raise
        self._log.info("metrics page served", url=self.page.url)
        self.view.start()
        if self._clients is not None:
            self._tasks.repeat(self._clients.watch, self._clock, self._log)
        self._tasks.repeat(self._keep_reading, self._clock, self._log)
        if self._metrics is not None:
            self._tasks.repeat(self._metrics.run, self._clock, self._log)

    async def _read_members(self) -> None:
        """Read the members, so that the first client finds a node."""
        try:
            await self.view.refresh()
        except HoldfastError as error:
            if error.retry is Retry.NEVER:
                raise

    def _listen(self) -> None:
        self._sockets = listen(self._settings.host, self._settings.port)
        scheme = "http" if self._settings.tls is None else "https"
        host, port = self._sockets[0].getsockname()[:2]
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _serve(self) -> None:
        context = self._settings.tls.context() if self._settings.tls is not None else None
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections.fit()
        self._tasks.repeat(self._connections.watch, self._clock, self._log)
        loop, protocol = asyncio.get_running_loop(), self._connections.over(self._runner.server)
        if self.plane is None:
            limit_s = TLS_HANDSHAKE_S if context is not None else None
            for listening in self._sockets:
                self._servers.append(
                    await loop.create_server(
                        protocol,
                        sock=listening,
                        ssl=context,
                        ssl_handshake_timeout=limit_s,
                        backlog=BACKLOG,
                    )
                )
            return
        self._servers.append(
            await loop.create_unix_server(protocol, str(self.plane.fallback), backlog=BACKLOG)
        )
        self.plane.listen(self._sockets)
        await self.plane.start()

    async def _keep_reading(self) -> None:
        """Read the members at intervals: no service reports changed loads, and some don't report lapsed
        memberships."""
        failures, backoff = 0, Backoff(self._limits.renew_s / 10, self._limits.renew_s)
        while True:
            try:
                await self.view.refresh()
                failures, pause_s = 0, self._limits.renew_s
            except HoldfastError as error:
                failures += 1
                pause_s = backoff.delay_s(failures, self._clock.random())
                self._log.warning("cannot read members", error=str(error), fix="none: known members stay")
            await self._clock.sleep(pause_s)

    async def _stop(self) -> None:
        await self._close()
        await self._tasks.close()
        if self._metrics is not None:
            await self._metrics.close()
        await self._forwarder.close()

    async def _close(self) -> None:
        """Take no new requests, and answer the others."""
        if self.plane is not None:
            for listening in self._sockets:
                listening.close()
            await self.plane.stop()
        for server in self._servers:
            server.close()
        await self._runner.cleanup()
        await self.page.close()


class GatewayMetrics(Collector):
    """The metrics of a gateway."""

    def __init__(self, routes: Routes, view: View, forwarder: Forwarder) -> None:
        self._routes = routes
        self._view = view
        self._forwarder = forwarder

    def collect(self) -> Iterable[Metric]:
        """Return the numbers of routes, members and forwarded requests."""
        yield GaugeMetricFamily("holdfast_gateway_routes", "Routes known.", value=len(self._routes))
        yield GaugeMetricFamily("holdfast_gateway_members", "Living nodes.", value=len(self._view.members))
        answers = CounterMetricFamily(
            "holdfast_gateway_answers", "Answers given to clients, by status.", labels=["status"]
        )
        for status, count in sorted(self._forwarder.answers.items()):
            answers.add_metric([str(status)], count)
        yield answers
        yield CounterMetricFamily(
            "holdfast_gateway_retries", "Requests sent again.", value=self._forwarder.retries
        )
