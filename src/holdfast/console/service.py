"""One console: it serves the pages and the API, and looks at the cluster for them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import Startable
from holdfast.cluster.limits import Limits
from holdfast.cluster.view import View
from holdfast.console.access import AccessSettings, Admission, Group
from holdfast.console.api import routes as api
from holdfast.console.assets import Assets
from holdfast.console.attention import Attention
from holdfast.console.audit import AuditLog
from holdfast.console.caching import PartCache
from holdfast.console.events import Events
from holdfast.console.index import StreamIndex
from holdfast.console.life import StreamEvents
from holdfast.console.lost import LostNodes
from holdfast.console.overview import Overview
from holdfast.console.pages import audit, dead_letters, entry, overview, streams, tasks
from holdfast.console.parts import ConsoleParts
from holdfast.console.products import ProductPages, product_pages
from holdfast.console.rendering import Renderer
from holdfast.console.responses import Responses
from holdfast.console.tokens import Tokens
from holdfast.errors import HoldfastError, Retry
from holdfast.gateway.listen import BACKLOG, Tls, listen
from holdfast.http.serving import Connections, is_loopback
from holdfast.wiring.services import Services

FORM_BYTES = 64 * 1024
"""The largest form that a page may send. Routes of the API read their bodies with limits of their own."""

CONNECTIONS_MAX = 1_000
CLOSE_TIMEOUT_S = 5.0
OWN_NAME = "local"
"""The name of who enters with the token that the console has printed."""


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which a console serves.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        access: who may use it.
        tokens: the file of tokens, if there is one.
        tls: certificate and key, if browsers speak TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8400
    access: AccessSettings = AccessSettings()
    tokens: Path | None = None
    tls: Tls | None = None


class Console(Startable):
    """A console. If it crashes, ``host.crashed`` has the error.

    Attributes:
        app: its routes.
        address: where it is served, once it has started.
        connections: the connections of browsers.
        own_token: the token that it has made for who started it; "" where it has a file of tokens.
    """

    def __init__(self, services: Services, settings: ConsoleSettings, log: Any) -> None:
        super().__init__()
        self._settings = settings
        config, clock = services.config, services.clock
        self.host = Host(services.coordinator(), services.peer(), clock, Limits.of(config), log, "console")
        self._more = product_pages()
        tokens = Tokens(settings.tokens, clock, log)
        assets = Assets({pages.name: pages.folder / "static" for pages in self._more})
        access = Admission(settings.access, tokens)
        view, events, life = View(self.host), Events(access, clock), StreamEvents()
        attention, cache = Attention(events, clock), PartCache(clock)
        events.on_news.append(cache.clear)  # parts that were made before the news don't show it
        index = StreamIndex(
            services.coordinator(), services.state(), clock, attention, life, lambda: view.members
        )
        self.host.news.on_claim += [index.claimed, lambda claim: events.publish("streams")]
        self.host.news.on_left.append(index.left)
        self.host.news.on_missed.append(index.missed)
        lost = LostNodes(clock, view.members.values, index.owned, index.claimer)
        view.on_left += [lost.left, lambda member: events.publish("overview")]
        self.parts = ConsoleParts(
            services=services,
            host=self.host,
            view=view,
            tokens=tokens,
            access=access,
            audit=AuditLog(services.registry(), clock, log),
            events=events,
            attention=attention,
            index=index,
            life=life,
            overview=Overview(services, self.host, view, index, lost, events, attention),
            assets=assets,
            renderer=Renderer(
                assets,
                {pages.name: pages.folder / "templates" for pages in self._more},
                [each for pages in self._more for each in pages.navigation],
            ),
            cache=cache,
        )
        by_printed_token = settings.tokens is None and is_loopback(settings.host)
        self.own_token = tokens.make(OWN_NAME) if by_printed_token else ""
        tokens.news = self.parts.events.look
        self.connections = Connections(clock, CONNECTIONS_MAX)
        self.app = self._app()
        self._runner = web.AppRunner(
            self.app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S
        )
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.AbstractServer] = []
        self.address = ""

    def _app(self) -> web.Application:
        responses = Responses(self.parts.renderer)
        app = web.Application(
            middlewares=[self.connections.note, responses.explain, self.parts.access.admit],
            client_max_size=FORM_BYTES,
        )
        app.on_response_prepare.append(responses.protect)
        app.add_routes(entry.open_routes(self.parts))
        app.add_routes(self.parts.access.require(groups(self.parts, self._more)))
        return app

    async def _start(self) -> None:
        try:
            await self.parts.view.refresh()
        except HoldfastError as error:
            if error.retry is Retry.NEVER:
                raise
        tls = self._settings.tls
        context = tls.context() if tls is not None else None
        self._sockets = listen(self._settings.host, self._settings.port)
        host, port = self._sockets[0].getsockname()[:2]
        self.parts.access.served_at(port, secure=tls is not None)
        self.address = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        tasks, clock, log = self.host.tasks, self.host.clock, self.host.log
        try:
            await self._runner.setup()
            self.connections.fit()
            for listening in self._sockets:
                server = await self.connections.listen(self._runner, context, sock=listening, backlog=BACKLOG)
                self._servers.append(server)
        except BaseException:
            await self._close()
            raise
        self.parts.view.start()
        for loop in (
            self.connections.watch,
            self.parts.tokens.watch,
            self.parts.events.watch,
            self.parts.audit.keep_trimmed,
            self.parts.index.fill,
            self.parts.overview.look_at_nodes,
            self.parts.overview.look_at_queues,
            self.parts.overview.look_at_the_rest,
            self.parts.overview.look_at_prometheus,
            self.parts.overview.sample,
        ):
            tasks.repeat(loop, clock, log)

    async def _stop(self) -> None:
        await self._close()
        await self.host.tasks.close()

    async def _close(self) -> None:
        self.parts.events.close()
        for server in self._servers:
            server.close()
        await self._runner.cleanup()


def groups(parts: ConsoleParts, more: Sequence[ProductPages]) -> list[Group]:
    """Return all routes that need a right: of the pages, of ``more`` pages of products, and of the API. Each
    module has a function of this shape, and so have products. A route is served only if it is in one of these
    groups."""
    return [
        *api.groups(parts),
        *entry.groups(parts),
        *overview.groups(parts),
        *streams.groups(parts),
        *tasks.groups(parts),
        *dead_letters.groups(parts),
        *audit.groups(parts),
        *(group for pages in more for group in pages.groups(parts)),
    ]
