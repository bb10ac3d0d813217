"""The page of a program's metrics in Prometheus' format, on its own port, so that its readers need no
access to the ports of nodes and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from yarl import URL

from holdfast.errors import ConfigError
from holdfast.http.serving import Connections, OwnSite, Secrets, is_loopback, problems
from holdfast.http.tls import PeerTls
from holdfast.ports.clock import Clock

PATH = "/metrics"
CONNECTIONS_MAX = 64
CLOSE_TIMEOUT_S = 1.0


class MetricsPageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the page of metrics.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        token: the bearer token of readers; required unless ``host`` is loopback.
        tls: the certificates of nodes, if they use TLS; the page is then served by HTTPS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tls: PeerTls | None = None


class MetricsPage:
    """Serves ``/metrics`` and nothing else.

    Args:
        registry: the metrics.
        before: is awaited before each read, to ask services.
        more: returns further metrics of the page.
    """

    def __init__(
        self,
        settings: MetricsPageSettings,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        more: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._before = before
        self._more = more
        self._secrets = Secrets(settings.token)
        self._connections = Connections(clock, CONNECTIONS_MAX)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self.url = ""
        """The URL of the page, while it is served."""

    async def serve(self) -> None:
        """Start to answer. Raises ConfigError if the address can't be bound, or needs a token."""
        host, port = self._settings.host, self._settings.port
        if not is_loopback(host) and not self._secrets:
            raise ConfigError(
                f"metrics_host {host!r} can be reached from other machines, which needs metrics_token; set"
                " one (HOLDFAST_METRICS_TOKEN) and have Prometheus send it, or leave metrics_host at"
                " '127.0.0.1'"
            )
        tls = self._settings.tls.server() if self._settings.tls is not None else None
        middlewares = [self._connections.note, problems]
        if not self._secrets:
            middlewares.append(OwnSite().check)
        app = web.Application(middlewares=middlewares)
        app.add_routes([web.get(PATH, self._on_metrics)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_TIMEOUT_S)
        await runner.setup()
        try:
            self._server = await self._connections.listen(runner, tls, host=host, port=port)
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"can't listen on {host}:{port} for metrics: {error.strerror or error}; check metrics_host"
                " and metrics_port (0 takes a free port)"
            ) from error
        self._runner = runner
        self._watching = asyncio.create_task(self._connections.watch())
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "http" if tls is None else "https"
        self.url = str(URL.build(scheme=scheme, host=host, port=port, path=PATH))

    async def close(self) -> None:
        """Stop answering."""
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _on_metrics(self, request: web.Request) -> web.Response:
        if not self._secrets.admit(request):
            raise web.HTTPUnauthorized(text="send metrics_token in the header Authorization: Bearer TOKEN")
        if self._before is not None:
            await self._before()
        page = generate_latest(self._registry)
        if self._more is not None:
            page += await self._more()
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})
