"""The common parts of the HTTP servers of nodes and gateways: limits of connections, and errors as problem
details (RFC 9457)."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import math
import os
import re
import resource
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import (
    BadStatusLine,
    HttpProcessingError,
    InvalidHeader,
    InvalidURLError,
    LineTooLong,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.common.redaction import redact
from holdfast.ports.clock import Clock
from holdfast.system.log import get_logger

HEAD_S = 10.0
"""Seconds for a request's headers, from its first byte or the opening of its connection."""

IDLE_S = 300.0
"""Seconds for which a connection is kept after its last answer: longer than proxies and clients keep
theirs."""

LOOK_S = 1.0
TLS_HANDSHAKE_S = 10.0

BODY_PAUSE_S = 30.0
"""Longest pause between parts of a body, in seconds."""

CONNECTIONS_MAX = 10_000
RESERVE = 16
"""Connections beyond the limit that are reserved for nodes and health checks while all others are busy."""

_BEARER = re.compile(r"bearer +(.+)", re.IGNORECASE)

_HEARD_ALWAYS = re.compile(r"/healthz|/readyz|/v1/peer(/.*)?")

FILES_RESERVED = 256
"""Open files that are reserved for other uses than client connections, at most half of all."""

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = get_logger(__name__)


class Problem(msgspec.Struct, omit_defaults=True):
    """Problem details; ``type`` is stable, for programs."""

    type: str
    title: str
    status: int
    detail: str


class Connections:
    """The connections of one server: ``most`` at once, and none of them is idle or half-sent for long.

    If there is no room for a new connection, the one that was idle for longest is closed. If none is idle,
    the new one is in the reserve, where only other nodes and health checks are served, and other requests get
    a 503. A connection is refused with a 503 if the reserve is full too. ``most`` is lower if the process may
    not open that many files."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self.most = most
        self._all: dict[asyncio.BaseProtocol, _Connection] = {}
        self._idle: dict[_Connection, None] = {}
        """Connections without a request, in the order of their last one."""
        self.refused = 0
        self.closed = 0

    def __len__(self) -> int:
        return len(self._all)

    def fit(self) -> None:
        """Raise the limit of open files as needed, or else allow fewer connections."""
        files = allow_files(self.most + FILES_RESERVED)
        fit = files - min(FILES_RESERVED, files // 2)
        if fit < self.most:
            log.warning(
                "fewer connections than max_connections: the limit of open files is low; raise it"
                " (ulimit -n, LimitNOFILE=)",
                max_connections=self.most,
                connections=fit,
                open_files=files,
            )
            self.most = fit

    def over(self, make: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.Protocol]:
        """Return the factory of protocols for ``loop.create_server``; ``make`` makes aiohttp's own."""

        def made() -> _Connection:
            inner = make()
            # aiohttp has no option for the class of its protocols.
            if type(inner) is web.RequestHandler:
                inner.__class__ = _RequestHandler
            return _Connection(self, inner)

        return made

    async def listen(self, runner: web.AppRunner, tls: ssl.SSLContext | None, **where: Any) -> asyncio.Server:
        """Serve an application that is set up, where ``loop.create_server`` says."""
        assert runner.server is not None
        return await asyncio.get_running_loop().create_server(
            self.over(runner.server),
            ssl=tls,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if tls is not None else None,
            **where,
        )

    async def watch(self) -> None:
        """Close connections that are idle or too slow, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            now = self._clock.monotonic()
            for connection in [idle for idle in self._idle if idle.ends_at <= now]:
                self.closed += 1
                connection.close()

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that marks a connection as busy while its request is handled."""
        connection = self._all.get(request.protocol)
        if connection is None:
            return await handler(request)
        self._idle.pop(connection, None)
        connection.half_sent = False
        try:
            if self._lacks_room(connection) and not _HEARD_ALWAYS.fullmatch(request.path):
                self.refused += 1
                answer = problem_response(_NO_ROOM, {"Retry-After": str(RETRY_AFTER_S)})
                answer.force_close()
                return answer
            return await handler(request)
        finally:
            if request.protocol in self._all:
                self._rest(connection, IDLE_S)

    @property
    def trouble(self) -> str:
        """Return why the server can't take more connections, for ``/readyz``; empty if it can."""
        if len(self._all) >= self.most and all(idle.of_reserve for idle in self._idle):
            return f"all of {self.most} connections are busy (max_connections)"
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            return f"this process can't open further files ({error.strerror}); raise its limit (ulimit -n)"
        return ""

    # --- called by connections

    def opened(self, connection: _Connection, inner: asyncio.BaseProtocol) -> bool:
        """Take a new connection; return whether there is room for it."""
        if len(self._all) >= self.most:
            full = len(self._all) >= self.most + RESERVE
            # The reserve closes idle connections only when it is full: a new one in it is idle too.
            longest = next((idle for idle in self._idle if full or not idle.of_reserve), None)
            if longest is not None:
                self.closed += 1
                connection.of_reserve = longest.of_reserve
                longest.close()
                self.lost(longest)
            elif full:
                self.refused += 1
                return False
            else:
                connection.of_reserve = True
        self._all[inner] = connection
        self._rest(connection, HEAD_S)
        return True

    def begun(self, connection: _Connection) -> None:
        """Note that bytes came on a connection without a request."""
        if connection in self._idle and not connection.half_sent:
            connection.half_sent = True
            connection.ends_at = self._clock.monotonic() + HEAD_S

    def lost(self, connection: _Connection) -> None:
        """Note that a connection is closed."""
        self._all.pop(connection.inner, None)
        self._idle.pop(connection, None)

    def _lacks_room(self, connection: _Connection) -> bool:
        return connection.of_reserve and len(self._all) > self.most

    def _rest(self, connection: _Connection, time_s: float) -> None:
        connection.ends_at = self._clock.monotonic() + time_s
        self._idle[connection] = None


