"""The configuration of HAProxy, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.gateway.clients import OPEN_PATHS
from holdfast.gateway.haproxy.binary import Build
from holdfast.gateway.haproxy.buffers import BUFFER_BYTES_MIN, HEADER_BYTES, REPLAY_BYTES, REWRITE_BYTES
from holdfast.gateway.node_routes import PATH, REQUEST_ID, SEQ, STREAM, TIMEOUT_MAX_S, TIMEOUT_S
from holdfast.http.problem import DATA_PLANE, MEDIA_TYPE, NO_421, OWNER, OWNER_ADDRESS, RETRY_AFTER_S, Problem
from holdfast.http.serving import HEAD_S

AUTHORIZATION = "HOLDFAST_AUTHORIZATION"
"""The environment variable that holds the secret for HAProxy, so that it is in no file and no command
line."""

CONNECT_TIMEOUT_MS = 50
"""If a node accepts no connection in this time, the fallback asks it, which waits longer."""

CLIENTS_MAX = 100_000
"""The most clients whose rates HAProxy remembers."""

OF_ONE_SOURCE = 4
"""One address may have this fraction of all connections (1/4), so that the rest is left for others."""

SOURCE = "src,ipmask(32,64)"
"""The address of a client: one customer usually has a whole /64 of IPv6."""

FALLBACK = "fallback"
"""The backend, and the server in every other backend, for requests that HAProxy can't bring to a node."""

NODE = "node"
"""The server in a backend that is the node itself."""

NODE_HOST = "localhost"
"""The ``Host`` for nodes, whatever address they have: each serves this name, but not that of the gateway."""

SMALL, LARGE = "-small", "-large"
"""The suffixes of a node's two backends: for bodies that can be sent again, and for larger ones."""

LOG_LINE_BYTES_MAX = 65535
"""The longest line of the access log: what HAProxy can write. It cuts lines at 1023 bytes unless told."""

NOBODY = "-"
"""The value in a map for a key that has no route any more. Nodes have the names ``s1``, ``s2`` and so on."""

_LATER = (f"Retry-After: {RETRY_AFTER_S}",)
ERRORS: dict[int, tuple[str, str, str, tuple[str, ...]]] = {
    400: ("invalid", "The request can't be understood", "Bad Request", ()),
    401: ("unauthorized", "Who are you?", "Unauthorized", ("WWW-Authenticate: Bearer",)),
    403: ("foreign", "Pages of other sites may not", "Forbidden", ()),
    408: ("slow", "The request came too slowly", "Request Timeout", ()),
    413: ("too-large", "The body is too large", "Payload Too Large", ()),
    429: ("busy", "This client sends too fast", "Too Many Requests", _LATER),
    500: ("failed", "The gateway failed", "Internal Server Error", ()),
    502: ("no-answer", "The node gave no answer", "Bad Gateway", _LATER),
    503: ("unavailable", "Not now", "Service Unavailable", _LATER),
    504: ("no-answer", "No answer in time", "Gateway Timeout", _LATER),
}
"""The errors that HAProxy itself answers: kind, title, reason and further headers."""


class HaproxyFiles(msgspec.Struct, frozen=True):
    """The files and sockets of one HAProxy process, all in one private folder."""

    folder: Path
    number: int
    """The number of the process, counted by its gateway."""

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.folder / f"haproxy-{self.number}.cfg"

    @property
    def admin(self) -> Path:
        """The socket of its runtime API."""
        return self.folder / f"admin-{self.number}.sock"

    @property
    def metrics(self) -> Path:
        """The socket of its metrics."""
        return self.folder / f"metrics-{self.number}.sock"

    @property
    def routes(self) -> Path:
        """The map of routes."""
        return self.folder / f"routes-{self.number}.map"

    @property
    def recent(self) -> Path:
        """The map of later changes, which comes before ``routes``."""
        return self.folder / f"recent-{self.number}.map"

    @property
    def refused(self) -> Path:
        """The map of keys whose requests were refused since the last update. HAProxy writes it itself."""
        return self.folder / f"refused-{self.number}.map"

    @property
    def clients(self) -> Path:
        """The map of clients' names by the digests of their keys."""
        return self.folder / f"clients-{self.number}.map"

    @property
    def rates(self) -> Path:
        """The map of the rates of clients that have their own."""
        return self.folder / f"rates-{self.number}.map"

    @property
    def own(self) -> tuple[Path, ...]:
        """The files of this process alone."""
        maps = (self.routes, self.recent, self.refused, self.clients, self.rates)
        return (self.config, self.admin, self.metrics, *maps)

    @property
    def fallback(self) -> Path:
        """The socket of the data plane in Python; shared by all processes."""
        return self.folder / "fallback.sock"

    def error(self, status: int) -> Path:
        """The file of the answer with that status; shared by all processes."""
        return self.folder / f"error-{status}.http"


