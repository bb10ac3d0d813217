"""The configuration of HAProxy, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.gateway.clients import OPEN_PATHS, Clients
from holdfast.gateway.haproxy.binary import BUFFER_BYTES_MIN, HEADER_BYTES, REPLAY_BYTES, REWRITE_BYTES, Build
from holdfast.gateway.listen import GatewaySettings
from holdfast.gateway.request_format import MESSAGES, REQUEST_ID, SEQ, STREAM, TIMEOUT_MAX_S, TIMEOUT_S
from holdfast.http.problem import DATA_PLANE, MEDIA_TYPE, NO_421, OWNER, OWNER_ADDRESS, RETRY_AFTER_S, Problem
from holdfast.http.serving import HEAD_S

AUTHORIZATION = "HOLDFAST_AUTHORIZATION"
"""The environment variable with the nodes' secret, so that no file and no command line has it."""

CONNECT_TIMEOUT_MS = 50
"""The time for a node to accept a connection. After it the fallback asks the node, and waits longer."""

CLIENTS_MAX = 100_000
"""The most clients whose rates HAProxy remembers."""

OF_ONE_SOURCE = 4
"""One address may have 1/4 of all connections."""

SOURCE = "src,ipmask(32,64)"
"""The address of a client: a customer usually has a whole /64 of IPv6."""

FALLBACK = "fallback"
"""The data plane in Python: a backend, and a server in every other backend."""

NODE = "node"
"""The server in a backend that is the node itself."""

NODE_HOST = "localhost"
"""The ``Host`` of requests to nodes: each node serves this name, but not the gateway's."""

SMALL, LARGE = "-small", "-large"
"""The suffixes of a node's two backends: for bodies that can be sent again, and for larger bodies."""

LOG_LINE_BYTES_MAX = 65535
"""The longest line of the access log that HAProxy can write; its default is 1023 bytes."""

NO_SERVER = "-"
"""The map value of a key whose route has ended. The servers of nodes are ``s1``, ``s2`` and so on."""

MAPS = ("routes", "recent", "refused", "clients", "rates")

_LATER = (f"Retry-After: {RETRY_AFTER_S}",)
ERRORS: dict[int, tuple[str, str, str, tuple[str, ...]]] = {
    400: ("invalid", "The request can't be understood", "Bad Request", ()),
    401: ("unauthorized", "Unauthorized", "Unauthorized", ("WWW-Authenticate: Bearer",)),
    403: ("foreign", "Cross-site request refused", "Forbidden", ()),
    408: ("slow", "The request came too slowly", "Request Timeout", ()),
    413: ("too-large", "The body is too large", "Payload Too Large", ()),
    429: ("busy", "This client sends too fast", "Too Many Requests", _LATER),
    500: ("failed", "The gateway failed", "Internal Server Error", ()),
    502: ("no-answer", "The node gave no answer", "Bad Gateway", _LATER),
    503: ("unavailable", "Unavailable", "Service Unavailable", _LATER),
    504: ("no-answer", "No answer in time", "Gateway Timeout", _LATER),
}
"""The errors of HAProxy itself, by status: kind, title, reason and further headers."""


class HaproxyFiles(msgspec.Struct, frozen=True):
    """The files and sockets of one HAProxy process, all in one private folder.

    Attributes:
        config: the configuration.
        admin, metrics: the sockets of the runtime API and of the metrics.
        routes: the map of routes.
        recent: the map of later changes, which is read before ``routes``.
        refused: the map of keys whose requests were refused since the last update. HAProxy writes it itself.
        clients: the map of clients' names by the digests of their keys.
        rates: the map of the rates of clients that have their own.
        fallback: the socket of the data plane in Python; shared by all processes.
    """

    folder: Path
    config: Path
    admin: Path
    metrics: Path
    routes: Path
    recent: Path
    refused: Path
    clients: Path
    rates: Path
    fallback: Path

    @classmethod
    def of(cls, folder: Path, number: int) -> HaproxyFiles:
        """Return the files of a gateway's HAProxy process ``number``."""
        return cls(
            folder=folder,
            config=folder / f"haproxy-{number}.cfg",
            fallback=folder / "fallback.sock",
            **{name: folder / f"{name}-{number}.sock" for name in ("admin", "metrics")},
            **{name: folder / f"{name}-{number}.map" for name in MAPS},
        )

    def remove(self) -> None:
        """Delete the files of this process alone."""
        for file in (self.config, self.admin, self.metrics, *(getattr(self, name) for name in MAPS)):
            file.unlink(missing_ok=True)

    def error(self, status: int) -> Path:
        """Return the file of the answer with that status; shared by all processes."""
        return self.folder / f"error-{status}.http"