class _Connection(asyncio.Protocol):
    """One connection. Everything is passed on to aiohttp's protocol; its beginning and end are reported to
    ``connections``."""

    __slots__ = ("_connections", "_transport", "ends_at", "half_sent", "inner", "of_reserve")

    def __init__(self, connections: Connections, inner: asyncio.BaseProtocol) -> None:
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self.inner = inner
        self.ends_at = math.inf
        self.half_sent = False
        self.of_reserve = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports don't inherit from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        if not self._connections.opened(self, self.inner):
            self._transport.write(_NO_ROOM_ANSWER)
            self._transport.close()
            self._transport = None
            return
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._connections.begun(self)
            self.inner.data_received(data)  # type: ignore[attr-defined]

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self._transport is not None else None  # type: ignore[attr-defined]

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._connections.lost(self)
            self.inner.connection_lost(error)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def close(self) -> None:
        """Abort the connection without writing the rest: the other end reads nothing either."""
        if self._transport is not None:
            self._transport.abort()


class _RequestHandler(web.RequestHandler):
    """aiohttp's protocol, with problem details also for errors that no middleware sees: bad requests, and
    refusals before the application is called."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            detail = _reason_of(exc)
            # Any client can cause this entry, so it is short.
            log.info("bad request", client=request.remote, reason=detail)
            problem = Problem("urn:holdfast:invalid", _KINDS[400][1], 400, detail)
        else:
            log_failure(request, exc)
            problem = FAILED
        if request.writer.output_size > 0:
            raise ConnectionError("part of another answer was sent already")
        answer = problem_response(problem)
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            resp = _problem_of(resp)
        return await super().finish_response(request, resp, start_time)


def _reason_of(error: HttpProcessingError) -> str:
    """Return the error of a bad request in words, without its contents."""
    match error:
        case LineTooLong():
            return f"the URL or a header is longer than {error.args[1]} bytes"
        case BadStatusLine():
            return "it doesn't begin as a request of HTTP/1.1 does"
        case InvalidURLError():
            return "its URL can't be read"
        case InvalidHeader():
            return "one of its headers can't be read"
        case _:  # the lines below the first show contents
            return error.message.partition("\n")[0].rstrip(":.")[:200]


class OwnSite:
    """Middleware of a server on loopback without keys: it refuses requests that pages of other sites make
    in a browser of this machine.

    Browsers send the site of the page in ``Origin``, which must be the server itself. ``Host`` must be a name
    of this machine: a name of loopback, or one of ``names``. Otherwise a site could point its own name to the
    address of this machine. With ``any_host``, any ``Host`` is accepted."""

    def __init__(self, names: Iterable[str] = (), *, any_host: bool = False) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._any_host = any_host

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request of another site's page."""
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if host and not self._any_host and not self._is_own(host):
            return problem_response(foreign(f"Host is {host[:200]!r}, which isn't a name of this machine"))
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            return problem_response(foreign(f"Origin is {origin[:200]!r}, another site"))
        return await handler(request)

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or is_loopback(name)