class Settings(msgspec.Struct, frozen=True):
    """The values that the configuration depends on.

    Attributes:
        listeners: file descriptors of listening sockets that HAProxy inherits.
        servers: the address ``ip:port`` of each server that nodes may have; None while it has none.
        only: the only stream that nodes declare, if there is only one. Requests need not name it.
        max_body_bytes: larger bodies are refused.
        replay_bytes: bodies up to this size are sent again if an owner fails; for larger ones the client gets
            an error.
        certificate: the file with certificate and key, if clients speak TLS.
        authorized: whether nodes need a secret.
        peer_ca: the file with the authority of the nodes' certificates, if nodes speak TLS.
        peer_name: the name that those certificates are for; empty if each is for the address of its node.
        access_log: whether each request is logged to stdout, as a line of JSON.
        connections_max: connections of clients at the same time.
        asks: whether clients must show keys.
        limits: whether any client has a limit of its rate.
        per_s: how many requests per second each client may send that has no rate of its own; 0 for no limit.
        own_site: whether pages of other sites are refused: ``any host`` by ``Origin`` alone, ``local`` by
            ``Host`` too.
    """

    build: Build
    files: HaproxyFiles
    listeners: tuple[int, ...]
    servers: Mapping[str, str | None]
    max_body_bytes: int
    connections_max: int
    replay_bytes: int = REPLAY_BYTES
    only: str | None = None
    certificate: str = ""
    authorized: bool = False
    peer_ca: str = ""
    peer_name: str = ""
    access_log: bool = False
    asks: bool = False
    limits: bool = False
    per_s: int = 0
    own_site: Literal["", "any host", "local"] = ""


def render(settings: Settings) -> str:
    """Return the text of the configuration."""
    sections = [_global(settings), _defaults(settings), _frontend(settings)]
    for name, address in settings.servers.items():
        sections += [_small(settings, name, address), _large(settings, name, address)]
    sections += [_fallback(settings), _sources(settings)]
    if settings.build.prometheus:
        sections.append(_metrics(settings))
    return "\n\n".join("\n    ".join(section) for section in sections) + "\n"


def error_page(status: int) -> str:
    """Return the whole answer of HAProxy itself to a request that it can't serve."""
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
        # HAProxy makes room for so many descriptors, and refuses a listener whose own number is above that.
        f"maxconn {settings.connections_max + max(settings.listeners, default=0)}",
        f"tune.bufsize {max(BUFFER_BYTES_MIN, settings.replay_bytes + HEADER_BYTES + REWRITE_BYTES)}",
        f"tune.maxrewrite {REWRITE_BYTES}",
        "tune.pattern.cache-size 0",  # it costs more than it saves
        f"stats socket unix@{settings.files.admin} mode 600 level admin",
        "stats timeout 1h",
        # A replaced process serves its clients to the end, but WebSockets only for this long.
        f"hard-stop-after {TIMEOUT_MAX_S:.0f}s",
        "ssl-default-bind-options ssl-min-ver TLSv1.2",
    ]
    if settings.access_log:
        lines.append(f"log stdout len {LOG_LINE_BYTES_MAX} format raw daemon info")
    return lines


def _defaults(settings: Settings) -> list[str]:
    lines = [
        "defaults",
        "mode http",
        # A kept connection is ended with its next answer, so that no client finds it just closed.
        "option idle-close-on-response",
        "option abortonclose",
        # One more try, and then the fallback: nodes have weight 0, so that no other node is chosen.
        "option redispatch 1",
        "retries 1",
        "http-reuse always",
        f"timeout connect {CONNECT_TIMEOUT_MS}ms",
        "timeout client 60s",
        f"timeout http-request {TIMEOUT_S:.0f}s",
        "timeout http-keep-alive 75s",
        f"timeout server {TIMEOUT_MAX_S + 5:.0f}s",  # a node itself answers when the client's time is over
        f"timeout tunnel {TIMEOUT_MAX_S:.0f}s",
        # This finds a node whose machine died before it answered.
        "option srvtcpka",
        "srvtcpka-idle 2s",
        "srvtcpka-intvl 1s",
        "srvtcpka-cnt 3",
    ]
    if settings.access_log:
        lines.append("log global")
    lines += [f"errorfile {status} {settings.files.error(status)}" for status in ERRORS]
    return lines


