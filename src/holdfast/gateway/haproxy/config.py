"""The configuration of HAProxy, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.gateway.door import REQUEST_ID, STREAM, TIMEOUT_MAX_S, TIMEOUT_S
from holdfast.gateway.haproxy.binary import Build
from holdfast.gateway.problem import DATA_PLANE, MEDIA_TYPE, NO_421, OWNER, RETRY_AFTER_S, Problem

AUTHORIZATION = "HOLDFAST_AUTHORIZATION"
"""The environment variable that gives HAProxy the secret, which so stands in no file and no command line."""

REPLAY_BYTES = 24 * 1024
"""HAProxy copies a whole buffer of this size for every request that it may have to send again. With 24 KiB
that takes 1 µs, with 64 KiB 6, with 256 KiB 30, where all else takes 20."""

CONNECT_TIMEOUT_MS = 50
"""A node that takes no connection in this time is asked by the fallback, which has more patience."""

HEADER_BYTES = 8 * 1024
REWRITE_BYTES = 1024
OWNERS, FALLBACK = "owners", "fallback"
"""The backends of HAProxy: nodes, and whatever it can't bring to one."""

ONLY = "only"
"""The single key of the map that names the only stream there is."""

NOBODY = "-"
"""What a map says of a key that has no route any more. Servers are called ``s1``, ``s2`` and so on."""

_LATER = (f"Retry-After: {RETRY_AFTER_S}",)
ERRORS: dict[int, tuple[str, str, str, tuple[str, ...]]] = {
    400: ("invalid", "The request can't be understood", "Bad Request", ()),
    408: ("slow", "The request came too slowly", "Request Timeout", ()),
    413: ("too-large", "The body is too large", "Payload Too Large", ()),
    500: ("failed", "The gateway failed", "Internal Server Error", ()),
    502: ("no-answer", "The node gave no answer", "Bad Gateway", _LATER),
    503: ("unavailable", "Not now", "Service Unavailable", _LATER),
    504: ("no-answer", "No answer in time", "Gateway Timeout", _LATER),
}
"""What HAProxy answers itself: kind, title, reason and further headers."""


class Files(msgspec.Struct, frozen=True):
    """What one HAProxy process reads and listens on, all in one private folder."""

    folder: Path
    number: int
    """Counts the processes that one gateway starts."""

    @property
    def config(self) -> Path:
        """Its configuration."""
        return self.folder / f"haproxy-{self.number}.cfg"

    @property
    def admin(self) -> Path:
        """The socket of its runtime API."""
        return self.folder / f"admin-{self.number}.sock"

    @property
    def metrics(self) -> Path:
        """The socket at which it tells its numbers."""
        return self.folder / f"metrics-{self.number}.sock"

    @property
    def routes(self) -> Path:
        """The map of routes."""
        return self.folder / f"routes-{self.number}.map"

    @property
    def recent(self) -> Path:
        """The map of what changed since; it goes before ``routes``."""
        return self.folder / f"recent-{self.number}.map"

    @property
    def refused(self) -> Path:
        """The map of what owners refused since HAProxy was told of changes, which it writes itself."""
        return self.folder / f"refused-{self.number}.map"

    @property
    def only(self) -> Path:
        """The map that names the only stream, if there is only one."""
        return self.folder / f"only-{self.number}.map"

    @property
    def own(self) -> tuple[Path, ...]:
        """What belongs to this process alone."""
        return (self.config, self.admin, self.metrics, self.routes, self.recent, self.refused, self.only)

    @property
    def fallback(self) -> Path:
        """Where the data plane in Python listens; shared by all processes."""
        return self.folder / "fallback.sock"

    def error(self, status: int) -> Path:
        """What it answers with that status; shared by all processes."""
        return self.folder / f"error-{status}.http"

    @property
    def certificate(self) -> Path:
        """Certificate and key, for TLS; shared by all processes."""
        return self.folder / "certificate.pem"