def foreign(detail: str) -> Problem:
    """Return the error for a page of another site."""
    return Problem("urn:holdfast:foreign", "Cross-site request refused", 403, detail)


def is_loopback(host: str) -> bool:
    """Return True for names and addresses of loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def shown_key(request: web.Request) -> str:
    """Return the key in ``Authorization: Bearer``; empty without that header, or with several, because
    proxies choose differently."""
    given = request.headers.getall("Authorization", [])
    found = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    return found[1] if found is not None else ""


class Secrets:
    """Secrets of which callers must send one, if there are any: ``Authorization: Bearer SECRET``."""

    def __init__(self, *secrets: str | None) -> None:
        self._known = [secret.encode() for secret in secrets if secret]

    def __bool__(self) -> bool:
        return bool(self._known)

    def admit(self, request: web.Request) -> bool:
        """Return True if the caller sends a secret or needs none. The time doesn't depend on the secret."""
        shown = shown_key(request).encode(errors="surrogateescape")
        same = [hmac.compare_digest(shown, secret) for secret in self._known]
        return any(same) or not same


class ConnectionMetrics(Collector):
    """The connections of one server, for Prometheus."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterable[Metric]:
        """Return the numbers of open, closed and refused connections."""
        found = self._connections
        yield GaugeMetricFamily(
            "holdfast_connections", "Connections to this process (limit: max_connections).", value=len(found)
        )
        yield CounterMetricFamily(
            "holdfast_connections_closed", "Idle connections that were closed.", value=found.closed
        )
        yield CounterMetricFamily(
            "holdfast_connections_refused", "Connections refused because all were busy.", value=found.refused
        )


def allow_files(count: int) -> int:
    """Raise the limit of open files to ``count`` as far as the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with problem details."""
    return web.Response(
        body=msgspec.json.encode(problem), status=problem.status, content_type=MEDIA_TYPE, headers=headers
    )


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that answers errors as problem details. For a bug, the answer has no details."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        if error.status in (404, 405):
            error.text = f"there is no {request.method} {request.path[:200]} here"
        return _problem_of(error)
    except Exception as error:  # noqa: BLE001 - of any kind
        log_failure(request, error)
        return problem_response(FAILED)


def log_failure(request: web.BaseRequest, error: BaseException | None) -> None:
    """Log why a request failed. An error of a closed connection isn't a failure."""
    where = {"method": request.method, "path": request.path, "client": request.remote}
    if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
        log.info("connection closed before its answer", **where, error=str(error))
    else:
        log.error("request failed", **where, exc_info=error)


def _problem_of(error: web.HTTPException) -> web.Response:
    """Return an error of aiohttp as problem details."""
    kind, title = _KINDS.get(error.status, ("failed", "Internal error"))
    detail = redact((error.text or title).strip())
    headers = {name: value for name, value in error.headers.items() if name.lower() not in _OF_BODY}
    return problem_response(Problem(f"urn:holdfast:{kind}", title, error.status, detail), headers)


FAILED = Problem("urn:holdfast:failed", "Internal error", 500, "see the log of the node or gateway")
_KINDS = {
    400: ("invalid", "The request can't be understood"),
    401: ("unauthorized", "Unauthorized"),
    404: ("no-path", "No such path"),
    405: ("method", "The path has no such method"),
    408: ("slow", "The body came too slowly"),
    413: ("too-large", "The body is too large"),
    417: ("expectation", "Expectation not supported"),
    426: ("upgrade", "Protocol not supported"),
    503: ("unavailable", "Unavailable"),
}


def not_ready(reason: str) -> Problem:
    """Return the answer of ``/readyz`` while the server isn't ready."""
    return Problem("urn:holdfast:not-ready", "Not ready", 503, redact(reason))


_OF_BODY = frozenset({"content-type", "content-length"})

_NO_ROOM = Problem(
    "urn:holdfast:unavailable", "Unavailable", 503, "too many connections are open; try again later"
)
_NO_ROOM_BODY = msgspec.json.encode(_NO_ROOM)
_NO_ROOM_ANSWER = (
    f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {MEDIA_TYPE}\r\nRetry-After: {RETRY_AFTER_S}\r\n"
    f"Content-Length: {len(_NO_ROOM_BODY)}\r\nConnection: close\r\n\r\n"
).encode() + _NO_ROOM_BODY