class Settings(msgspec.Struct, frozen=True):
    """The values that the configuration depends on.

    Attributes:
        gateway: how clients are served, and how nodes are called.
        listeners: file descriptors of listening sockets that HAProxy inherits.
        servers: the address ``ip:port`` of each server for nodes; None while no node has it.
        connections_max: connections of clients at the same time.
        clients: the clients that may use the gateway, and their rates.
        only: the only stream that nodes declare; None if there are more. Requests need not name it.
        replay_bytes: bodies up to this size are sent again if an owner fails; for larger ones the client gets
            an error.
        certificate: the file with certificate and key, if clients use TLS.
        peer_ca: the file with the authority of the nodes' certificates, if nodes use TLS.
    """

    build: Build
    files: HaproxyFiles
    gateway: GatewaySettings
    listeners: tuple[int, ...]
    servers: Mapping[str, str | None]
    connections_max: int
    clients: Clients | None = None
    replay_bytes: int = REPLAY_BYTES
    only: str | None = None
    certificate: str = ""
    peer_ca: str = ""

    @property
    def need_keys(self) -> bool:
        """True if clients must show keys."""
        return self.clients is not None and self.clients.need_keys

    @property
    def per_s(self) -> int | None:
        """The rate of clients without their own, 0 for no limit; None if no client has a limit."""
        return self.clients.per_s if self.clients is not None and self.clients.limits else None


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
    """Return the whole answer of HAProxy itself, headers included, for an error."""
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
        # HAProxy also refuses a listener whose descriptor is above this number.
        f"maxconn {settings.connections_max + max(settings.listeners, default=0)}",
        f"tune.bufsize {max(BUFFER_BYTES_MIN, settings.replay_bytes + HEADER_BYTES + REWRITE_BYTES)}",
        f"tune.maxrewrite {REWRITE_BYTES}",
        "tune.pattern.cache-size 0",  # it costs more than it saves
        f"stats socket unix@{settings.files.admin} mode 600 level admin",
        "stats timeout 1h",
        # A replaced process serves its clients to the end, but a WebSocket only for this time.
        f"hard-stop-after {TIMEOUT_MAX_S:.0f}s",
        "ssl-default-bind-options ssl-min-ver TLSv1.2",
    ]
    if settings.gateway.access_log:
        lines.append(f"log stdout len {LOG_LINE_BYTES_MAX} format raw daemon info")
    return lines


def _defaults(settings: Settings) -> list[str]:
    lines = [
        "defaults",
        "mode http",
        # An idle connection is closed with its next answer, so that no client sends to a closed one.
        "option idle-close-on-response",
        "option abortonclose",
        # One more try, then the fallback: nodes have weight 0, so HAProxy chooses no other node.
        "option redispatch 1",
        "retries 1",
        "http-reuse always",
        f"timeout connect {CONNECT_TIMEOUT_MS}ms",
        "timeout client 60s",
        f"timeout http-request {TIMEOUT_S:.0f}s",
        "timeout http-keep-alive 75s",
        f"timeout server {TIMEOUT_MAX_S + 5:.0f}s",  # the node answers when the client's time is over
        f"timeout tunnel {TIMEOUT_MAX_S:.0f}s",
        # This finds a node whose machine died before it answered.
        "option srvtcpka",
        "srvtcpka-idle 2s",
        "srvtcpka-intvl 1s",
        "srvtcpka-cnt 3",
    ]
    if settings.gateway.access_log:
        lines.append("log global")
    lines += [f"errorfile {status} {settings.files.error(status)}" for status in ERRORS]
    return lines