class Settings(msgspec.Struct, frozen=True):
    """What the configuration depends on.

    Attributes:
        listeners: file descriptors of listening sockets that HAProxy inherits.
        servers: the address ``ip:port`` of each server that nodes may have; None while it has none.
        max_body_bytes: larger bodies are refused.
        replay_bytes: bodies up to this size are sent again if an owner fails; of larger ones the client is
            told.
        tls: whether clients speak TLS.
        authorized: whether nodes ask for a secret.
        access_log: one line of JSON for each request, to stdout.
        connections_max: connections of clients at the same time.
    """

    build: Build
    files: Files
    listeners: tuple[int, ...]
    servers: Mapping[str, str | None]
    max_body_bytes: int
    connections_max: int
    replay_bytes: int = REPLAY_BYTES
    tls: bool = False
    authorized: bool = False
    access_log: bool = False


def render(settings: Settings) -> str:
    """The configuration."""
    sections = [_global(settings), _defaults(settings), _frontend(settings)]
    sections += [_owners(settings), _fallback(settings)]
    if settings.build.prometheus:
        sections.append(_metrics(settings))
    return "\n\n".join("\n    ".join(section) for section in sections) + "\n"


def error_page(status: int) -> str:
    """What HAProxy itself answers, in whole, to a request that it can't serve."""
    kind, title, reason, more = ERRORS[status]
    problem = Problem(f"urn:holdfast:{kind}", title, status, title)
    body = msgspec.json.encode(problem).decode()
    lines = (
        f"HTTP/1.1 {status} {reason}",
        f"Content-Type: {MEDIA_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *more,
    )
    return "\r\n".join((*lines, "", body))


def _global(settings: Settings) -> list[str]:
    lines = [
        "global",
        f"maxconn {settings.connections_max}",
        f"tune.bufsize {settings.replay_bytes + HEADER_BYTES + REWRITE_BYTES}",
        f"tune.maxrewrite {REWRITE_BYTES}",
        f"stats socket unix@{settings.files.admin} mode 600 level admin",
        "stats timeout 1h",
        # A process that was replaced serves its clients to the end, WebSockets for so long at most.
        f"hard-stop-after {TIMEOUT_MAX_S:.0f}s",
        "ssl-default-bind-options ssl-min-ver TLSv1.2",
    ]
    if settings.access_log:
        lines.append("log stdout format raw daemon info")
    return lines


def _defaults(settings: Settings) -> list[str]:
    lines = [
        "defaults",
        "mode http",
        # A client that kept its connection is told with its next answer, and never finds it just closed.
        "option idle-close-on-response",
        "option abortonclose",
        "option redispatch 1",
        "http-reuse always",
        f"timeout connect {CONNECT_TIMEOUT_MS}ms",
        "timeout client 60s",
        f"timeout http-request {TIMEOUT_S:.0f}s",
        "timeout http-keep-alive 75s",
        f"timeout server {TIMEOUT_MAX_S + 5:.0f}s",  # a node says itself when the client's time is over
        f"timeout tunnel {TIMEOUT_MAX_S:.0f}s",
    ]
    if settings.access_log:
        lines.append("log global")
    lines += [f"errorfile {status} {settings.files.error(status)}" for status in ERRORS]
    return lines