def _frontend(settings: Settings) -> list[str]:
    files = settings.files
    tls = f" ssl crt {settings.certificate} alpn h2,http/1.1" if settings.certificate else ""
    lines = [
        "frontend clients",
        f"maxconn {settings.connections_max}",
        *(f"bind fd@{fd}{tls}" for fd in settings.listeners),
        # For the headers only: a body has the longer time of its backend.
        f"timeout http-request {HEAD_S:.0f}s",
        f"tcp-request connection track-sc1 {SOURCE} table sources",
        f"tcp-request connection reject if {{ sc1_conn_cur gt {_of_one_source(settings)} }}",
    ]
    if settings.access_log:
        lines += [
            f"log-format '{_ACCESS}'",
            "http-request set-var(txn.method) method",
            "http-request set-var(txn.path) path",
        ]
    lines += [*_own_site(settings), *_admit(settings)]
    # By its seq or this id, the owner recognises a request that is sent again.
    known = f"{{ req.hdr({SEQ}) -m found }} || {{ req.hdr({REQUEST_ID}) -m found }}"
    lines.append(f"http-request set-header {REQUEST_ID} %[uuid] unless {known}")
    if settings.access_log:
        lines.append(f"http-request set-var(txn.request) req.hdr({REQUEST_ID})")
    recent = f"pathq,map({files.recent})"
    size = f"req.body_size,div({settings.replay_bytes + 1}),bool,iif({LARGE},{SMALL})"
    return [
        *lines,
        *_naming(settings.only),
        # Requests that are in no map, or unusual, go to the fallback.
        f"use_backend %[{recent}]%[{size}] if METH_POST {{ {recent} -m found }}",
        f"use_backend %[pathq,map({files.routes})]%[{size}] if METH_POST",
        f"default_backend {FALLBACK}",
    ]


def _own_site(settings: Settings) -> list[str]:
    """The rules of :class:`holdfast.http.serving.OwnSite`."""
    if not settings.own_site:
        return []
    foreign = "{ req.fhdr(origin) -m found } !{ var(txn.origin),strcmp(txn.host) eq 0 }"
    lines = [
        "http-request set-var(txn.host) req.fhdr(host),lower",
        "http-request set-var(txn.origin) req.fhdr(origin),lower,regsub('^https?://',)",
        f"http-request deny deny_status 403 if {foreign}",
    ]
    if settings.own_site == "local":
        here = f"{{ var(txn.host) -m reg {_LOCAL_HOST} }}"
        lines.append(f"http-request deny deny_status 403 if {{ req.fhdr(host) -m found }} !{here}")
    return lines


_LOCAL_HOST = r"^(([a-z0-9-]+\.)*localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?$"


def _admit(settings: Settings) -> list[str]:
    """The rules of :class:`holdfast.gateway.clients.Clients`."""
    lines = [f"acl told_to_all path {' '.join(OPEN_PATHS)}"] if settings.asks or settings.limits else []
    if settings.asks:
        shown = "{ req.fhdr_cnt(authorization) eq 1 } { req.fhdr(authorization) -m beg -i 'bearer ' }"
        digest = "req.fhdr(authorization),regsub('^[^ ]+ +',),sha2(256),hex,lower"
        lines += [
            f"http-request set-var(txn.client) {digest},map({settings.files.clients}) if {shown}",
            "http-request deny deny_status 401 if !told_to_all !{ var(txn.client) -m found }",
            "http-request del-header Authorization",
        ]
    elif settings.limits:
        lines.append(f"http-request set-var(txn.client) {SOURCE}")
    if settings.limits:
        rate = f"map_str_int({settings.files.rates},{settings.per_s})"
        over = "{ var(txn.rate) -m int gt 0 } { var(txn.over) -m int ge 0 }"
        lines += [
            f"stick-table type string len 64 size {CLIENTS_MAX} expire 10s store http_req_rate(1s)",
            f"http-request set-var(txn.rate) var(txn.client),{rate}",
            "http-request set-var(txn.over) var(txn.client),table_http_req_rate,sub(txn.rate)",
            f"http-request deny deny_status 429 if !told_to_all {over}",
            # Count only here: refused requests don't count, so a client that sends too fast is still served
            # at its rate.
            "http-request track-sc0 var(txn.client) if !told_to_all",
        ]
    return lines