def _frontend(settings: Settings) -> list[str]:
    files = settings.files
    tls = f" ssl crt {settings.certificate} alpn h2,http/1.1" if settings.certificate else ""
    of_one_source = max(1, settings.connections_max // OF_ONE_SOURCE)
    lines = [
        "frontend clients",
        f"maxconn {settings.connections_max}",
        *(f"bind fd@{fd}{tls}" for fd in settings.listeners),
        # For the headers only: the backend has a longer time for the body.
        f"timeout http-request {HEAD_S:.0f}s",
        f"tcp-request connection track-sc1 {SOURCE} table sources",
        f"tcp-request connection reject if {{ sc1_conn_cur gt {of_one_source} }}",
    ]
    if settings.gateway.access_log:
        lines += [
            f"log-format '{_ACCESS}'",
            "http-request set-var(txn.method) method",
            "http-request set-var(txn.path) path",
        ]
    lines += [*_own_site(settings), *_admit(settings)]
    # By the seq or this id, the owner recognises a request that is sent again.
    known = f"{{ req.hdr({SEQ}) -m found }} || {{ req.hdr({REQUEST_ID}) -m found }}"
    lines.append(f"http-request set-header {REQUEST_ID} %[uuid] unless {known}")
    if settings.gateway.access_log:
        lines.append(f"http-request set-var(txn.request) req.hdr({REQUEST_ID})")
    recent = f"pathq,map({files.recent})"
    size = f"req.body_size,div({settings.replay_bytes + 1}),bool,iif({LARGE},{SMALL})"
    return [
        *lines,
        *_naming(settings.only),
        # Requests without a map entry, and unusual ones, go to the fallback.
        f"use_backend %[{recent}]%[{size}] if METH_POST {{ {recent} -m found }}",
        f"use_backend %[pathq,map({files.routes})]%[{size}] if METH_POST",
        f"default_backend {FALLBACK}",
    ]


def _own_site(settings: Settings) -> list[str]:
    """Return the rules of :class:`holdfast.http.serving.OwnSite`."""
    own_site = settings.gateway.own_site(keys=settings.need_keys)
    if not own_site:
        return []
    foreign = "{ req.fhdr(origin) -m found } !{ var(txn.origin),strcmp(txn.host) eq 0 }"
    lines = [
        "http-request set-var(txn.host) req.fhdr(host),lower",
        "http-request set-var(txn.origin) req.fhdr(origin),lower,regsub('^https?://',)",
        f"http-request deny deny_status 403 if {foreign}",
    ]
    if own_site == "local":
        here = f"{{ var(txn.host) -m reg {_LOCAL_HOST} }}"
        lines.append(f"http-request deny deny_status 403 if {{ req.fhdr(host) -m found }} !{here}")
    return lines


_LOCAL_HOST = r"^(([a-z0-9-]+\.)*localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?$"


def _admit(settings: Settings) -> list[str]:
    """Return the rules of :class:`holdfast.gateway.clients.Clients`."""
    per_s = settings.per_s
    lines = [f"acl open path {' '.join(OPEN_PATHS)}"] if settings.need_keys or per_s is not None else []
    if settings.need_keys:
        shown = "{ req.fhdr_cnt(authorization) eq 1 } { req.fhdr(authorization) -m beg -i 'bearer ' }"
        digest = "req.fhdr(authorization),regsub('^[^ ]+ +',),sha2(256),hex,lower"
        lines += [
            f"http-request set-var(txn.client) {digest},map({settings.files.clients}) if {shown}",
            "http-request deny deny_status 401 if !open !{ var(txn.client) -m found }",
            "http-request del-header Authorization",
        ]
    elif per_s is not None:
        lines.append(f"http-request set-var(txn.client) {SOURCE}")
    if per_s is not None:
        rate = f"map_str_int({settings.files.rates},{per_s})"
        over = "{ var(txn.rate) -m int gt 0 } { var(txn.over) -m int ge 0 }"
        lines += [
            f"stick-table type string len 64 size {CLIENTS_MAX} expire 10s store http_req_rate(1s)",
            f"http-request set-var(txn.rate) var(txn.client),{rate}",
            "http-request set-var(txn.over) var(txn.client),table_http_req_rate,sub(txn.rate)",
            f"http-request deny deny_status 429 if !open {over}",
            # Refused requests don't count, so a client that sends too fast is still served at its rate.
            "http-request track-sc0 var(txn.client) if !open",
        ]
    return lines


def _naming(only: str | None) -> list[str]:
    """Return the rules that name the stream as the maps do: copied from the header to the query, and left out
    if it is the ``only`` one."""
    named = f"req.fhdr({STREAM},1)"
    names = f"{{ {named},length gt 0 }}"  # an empty header counts as missing
    into_query = f"http-request set-query stream=%[{named},url_enc] if {_MESSAGE} {names}"
    if only is None:
        return [into_query]
    out_of_query = f"http-request set-pathq %[path] if {_MESSAGE} {{ query -m str stream={only} }}"
    return [f"{into_query} !{{ {named} -m str -- {only} }}", out_of_query]


_MESSAGE = f"{{ path_beg {MESSAGES} }}"
"""The condition for a message: the parameters of other paths stay."""

_ACCESS = (
    '{"event":"request","time":%Ts.%ms,"client":"%ci","name":"%[var(txn.client),json(utf8s)]","method":"%[var(txn.method),json(utf8s)]",'
    '"path":"%[var(txn.path),json(utf8s)]","request_id":"%[var(txn.request),json(utf8s)]","status":%ST,'
    '"bytes":%B,"ms":%Ta,"by":"%s","retries":"%rc"}'
)


def _small(settings: Settings, name: str, address: str | None) -> list[str]:
    """Return the backend for requests that are buffered as a whole, so that they can be sent again."""
    again = ["conn-failure", "empty-response", "junk-response", "0rtt-rejected", "425", "503"]
    if settings.build.retries_421:
        again.append("421")
    return [
        f"backend {name}{SMALL}",
        "option http-buffer-request",
        f"retry-on {' '.join(again)}",
        *_headers(settings),
        *_servers(settings, address),
    ]


def _large(settings: Settings, name: str, address: str | None) -> list[str]:
    """Return the backend for requests that aren't buffered. After a refused one, the fallback takes the next
    request of the key, and learns the owner."""
    files = settings.files
    refused = f"{{ status 421 503 }} {{ res.hdr({OWNER}) -m found }}"
    return [
        f"backend {name}{LARGE}",
        _deny(settings),
        "http-request set-var(txn.key) pathq",
        *_headers(settings),
        f"http-response set-map({files.refused}) %[var(txn.key)] 1 if {refused}",
        f"use-server {FALLBACK} if {{ pathq,map({files.refused}) -m found }}",
        *_servers(settings, address),
    ]


def _headers(settings: Settings) -> list[str]:
    """Return the rules for headers that a client must not set."""
    lines = [
        f"http-response del-header {OWNER_ADDRESS}",  # for gateways only
        # The gateway has checked the site already; the node would check its own.
        f"http-request set-header Host {NODE_HOST}",
        "http-request del-header Origin",
    ]
    if settings.gateway.secret is not None:
        lines.append(f"http-request set-header Authorization %[env({AUTHORIZATION})]")
    if not settings.build.retries_421:
        lines.append(f"http-request set-header {DATA_PLANE} {NO_421}")
    return lines


def _servers(settings: Settings, address: str | None) -> list[str]:
    tls = f" ssl verify required ca-file '{settings.peer_ca}'" if settings.peer_ca else ""
    peer_tls = settings.gateway.peer_tls
    if peer_tls is not None and peer_tls.name:
        tls += f" sni str({peer_tls.name}) verifyhost {peer_tls.name}"
    return [
        f"use-server {NODE} if TRUE",
        f"server {FALLBACK} unix@{settings.files.fallback} weight 1",
        f"server {NODE} {address or '127.0.0.1:1 disabled'} weight 0{tls}",
    ]


def _deny(settings: Settings) -> str:
    return f"http-request deny deny_status 413 if {{ req.body_size gt {settings.gateway.max_body_bytes} }}"


def _fallback(settings: Settings) -> list[str]:
    server = f"server {FALLBACK} unix@{settings.files.fallback}"
    return [f"backend {FALLBACK}", "timeout connect 5s", _deny(settings), server]


def _sources(settings: Settings) -> list[str]:
    """Return the table that counts the connections of each address."""
    size = max(1000, settings.connections_max)
    return ["backend sources", f"stick-table type ipv6 size {size} expire 10s store conn_cur"]


def _metrics(settings: Settings) -> list[str]:
    return [
        "frontend metrics",
        f"bind unix@{settings.files.metrics} mode 600",
        "http-request use-service prometheus-exporter",
    ]