def _frontend(settings: Settings) -> list[str]:
    files = settings.files
    tls = f" ssl crt {files.certificate} alpn h2,http/1.1" if settings.tls else ""
    unnamed = f"!{{ req.fhdr_cnt({STREAM}) gt 0 }}"
    wanted = f"!{{ var(txn.key),map({files.refused}) -m found }}"
    unknown = "!{ var(txn.server) -m found }"
    size = "req.hdr_val(content-length)"
    lines = ["frontend clients", *(f"bind fd@{fd}{tls}" for fd in settings.listeners)]
    if settings.access_log:
        lines += [
            f"log-format '{_ACCESS}'",
            "http-request set-var(txn.method) method",
            "http-request set-var(txn.path) path",
        ]
    return [
        *lines,
        f"http-request deny deny_status 413 if {{ {size} gt {settings.max_body_bytes} }}",
        f"http-request set-header {REQUEST_ID} %[uuid] unless {{ req.hdr({REQUEST_ID}) -m found }}",
        *([f"http-request set-var(txn.request) req.hdr({REQUEST_ID})"] if settings.access_log else []),
        # What a client says of these is dropped either way.
        f"http-request set-header Authorization %[env({AUTHORIZATION})]"
        if settings.authorized
        else "http-request del-header Authorization",
        f"http-request del-header {DATA_PLANE}"
        if settings.build.retries_421
        else f"http-request set-header {DATA_PLANE} {NO_421}",
        # The stream as a client names it, unescaped: whatever is odd is in no map and goes to the fallback.
        f"http-request set-var(txn.stream) req.fhdr({STREAM}) if {{ req.fhdr_cnt({STREAM}) eq 1 }}",
        f"http-request set-var(txn.stream) query,bytes(7) if {unnamed} {{ query -m beg stream= }}",
        f"http-request set-var(txn.stream) str({ONLY}),map({files.only}) if {unnamed} !{{ query -m found }}",
        "http-request set-var(txn.key) path,concat(?,txn.stream)",
        f"http-request set-var(txn.server) var(txn.key),map({files.recent})",
        f"http-request set-var(txn.server) var(txn.key),map({files.routes}) if {unknown}",
        f"use_backend {OWNERS} if METH_POST {{ var(txn.server) -m beg s }} {wanted}",
        f"default_backend {FALLBACK}",
    ]


_ACCESS = (
    '{"event":"request","time":%Ts.%ms,"client":"%ci","method":"%[var(txn.method),json(utf8s)]",'
    '"path":"%[var(txn.path),json(utf8s)]","request_id":"%[var(txn.request),json(utf8s)]","status":%ST,'
    '"bytes":%B,"ms":%Ta,"by":"%s","retries":"%rc"}'
)


def _owners(settings: Settings) -> list[str]:
    again = ["conn-failure", "empty-response", "junk-response", "0rtt-rejected", "425", "503"]
    if settings.build.retries_421:
        again.append("421")
    size = "req.hdr_val(content-length)"
    small = f"{{ {size} -m found }} {{ {size} le {settings.replay_bytes} }}"
    refused = f"{{ status 421 503 }} {{ res.hdr({OWNER}) -m found }}"
    return [
        f"backend {OWNERS}",
        "balance roundrobin",
        # Once more, and then by the fallback: nodes weigh nothing, so that nobody else is chosen.
        "retries 1",
        f"retry-on {' '.join(again)}",
        # Only what is there in whole can be sent again.
        f"http-request wait-for-body time {TIMEOUT_S:.0f}s if {small}",
        f"http-request disable-l7-retry unless {small}",
        # What could not be sent again is brought by the fallback next time, which learns who the owner is.
        f"http-response set-map({settings.files.refused}) %[var(txn.key)] 1 if {refused}",
        # A node that vanished with its machine while it owes an answer.
        "option srvtcpka",
        "srvtcpka-idle 2s",
        "srvtcpka-intvl 1s",
        "srvtcpka-cnt 3",
        "use-server %[var(txn.server)] if TRUE",
        f"server fallback unix@{settings.files.fallback} weight 1",
        *(_server(name, address) for name, address in settings.servers.items()),
    ]


def _server(name: str, address: str | None) -> str:
    return f"server {name} {address or '127.0.0.1:1 disabled'} weight 0"


def _fallback(settings: Settings) -> list[str]:
    return [f"backend {FALLBACK}", "timeout connect 5s", f"server fallback unix@{settings.files.fallback}"]


def _metrics(settings: Settings) -> list[str]:
    return [
        "frontend metrics",
        f"bind unix@{settings.files.metrics} mode 600",
        "http-request use-service prometheus-exporter",
    ]
