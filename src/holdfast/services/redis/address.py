"""The address of Redis, from a URL. No host is looked up, and the client library isn't needed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from holdfast.common.service_urls import Host, Reader, hosts_of, join, matching, number, parameters_of, split
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
_PARAMETERS: dict[str, Reader] = {
    "namespace": matching(re.compile(r"[A-Za-z0-9_.:-]{1,64}"), "1 to 64 letters, digits or any of _ . : -"),
    "shards": number(1, 1024),
    "wait_replicas": number(0, 16),
    "ca": str,
    "cert": str,
    "key": str,
}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The address of a single server, of the Sentinels of one, or of some nodes of a Cluster, with the
    credentials.

    ``str`` returns the URL without the password; ``repr`` hides it too.

    Attributes:
        hosts: host and port of the server, the Sentinels, or nodes of the Cluster.
        service: the name by which the Sentinels know the master.
        ca, cert, key: files for TLS: the trusted authorities ("": the system's), and this side's certificate.
        namespace: the prefix of every key, so that several applications may share a server.
        shards: the number of parts into which the state store's keys are split in a Cluster.
        wait_replicas: the number of replicas that must have a commit before it counts as done.
    """

    kind: Kind
    hosts: tuple[Host, ...]
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


def parse(url: str) -> RedisAddress:
    """Return the address in a URL. Raises ConfigError that names the fault and what to write."""
    parts = split(url, _KINDS, "Redis", FORMS)
    scheme = parts.scheme
    kind, tls = _KINDS[scheme]
    service, db = _path(scheme, kind, parts.path.strip("/"))
    parameters = parameters_of(scheme, parts.query, _PARAMETERS)
    files = [name for name in ("ca", "cert", "key") if parameters.get(name)]
    if files and not tls:
        raise ConfigError(
            f"{scheme} speaks no TLS, so {files[0]} has no meaning; write rediss{scheme[5:]}://…"
        )
    hosts = hosts_of(scheme, parts.hosts, _PORTS[kind], FORMS)
    if kind == "single" and len(hosts) > 1:
        raise ConfigError(
            f"{scheme} takes one host; for several write redis+sentinel://…/SERVICE or redis+cluster://…"
        )
    return RedisAddress(
        kind=kind,
        hosts=hosts,
        service=service,
        db=db,
        username=parts.username,
        password=parts.password,
        tls=tls,
        **{"shards": _SHARDS[kind], **parameters},
    )


def _path(scheme: str, kind: Kind, path: str) -> tuple[str, int]:
    """Return the Sentinels' service and the number of the database."""
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
        raise ConfigError(f"{scheme}: {path!r} isn't a number of a database; write one such as 0, or nothing")
    return unquote(service), int(path or 0)