def _naming(only: str | None) -> list[str]:
    """Copy a stream's name from the header to the query, as in the maps. If there is only one stream, its
    name is in neither."""
    named = f"req.fhdr({STREAM},1)"
    names = f"{{ {named},length gt 0 }}"  # an empty header names none, and the parameter counts
    into_query = f"http-request set-query stream=%[{named},url_enc] if {_MESSAGE} {names}"
    if only is None:
        return [into_query]
    out_of_query = f"http-request set-pathq %[path] if {_MESSAGE} {{ query -m str stream={only} }}"
    return [f"{into_query} !{{ {named} -m str -- {only} }}", out_of_query]


_MESSAGE = f"{{ path_beg {PATH} }}"
"""Is true for a message: parameters of other paths are left as they are."""

_ACCESS = (
    '{"event":"request","time":%Ts.%ms,"client":"%ci","name":"%[var(txn.client),json(utf8s)]","method":"%[var(txn.method),json(utf8s)]",'
    '"path":"%[var(txn.path),json(utf8s)]","request_id":"%[var(txn.request),json(utf8s)]","status":%ST,'
    '"bytes":%B,"ms":%Ta,"by":"%s","retries":"%rc"}'
)


def _small(settings: Settings, name: str, address: str | None) -> list[str]:
    """The backend for requests that are buffered as a whole, so that they can be sent again."""
    again = ["conn-failure", "empty-response", "junk-response", "0rtt-rejected", "425", "503"]
    if settings.build.retries_421:
        again.append("421")
    return [
        f"backend {name}{SMALL}",
        "option http-buffer-request",
        f"retry-on {' '.join(again)}",
        *_told(settings),
        *_servers(settings, address),
    ]


def _large(settings: Settings, name: str, address: str | None) -> list[str]:
    """The backend for requests that aren't buffered. After a refused one, the fallback takes the next request
    of its key and learns the owner."""
    files = settings.files
    refused = f"{{ status 421 503 }} {{ res.hdr({OWNER}) -m found }}"
    return [
        f"backend {name}{LARGE}",
        _deny(settings),
        "http-request set-var(txn.key) pathq",
        *_told(settings),
        f"http-response set-map({files.refused}) %[var(txn.key)] 1 if {refused}",
        f"use-server {FALLBACK} if {{ pathq,map({files.refused}) -m found }}",
        *_servers(settings, address),
    ]


def _told(settings: Settings) -> list[str]:
    """The headers that are set for the node, whatever the client sends in them."""
    told = [
        f"http-response del-header {OWNER_ADDRESS}",  # for gateways only
        # The gateway's own site has been looked at already; a node takes these for its own.
        f"http-request set-header Host {NODE_HOST}",
        "http-request del-header Origin",
    ]
    if settings.authorized:
        told.append(f"http-request set-header Authorization %[env({AUTHORIZATION})]")
    if not settings.build.retries_421:
        told.append(f"http-request set-header {DATA_PLANE} {NO_421}")
    return told


def _servers(settings: Settings, address: str | None) -> list[str]:
    tls = f" ssl verify required ca-file '{settings.peer_ca}'" if settings.peer_ca else ""
    if settings.peer_name:
        tls += f" sni str({settings.peer_name}) verifyhost {settings.peer_name}"
    return [
        f"use-server {NODE} if TRUE",
        f"server {FALLBACK} unix@{settings.files.fallback} weight 1",
        f"server {NODE} {address or '127.0.0.1:1 disabled'} weight 0{tls}",
    ]


def _deny(settings: Settings) -> str:
    return f"http-request deny deny_status 413 if {{ req.body_size gt {settings.max_body_bytes} }}"


def _fallback(settings: Settings) -> list[str]:
    server = f"server {FALLBACK} unix@{settings.files.fallback}"
    return [f"backend {FALLBACK}", "timeout connect 5s", _deny(settings), server]


def _sources(settings: Settings) -> list[str]:
    """The limit on the connections of each address."""
    size = max(1000, settings.connections_max)
    return ["backend sources", f"stick-table type ipv6 size {size} expire 10s store conn_cur"]


def _of_one_source(settings: Settings) -> int:
    return max(1, settings.connections_max // OF_ONE_SOURCE)


def _metrics(settings: Settings) -> list[str]:
    return [
        "frontend metrics",
        f"bind unix@{settings.files.metrics} mode 600",
        "http-request use-service prometheus-exporter",
    ]
