"""The address of Redis, from a URL. Pure: nothing is looked up, and the client library isn't needed."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.common.redaction import unsaid_port
from holdfast.errors import ConfigError

Kind = Literal["single", "sentinel", "cluster"]

FORMS = (
    "redis://HOST:6379/0, redis+sentinel://HOST,HOST/SERVICE or redis+cluster://HOST,HOST (rediss: with TLS)"
)

_KINDS: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_SCHEMES = {(kind, tls): scheme for scheme, (kind, tls) in _KINDS.items()}
_PORTS: dict[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_SHARDS: dict[Kind, int] = {"single": 1, "sentinel": 1, "cluster": 16}
_SHARDS_MAX = 1024
_REPLICAS_MAX = 16
_PARAMETERS = ("namespace", "shards", "wait_replicas", "ca", "cert", "key")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(:(?P<port>[0-9]{1,5}))?")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The address of a single server, of the Sentinels of one, or of some nodes of a Cluster, with the
    credentials.

    ``str`` returns the URL without the password; ``repr`` hides it too.

    Attributes:
        hosts: (host, port) of the server, the Sentinels, or nodes of the Cluster.
        service: the name by which the Sentinels know the master.
        ca, cert, key: files for TLS: who is trusted, and what this side shows ("": the system's, nothing).
        namespace: begins every key, so that several may share a server.
        shards: parts that the state store's keys are spread over in a Cluster.
        wait_replicas: how many replicas must have a commit before it counts as done.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    namespace: str = "holdfast"
    shards: int = 1
    wait_replicas: int = 0

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        hosts = ",".join(join(host, port) for host, port in self.hosts)
        path = "/".join(part for part in (self.service, str(self.db or "")) if part)
        return f"{_SCHEMES[self.kind, self.tls]}://{user}{hosts}" + (f"/{path}" if path else "")


def join(host: str, port: int) -> str:
    """``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(url: str) -> RedisAddress:
    """The address in a URL. Raises ConfigError that names what is wrong and what to write."""
    scheme, _, rest = url.partition("://")
    if scheme not in _KINDS:
        raise ConfigError(f"{scheme[:30] or 'nothing'!r} is no kind of Redis; write {FORMS}")
    kind, tls = _KINDS[scheme]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//{rest.removeprefix(authority)}")  # it wants one host, where there may be many
    credentials, _, hosts = authority.rpartition("@")
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(
            f"{scheme}: the password holds a character that a URL can't (/ ? #): percent-encode it"
        )
    if parts.fragment:
        raise ConfigError(
            f"{scheme}: a Redis URL has no part after #; percent-encode it if it belongs to a name"
        )
    service, db = _path(scheme, kind, parts.path.strip("/"))
    username, _, password = credentials.partition(":")
    parameters = _parameters(scheme, parts.query)
    _check_tls(scheme, tls, parameters)
    return RedisAddress(
        kind=kind,
        hosts=_hosts(scheme, kind, hosts),
        service=service,
        db=db,
        username=unquote(username),
        password=unquote(password),
        tls=tls,
        ca=parameters.get("ca", ""),
        cert=parameters.get("cert", ""),
        key=parameters.get("key", ""),
        namespace=_namespace(scheme, parameters.get("namespace", "holdfast")),
        shards=_number(scheme, parameters, "shards", _SHARDS[kind], 1, _SHARDS_MAX),
        wait_replicas=_number(scheme, parameters, "wait_replicas", 0, 0, _REPLICAS_MAX),
    )


def _hosts(scheme: str, kind: Kind, text: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None:
            raise ConfigError(f"{scheme}: {unsaid_port(part)!r} is no HOST:PORT; write {FORMS}")
        port = int(match["port"] or _PORTS[kind])
        if not 0 < port < 65536:
            raise ConfigError(f"{scheme}: {port} is no port; write one of 1 to 65535")
        hosts.append((match["host"].strip("[]"), port))
    if kind == "single" and len(hosts) > 1:
        raise ConfigError(
            f"{scheme} takes one host; for several write redis+sentinel://…/SERVICE or redis+cluster://…"
        )
    return tuple(hosts)


def _path(scheme: str, kind: Kind, path: str) -> tuple[str, int]:
    """The Sentinels' service and the number of the database."""
    service = ""
    if kind == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise ConfigError(
                f"{scheme} needs the name of the master that the Sentinels watch: {scheme}://HOST,HOST/SERVICE"
            )
    if path and kind == "cluster":
        raise ConfigError(f"{scheme}: a Cluster has only database 0; write nothing after the hosts")
    if path and not (path.isascii() and path.isdigit()):
        raise ConfigError(f"{scheme}: {path!r} is no number of a database; write one such as 0, or nothing")
    return unquote(service), int(path or 0)


def _parameters(scheme: str, query: str) -> dict[str, str]:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for name in parameters:
        if name not in _PARAMETERS:
            near = difflib.get_close_matches(name, _PARAMETERS, 1) or [", ".join(_PARAMETERS)]
            raise ConfigError(f"{scheme}: unknown parameter {name!r}; did you mean {near[0]}?")
    return parameters


def _check_tls(scheme: str, tls: bool, parameters: dict[str, str]) -> None:
    given = [name for name in ("ca", "cert", "key") if parameters.get(name)]
    if given and not tls:
        raise ConfigError(
            f"{scheme} speaks no TLS, so {given[0]} has no meaning; write rediss{scheme[5:]}://…"
        )
    if ("cert" in given) != ("key" in given):
        raise ConfigError(f"{scheme}: cert and key go together; give the paths of both files, or of none")


def _namespace(scheme: str, text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ConfigError(
            f"{scheme}: namespace {text!r} should have 1 to 64 letters, digits or any of _ . : -"
        )
    return text


def _number(scheme: str, parameters: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = parameters.get(name, str(default))
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ConfigError(f"{scheme}: {name} is {text!r}; write a number from {least} to {most}")
    return int(text)
