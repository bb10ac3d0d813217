"""The peer port over HTTP: one server and one pool of kept-alive connections per node.

``POST /v1/peer`` carries a MessagePack request and its reply. ``GET /v1/peer/presence?member=ID`` is answered
and not finished while that membership is alive here, so that a reader sees at once when the process ends.
Presence is the same in every protocol version, so a newer node isn't considered dead.

A request names the version of its protocol; an answer names all versions of its node. A node refuses other
versions before it reads the request, which is then sent again in the highest common one. A caller remembers
which nodes are older than itself.

A caller must know whether a request may have had an effect, so the sending of its first byte is noted. A
failure before it is Unavailable, a failure after it is OutcomeUnknown, and an answer that refuses means that
nothing was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from holdfast.common.http_errors import OWN_FAILURES
from holdfast.common.protocol import Probe, Reply, Request, UnknownMember
from holdfast.common.protocol_versions import (
    OUR_VERSIONS,
    ProtocolVersions,
    no_common_version,
    parse_versions,
)
from holdfast.common.record import UNREADABLE
from holdfast.common.redaction import redact
from holdfast.common.retry import Backoff
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    NobodyThere,
    OutcomeUnknown,
    Retry,
    TooLarge,
    Unavailable,
)
from holdfast.http.serving import (
    CONNECTIONS_MAX,
    TLS_HANDSHAKE_S,
    Connections,
    OwnSite,
    Problem,
    Secrets,
    is_loopback,
    not_ready,
    problem_response,
    problems,
)
from holdfast.http.tls import NO_TLS, PeerTls, PeerTrust
from holdfast.ports.clock import Clock
from holdfast.ports.peer import Handler
from holdfast.system.log import get_logger

PATH = "/v1/peer"
VERSION_HEADER = "Holdfast-Protocol"
MEDIA_TYPE = "application/msgpack"

MAX_BODY_BYTES = 64 * 1024 * 1024
BACKLOG = 1024
BODY_S = 60.0
"""Seconds within which a request of another node must arrive."""
CONNECT_TIMEOUT_S = 5.0
GONE_AGAIN = Backoff(1.0, 15.0)
CLOSE_TIMEOUT_S = 1.0
LEAST_S = 0.001
"""Seconds for a second try at least: a timeout of 0 would mean no limit."""
REASON_BYTES_MAX = 8192
REASON_CHARS_MAX = 500

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """The settings by which nodes reach each other.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        secret: shared by all nodes; needed wherever ``host`` isn't loopback.
        also: another secret that callers may show, while all nodes change from one to the other.
        tls: certificates, if nodes speak TLS to each other.
        advertise: ``host`` or ``host:port`` that other nodes reach this one at, if not the one bound.
        max_body_bytes: largest request or reply, both ways.
    """

    host: str = "127.0.0.1"
    port: int = 0
    secret: str | None = None
    also: str | None = None
    tls: PeerTls | None = None
    advertise: str | None = None
    max_body_bytes: int = MAX_BODY_BYTES


class HttpPeer:
    """A node's HTTP server and its client to other nodes.

    Args:
        clock: the node's clock.
        settings: how nodes reach each other.
        ready: why the node can't serve yet, for ``/readyz``; empty when it can.
        connections: limits the connections to this server.
        speaks: the versions of the protocol.
    """

    def __init__(
        self,
        clock: Clock,
        settings: PeerSettings | None = None,
        *,
        ready: Callable[[], str] = lambda: "",
        connections: Connections | None = None,
        speaks: ProtocolVersions = OUR_VERSIONS,
    ) -> None:
        self._clock = clock
        self._settings = settings = settings or PeerSettings()
        self._authorization = f"Bearer {settings.secret}" if settings.secret else ""
        self._secrets = Secrets(settings.secret, settings.also if settings.secret else None)
        self._advertised = (settings.advertise or "").removeprefix("http://").removeprefix("https://")
        self._scheme = "http" if settings.tls is None else "https"
        self._tls_name = settings.tls.name if settings.tls is not None else None
        self._trust = PeerTrust(settings.tls) if settings.tls is not None else None
        self._routes: list[web.AbstractRouteDef] = []
        self._ready = ready
        # Connections without any connection are false.
        self._connections = connections if connections is not None else Connections(clock, CONNECTIONS_MAX)
        self._speaks = speaks
        self._older: dict[str, int] = {}
        """The versions in which nodes are called that don't speak the newest, by address."""
        self._encoder = msgspec.msgpack.Encoder()
        self._requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
        self._replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        self._answering: set[asyncio.Task[Reply]] = set()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    def add_routes(self, routes: Iterable[web.AbstractRouteDef]) -> None:
        """Serve these routes too, on the same port. Call it before :meth:`serve`. Handlers are cancelled when
        their client leaves."""
        self._routes += routes

    async def serve(self, handler: Handler) -> str:
        """Start to answer calls; returns the URL at which others reach this node.

        Raises ConfigError if the address can't be bound, needs a secret, or can't be published."""
        self._check_exposure()
        context = None
        if self._settings.tls is not None:
            context = self._settings.tls.server()
        self._handler = handler
        connections = self._connections
        middlewares = [connections.note, problems]
        if not self._authorization:
            middlewares.append(OwnSite([*self._own_names()]).check)
        app = web.Application(client_max_size=self._settings.max_body_bytes, middlewares=middlewares)
        app.add_routes(
            [
                web.post(PATH, self._on_call),
                web.get(f"{PATH}/presence", self._on_presence),
                web.get("/healthz", self._on_health),
                web.get("/readyz", self._on_ready),
                *self._routes,
            ]
        )
        app.on_response_prepare.append(self._tell_versions)
        app.on_shutdown.append(self._hang_up)
        # A reader of a presence that leaves must end it here; what a call does is shielded from that.
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=CLOSE_TIMEOUT_S,
            auto_decompress=False,  # each reader of a body sets its own limit
        )
        await runner.setup()
        assert runner.server is not None
        connections.fit()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                connections.over(runner.server),
                self._settings.host,
                self._settings.port,
                backlog=BACKLOG,
                ssl=context,
                ssl_handshake_timeout=TLS_HANDSHAKE_S if context is not None else None,
            )
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(self._why_not_bound(error)) from error
        self._runner = runner
        self._watching = asyncio.create_task(connections.watch())
        host, port = self._server.sockets[0].getsockname()[:2]
        return self._address(host, port)

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        """Call the node at ``address``. Raises NobodyThere if the connection is refused, Unavailable if the
        request was not taken, OutcomeUnknown if it may have been, TooLarge before anything is sent."""
        if self._in_the_clear(address):
            raise Unavailable(f"the node at {address} is not called without TLS: {NO_TLS}")
        body = self._encoder.encode(request)
        if len(body) > (limit := self._settings.max_body_bytes):
            raise TooLarge(f"a request of {len(body)} bytes to {address} is over max_peer_bytes ({limit})")
        end_at = self._clock.monotonic() + timeout_s
        reply = await self._post(address, body, timeout_s)
        if reply is None:
            left_s = max(end_at - self._clock.monotonic(), LEAST_S)
            reply = await self._post(address, body, left_s)
        if reply is None:
            raise Unavailable(f"{address} refuses each version of the peer protocol that it says it speaks")
        return reply

    async def _post(self, address: str, body: bytes, timeout_s: float) -> Reply | None:
        """Send a request in the version that the node is known to speak. Return None if the node speaks
        another one, which is noted."""
        version = self._older.get(address, self._speaks.newest)
        progress = SimpleNamespace(sent=False)
        try:
            async with self._client().post(
                f"{address}{PATH}",
                data=body,
                headers=self._headers(version),
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
                server_hostname=self._tls_name,
                trace_request_ctx=progress,
            ) as response:
                return await self._reply(address, response)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: not an address
            why = f"no answer in {timeout_s} s" if isinstance(error, TimeoutError) else _words(error)
            if not progress.sent:
                refused = getattr(error, "errno", None) == errno.ECONNREFUSED
                kind = NobodyThere if refused else Unavailable
                raise kind(f"can't connect to {address}: {why}") from error
            raise OutcomeUnknown(f"lost {address} before its reply: {why}") from error

    async def gone(self, address: str, member: str) -> None:
        """Wait until an open connection to that membership's process has closed, or none can be made.

        A failure that shows nothing about that process is followed by another try: a node with another
        secret, a failure of this machine (no file descriptors, no network), or a name that doesn't resolve.
        Raises Unavailable once this peer is closed."""
        failures = 0
        while not await self._is_gone(address, member):
            failures += 1
            await self._clock.sleep(GONE_AGAIN.delay_s(failures, self._clock.random()))

    async def _is_gone(self, address: str, member: str) -> bool:
        """Read the presence to its end; return False if that shows nothing."""
        if self._in_the_clear(address):
            log.warning("cannot call node without TLS", address=address, error=NO_TLS)
            return False
        try:
            async with self._client().get(
                f"{address}{PATH}/presence",
                params={"member": member},
                headers=self._headers(self._speaks.newest),
                allow_redirects=False,
                server_hostname=self._tls_name,
            ) as response:
                busy = response.status == 503  # refused before the request was read
                if response.status == 404 or (VERSION_HEADER not in response.headers and not busy):
                    return True  # another program has the port now, or the membership is over
                if response.status != 200:
                    log.warning("presence refused", address=address, error=await _refusal(address, response))
                    return False
                await response.content.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._closing.is_set():
                raise Unavailable(f"this peer closed before {address} was gone") from error
            if _is_own_failure(error):
                log.warning("cannot check presence", address=address, error=_words(error))
                return False
        return True

    async def close(self) -> None:
        """Stop answering, and close all connections."""
        self._closing.set()
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    # --- the server's side

    async def _on_call(self, request: web.Request) -> web.Response:
        self._admit(request)
        named = request.headers.get(VERSION_HEADER)
        asked = parse_versions(named)
        if asked is None or self._speaks.common(asked) != asked.newest:
            raise _refuse(
                web.HTTPUpgradeRequired,
                f"this node speaks peer protocol {self._speaks}, the request is in {named or 'none'}",
            )
        try:
            message = self._requests.decode(await self._body(request))
        except UNREADABLE as error:
            raise _refuse(web.HTTPBadRequest, f"not a request of peer protocol {asked}: {error}") from None
        except web.HTTPRequestEntityTooLarge:
            text = f"the request is over max_peer_bytes of this node ({self._settings.max_body_bytes})"
            raise _refuse(web.HTTPBadRequest, text) from None
        reply = await self._shielded(message)
        return web.Response(body=self._encoder.encode(reply), content_type=MEDIA_TYPE)

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(BODY_S):
                return await request.read()
        except TimeoutError:
            raise _refuse(web.HTTPRequestTimeout, f"the request did not come within {BODY_S:g} s") from None

    async def _shielded(self, message: Request) -> Reply:
        """Return the handler's reply. The handler goes on if its caller gives up."""
        task = asyncio.create_task(self._handle(message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        try:
            return await asyncio.shield(task)
        except HoldfastError as error:
            kind = web.HTTPServiceUnavailable if error.retry is Retry.SAFE else web.HTTPInternalServerError
            raise _refuse(kind, f"{type(error).__name__}: {error}") from error
        except Exception as error:
            raise _refuse(web.HTTPInternalServerError, f"the node failed: {type(error).__name__}") from error

    async def _handle(self, message: Request) -> Reply:
        try:
            return await self._handler(message)
        except HoldfastError:
            raise
        except Exception:
            log.exception("peer request failed", request=type(message).__name__)
            raise

    async def _on_presence(self, request: web.Request) -> web.StreamResponse:
        self._admit(request)
        member = request.query.get("member", "")
        if isinstance(await self._shielded(Probe(member)), UnknownMember):
            raise _refuse(web.HTTPNotFound, f"membership {member!r} doesn't live here")
        response = web.StreamResponse()
        await response.prepare(request)
        await self._closing.wait()
        return response

    async def _on_health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _on_ready(self, request: web.Request) -> web.Response:
        reason = self._ready() or self._connections.trouble
        return problem_response(not_ready(reason)) if reason else web.Response(text="ready\n")

    async def _tell_versions(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers[VERSION_HEADER] = str(self._speaks)

    async def _hang_up(self, app: web.Application) -> None:
        self._closing.set()
        for task in self._answering:
            task.cancel()

    def _admit(self, request: web.Request) -> None:
        if not self._secrets.admit(request):
            raise _refuse(
                web.HTTPUnauthorized, "peer_secret is missing or differs; set the same on every node"
            )

    # --- the client's side

    def _client(self) -> aiohttp.ClientSession:
        if self._closing.is_set():
            raise Unavailable("this node is closing and makes no calls")
        if self._trust is not None:
            self._trust.look()
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_headers_sent.append(_note_sent)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._trust.context if self._trust else True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                trace_configs=[trace],
                auto_decompress=False,
            )
        return self._session

    def _in_the_clear(self, address: str) -> bool:
        return self._settings.tls is not None and not address.startswith("https://")

    def _headers(self, version: int) -> dict[str, str]:
        headers = {VERSION_HEADER: str(version), "Content-Type": MEDIA_TYPE}
        if self._authorization:
            headers["Authorization"] = self._authorization
        return headers

    async def _reply(self, address: str, response: aiohttp.ClientResponse) -> Reply | None:
        theirs = parse_versions(response.headers.get(VERSION_HEADER))
        if theirs is None and response.status < 500:
            raise Unavailable(f"what answers at {address} is not a Holdfast node (HTTP {response.status})")
        if theirs is not None:
            agreed = self._speaks.common(theirs)
            self._note(address, agreed)
            if response.status == 426:
                if agreed is None:
                    raise Unavailable(f"can't call {address}: {no_common_version(theirs, self._speaks)}")
                return None
        if 400 <= response.status < 500 or response.status == 503:
            raise Unavailable(await _refusal(address, response))
        if response.status != 200:
            raise OutcomeUnknown(await _refusal(address, response))
        if response.content_length is None or response.content_length > self._settings.max_body_bytes:
            raise OutcomeUnknown(
                f"the reply of {address} is over max_peer_bytes ({self._settings.max_body_bytes})"
            )
        try:
            return self._replies.decode(await response.read())
        except UNREADABLE as error:
            raise OutcomeUnknown(f"the reply of {address} can't be read: {error}") from error

    def _note(self, address: str, version: int | None) -> None:
        """Note the version in which to call a node. Only older nodes are remembered, which are few."""
        if version in (None, self._speaks.newest):
            self._older.pop(address, None)
        else:
            self._older[address] = version

    # --- addresses

    def _check_exposure(self) -> None:
        host = self._settings.host
        if not is_loopback(host) and not self._authorization:
            raise ConfigError(
                f"host {host!r} can be reached from other machines, which needs peer_secret; set the"
                " same on every node (HOLDFAST_PEER_SECRET), or listen on host '127.0.0.1' only"
            )
        if _is_wildcard(host) and not self._settings.advertise:
            raise ConfigError(
                f"host {host!r} listens on every address, so other nodes need one of them:"
                " set advertise to this machine's name or address"
            )

    def _own_names(self) -> Iterator[str]:
        with contextlib.suppress(ValueError):
            if self._advertised and (name := URL(f"http://{self._advertised}").host):
                yield name

    def _address(self, bound_host: str, bound_port: int) -> str:
        if not self._settings.advertise:
            return str(URL.build(scheme=self._scheme, host=bound_host, port=bound_port)).rstrip("/")
        try:
            url = URL(f"{self._scheme}://{self._advertised}")
            if not url.host or url.path != "/":
                raise ValueError("no host")
            port = url.explicit_port or bound_port
        except ValueError as error:
            raise ConfigError(
                f"advertise {self._settings.advertise!r} must be 'host' or 'host:port' ({error})"
            ) from None
        return str(url.with_port(port)).rstrip("/")

    def _why_not_bound(self, error: OSError) -> str:
        host, port = self._settings.host, self._settings.port
        place = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            return f"{place} is in use: set another port (0 takes a free one), or stop what listens there"
        if error.errno == errno.EADDRNOTAVAIL:
            return f"can't listen on {place}: host {host!r} isn't an address of this machine; set host to one"
        if error.errno == errno.EACCES:
            return f"can't listen on {place}: port {port} needs privileges; set port to 1024 or above"
        if isinstance(error, socket.gaierror):
            return f"can't listen on {place}: host {host!r} doesn't resolve; set host to an address"
        return f"can't listen on {place}: {error.strerror or error}; check host and port"


def _refuse(kind: type[web.HTTPError], text: str) -> web.HTTPError:
    return kind(text=f"{redact(text)}\n")


async def _refusal(address: str, response: aiohttp.ClientResponse) -> str:
    text = await response.content.read(REASON_BYTES_MAX)
    try:
        reason = msgspec.json.decode(text, type=Problem).detail
    except UNREADABLE:
        reason = text.decode(errors="replace").strip()
    return f"{address} refused (HTTP {response.status}): {reason[:REASON_CHARS_MAX]}"


def _is_own_failure(error: Exception) -> bool:
    """Return True if the error shows nothing about the called node, such as a wrong address. A rejected
    certificate shows that a process runs."""
    foreign = aiohttp.ClientConnectorDNSError | aiohttp.ClientSSLError | ValueError
    return isinstance(error, foreign) or getattr(error, "errno", None) in OWN_FAILURES


def _words(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


async def _note_sent(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestHeadersSentParams
) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.sent = True


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
