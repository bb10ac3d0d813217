"""The data plane in HAProxy. It sends requests of known streams to their owners, and all others to the
fallback: the data plane in Python, which always finds the right node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import Startable, Tasks
from holdfast.cluster.view import View
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError, HoldfastError
from holdfast.gateway.clients import Clients
from holdfast.gateway.haproxy import admin
from holdfast.gateway.haproxy.binary import REPLAY_BYTES, Build
from holdfast.gateway.haproxy.config import (
    AUTHORIZATION,
    ERRORS,
    LARGE,
    NODE,
    SMALL,
    HaproxyFiles,
    Settings,
    error_page,
    render,
)
from holdfast.gateway.haproxy.folder import Folder
from holdfast.gateway.haproxy.process import HaproxyProcess
from holdfast.gateway.haproxy.servers import SERVERS_MIN, BackendServers
from holdfast.gateway.haproxy.table import RouteMaps, is_plain, map_key
from holdfast.gateway.listen import GatewaySettings
from holdfast.http.serving import allow_files
from holdfast.http.watched_files import LOOK_S, WatchedFiles
from holdfast.rules.cluster.gateway import GatewayRoute, Routes

BATCH_S = 0.005
"""Seconds in which changes are gathered for one update of HAProxy."""

CLOSE_TIMEOUT_S = 5.0
OTHER_FILES = 1000
"""Open files of HAProxy in addition to two per connection."""


class HaproxyOptions(msgspec.Struct, frozen=True):
    """The options of HAProxy, see :class:`~holdfast.gateway.haproxy.config.Settings`."""

    build: Build
    replay_bytes: int = REPLAY_BYTES
    servers: int = SERVERS_MIN


class HaproxyPlane(Startable):
    """Runs HAProxy: restarts it when it dies, replaces it when it needs another configuration, and updates
    its routes and nodes when they change.

    Attributes:
        child: the HAProxy that takes new connections, while one runs.

    Args:
        host: the gateway's host. The gateway ends if HAProxy can't be updated.
        gateway: how the gateway serves its clients.
        routes, view: the routes and members for HAProxy.
        clients: the clients that may use the gateway, and their rates.
    """

    def __init__(
        self,
        options: HaproxyOptions,
        host: Host,
        gateway: GatewaySettings,
        routes: Routes,
        view: View,
        clients: Clients | None = None,
    ) -> None:
        super().__init__()
        self._options = options
        self._routes = routes
        self._view = view
        self._clock, self._log = host.clock, host.log
        self._gateway = gateway
        self._clients = clients
        self._tasks = Tasks(host.crash)
        self._backoff = Backoff(0.05, 5.0)
        self._folder = Folder()
        self._certificate = self._peer_ca = ""
        self._sockets: Sequence[socket.socket] = ()
        self._servers = BackendServers(options.servers)
        self._table = RouteMaps()
        self._only: str | None = None
        self._news = asyncio.Event()
        self._lock = asyncio.Lock()
        self.child: HaproxyProcess | None = None
        self._finishing: set[HaproxyProcess] = set()
        self._outdated = False
        self._started = 0
        self.restarts = 0
        self.reloads = 0

    @property
    def fallback(self) -> Path:
        """The socket where the data plane in Python must listen."""
        return HaproxyFiles.of(self._folder.path, 0).fallback

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Set the listening sockets for clients, before the start. This process keeps them open too: clients
        that connect while HAProxy is replaced or dead wait until the next one serves them."""
        self._sockets = sockets

    async def metrics(self) -> bytes:
        """Return HAProxy's own metrics for Prometheus; empty without any."""
        if self.child is None or not self._options.build.prometheus:
            return b""
        with contextlib.suppress(HoldfastError):
            return await admin.scrape(self.child.files.metrics)
        return b""

    async def stop(self) -> None:
        """Stop, and delete the folder, which exists even before the start."""
        await super().stop()
        self._folder.close()

    async def _start(self) -> None:
        certificates = self._certificate_files()
        self._copy_certificates()
        if certificates is not None:
            self._tasks.repeat(partial(self._watch_certificates, certificates), self._clock, self._log)
        await self._assign_servers()
        self._update_only()
        self._table.update(self._changes(dict(self._routes)))
        self.child = await self._start_child()
        self._routes.news = self._news.set
        self._tasks.repeat(self._keep_up, self._clock, self._log)
        if self._clients is not None:
            self._clients.news = self._outdate
        self._tasks.repeat(self._watch_members, self._clock, self._log)

    async def _stop(self) -> None:
        await self._tasks.close()
        running = [*self._finishing, *([self.child] if self.child is not None else [])]
        if self.child is not None:
            self.child.finish()
        if running:
            await asyncio.wait([child.ended for child in running], timeout=CLOSE_TIMEOUT_S)
        for child in running:
            child.kill()
            await child.ended

    # --- the process

    async def _start_child(self) -> HaproxyProcess:
        """Start a HAProxy with the current configuration."""
        self._started += 1
        files = HaproxyFiles.of(self._folder.path, self._started)
        fds = tuple(listening.fileno() for listening in self._sockets)
        open_files = allow_files(2 * self._gateway.max_connections + OTHER_FILES)
        fit = (open_files - min(OTHER_FILES, open_files // 2)) // 2
        settings = Settings(
            build=self._options.build,
            files=files,
            gateway=self._gateway,
            listeners=fds,
            servers=self._servers.addresses(),
            connections_max=min(self._gateway.max_connections, fit),
            clients=self._clients,
            replay_bytes=self._options.replay_bytes,
            only=self._only,
            certificate=self._certificate,
            peer_ca=self._peer_ca,
        )
        known = [] if self._clients is None else list(self._clients)
        _write(files.clients, "".join(f"{client.digest} {client.name}\n" for client in known))
        rates = {client.name: client.per_s for client in known if client.per_s}
        _write(files.rates, "".join(f"{name} {per_s}\n" for name, per_s in rates.items()))
        self._table.fold()
        _write(files.routes, "".join(f"{key} {server}\n" for key, server in self._table.routes()))
        _write(files.recent, "")
        _write(files.refused, "")
        for status in ERRORS:  # each time: a cleaner of temporary files may have deleted them
            _write(files.error(status), error_page(status))
        _write(files.config, render(settings))
        secret = {AUTHORIZATION: f"Bearer {self._gateway.secret}"} if self._gateway.secret is not None else {}
        inherited = (*fds, *self._folder.descriptors)
        child = await HaproxyProcess.start(
            self._options.build, files, inherited, secret, self._clock, self._log
        )
        self._tasks.repeat(partial(self._restart, child), self._clock, self._log)
        return child

    async def _restart(self, child: HaproxyProcess) -> None:
        """Start another process when this one dies."""
        code = await asyncio.shield(child.ended)
        self._finishing.discard(child)
        child.files.remove()
        failures = 0
        while child is self.child:
            failures += 1
            self._log.error("HAProxy ended", code=code, failures=failures, fix="none: it is started again")
            await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
            try:
                async with self._lock:
                    if child is not self.child:
                        return
                    self.child = await self._start_child()
                self.restarts += 1
                self._news.set()
            except ConfigError as error:
                self._log.error("cannot start HAProxy", error=str(error))

    async def reload(self) -> None:
        """Replace HAProxy by one with a new configuration. The old one serves its clients to the end."""
        async with self._lock:
            await self._reload()

    async def _reload(self) -> None:
        self._outdated = False  # before the start: later changes are for the next process
        try:
            old, self.child = self.child, await self._start_child()
        except BaseException:
            self._outdated = True
            raise
        self.reloads += 1
        if old is not None and not old.ended.done():
            self._finishing.add(old)
            old.finish()

    # --- updates

    async def _watch_members(self) -> None:
        while True:
            await self._view.changed.wait()
            self._view.changed.clear()
            self._news.set()

    def _certificate_files(self) -> WatchedFiles | None:
        """Return the TLS files; None without any."""
        tls, peer_tls = self._gateway.tls, self._gateway.peer_tls
        paths = [*([tls.cert, tls.key] if tls is not None else []), *([peer_tls.ca] if peer_tls else [])]
        return WatchedFiles(*paths) if paths else None

    def _copy_certificates(self) -> None:
        """Copy the TLS files for the next HAProxy, once they are checked: a wrong file must not keep HAProxy
        from starting. Raises ConfigError."""
        tls, peer_tls = self._gateway.tls, self._gateway.peer_tls
        pem = tls.pem() if tls is not None else ""
        authorities = peer_tls.authorities() if peer_tls is not None else ""
        if pem:
            self._certificate = self._folder.hide(pem, "certificate")
        if authorities:
            self._peer_ca = self._folder.hide(authorities, "authorities")

    async def _watch_certificates(self, files: WatchedFiles) -> None:
        """Replace HAProxy when the TLS files change. Wrong files change nothing."""
        wrong = ""
        while True:
            await self._clock.sleep(LOOK_S)
            if not (files.changed or wrong):
                continue
            try:
                async with self._lock:  # no HAProxy must read half of a file
                    self._copy_certificates()
            except ConfigError as error:
                if str(error) != wrong:
                    wrong = str(error)
                    self._log.error(
                        "cannot read certificates",
                        error=wrong,
                        fix="repair the files; the previous ones stay",
                    )
                continue
            wrong = ""
            self._log.info("certificates read")
            self._outdate()

    async def _keep_up(self) -> None:
        failures = 0
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                async with self._lock:
                    if self._outdated:
                        await self._reload()
                    await self._update()
                failures = 0
            except HoldfastError as error:
                # HAProxy may have taken a part of the update: start one with everything.
                failures += 1
                self._log.warning("cannot update HAProxy", error=str(error), fix="none: it is replaced")
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
                self._outdate()
            await self._clock.sleep(BATCH_S)

    def _outdate(self) -> None:
        """Have HAProxy replaced; a failed start is tried again."""
        self._outdated = True
        self._news.set()

    async def _update(self) -> None:
        """Update HAProxy with the changes. A late update does no harm: nodes check every request, and the
        fallback forwards a refused one to its owner."""
        assert self.child is not None
        files = self.child.files
        for name in self._servers.left(self._view.members):
            # The fallback sends requests again that wait for an answer of this server.
            for server in _servers(name):
                await admin.order(files.admin, f"set server {server} state maint")
                await admin.order(files.admin, f"shutdown sessions server {server}")
        come, grown = await self._assign_servers()
        if self._update_only():
            self._table = RouteMaps()
            self._table.update(self._changes(dict(self._routes)))
            await self._reload()
            return
        edit = self._table.update(self._changes(self._new_routes(come)))
        if grown:
            await self._reload()
            return
        for name in come.values():
            address, _, port = (self._servers.address(name) or "").rpartition(":")
            for server in _servers(name):
                await admin.ask(files.admin, f"set server {server} addr {address} port {port}")
                await admin.order(files.admin, f"set server {server} state ready")
        if edit.rewrite:
            await admin.rewrite(files.admin, files.routes, self._table.routes())
            await admin.order(files.admin, f"clear map {files.recent}")
        else:
            await admin.add(files.admin, files.routes, edit.new.items())
            await admin.add(files.admin, files.recent, edit.recent.items())
            await admin.change(files.admin, files.recent, edit.changed)
        await admin.order(files.admin, f"clear map {files.refused}")

    async def _assign_servers(self) -> tuple[dict[str, str], bool]:
        """Return servers for new members, and whether the number of servers grew. Requests for a member whose
        name this machine can't resolve go through the fallback."""
        come: dict[str, str] = {}
        count = self._servers.count
        for member in list(self._view.members.values()):
            if member.foreign or self._servers.get(member.id) is not None:
                continue
            if address := await _resolve(member.address):
                come[member.id] = self._servers.take(member.id, address)
        return come, self._servers.count > count

    def _new_routes(self, come: Mapping[str, str]) -> dict[str, GatewayRoute | None]:
        """Return the changed routes, and the routes to new members (``come``)."""
        routes: dict[str, GatewayRoute | None] = self._routes.changed()
        if come:
            routes |= {key: route for key, route in self._routes if route.member in come}
        return routes

    def _changes(self, routes: Mapping[str, GatewayRoute | None]) -> dict[str, str | None]:
        """Return the servers by their keys in the maps."""
        changes = {}
        for full_key, route in routes.items():
            if key := map_key(full_key, self._only):
                changes[key] = self._servers.get(route.member) if route is not None else None
        return changes

    def _update_only(self) -> bool:
        """Note the only declared stream; return True if it changed. It stays while no node lives."""
        declared = {name for member in self._view.members.values() for name in member.load.serves}
        only = next(iter(declared)) if len(declared) == 1 else None
        if only is not None and not is_plain(only):
            only = None
        if not declared or only == self._only:
            return False
        self._only = only
        return True


def _servers(name: str) -> tuple[str, str]:
    """Return HAProxy's two servers of one node."""
    return f"{name}{SMALL}/{NODE}", f"{name}{LARGE}/{NODE}"


async def _resolve(url: str) -> str | None:
    """Return the ``ip:port`` of a node; None if it can't be resolved."""
    parts = urlsplit(url)
    try:
        port = parts.port or 80
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return None
    return f"{found[0][4][0]}:{port}"


def _write(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", newline="")
