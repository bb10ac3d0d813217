"""The address of ZooKeeper, from a URL. No host is looked up, and the client library isn't needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from holdfast.common.service_urls import Host, filled, hosts_of, join, parameters_of, split
from holdfast.errors import ConfigError

FORM = "zookeeper://[USER:PASSWORD@]HOST:2181,HOST:2181[/CHROOT][?ca=FILE&cert=FILE&key=FILE]"
SCHEME = "zookeeper"
PORT = 2181

_PARAMETERS = dict.fromkeys(("ca", "cert", "key", "stream"), filled)


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """The servers of an ensemble, the part of its tree that Holdfast uses, and the credentials.

    ``str`` returns the URL without the password; ``repr`` hides it too.

    Attributes:
        hosts: host and port of each server.
        chroot: the path that holds all of Holdfast's nodes: empty, or ``/some/path``.
        username, password: for digest ACLs. Without a user, everything is open to everyone.
        stream: the one stream whose claims have bare ids (``/tasks/cam-1``); the others have ``STREAM/ID``.
        ca, cert, key: files for TLS: the trusted authorities, and this side's certificate. TLS is used if
            any is given.
    """

    hosts: tuple[Host, ...]
    chroot: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    stream: str = ""

    @property
    def tls(self) -> bool:
        """True if connections use TLS."""
        return bool(self.ca or self.cert)

    @property
    def servers(self) -> str:
        """The hosts as ZooKeeper's clients write them: ``host:port,host:port``."""
        return ",".join(join(host, port) for host, port in self.hosts)

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        return f"{SCHEME}://{user}{self.servers}{self.chroot}"


def parse(url: str) -> ZooKeeperAddress:
    """Return the address in a URL. Raises ConfigError that names the fault and what to write."""
    parts = split(url, (SCHEME,), "ZooKeeper", FORM)
    if bool(parts.username) != bool(parts.password):
        raise ConfigError(f"{SCHEME}: user and password go together; write {FORM}")
    return ZooKeeperAddress(
        hosts=hosts_of(SCHEME, parts.hosts, PORT, FORM),
        chroot=_chroot(parts.path),
        username=parts.username,
        password=parts.password,
        **parameters_of(SCHEME, parts.query, _PARAMETERS),
    )


def _chroot(path: str) -> str:
    names = [unquote(name) for name in path.strip("/").split("/")] if path.strip("/") else []
    for name in names:
        if name in ("", ".", "..") or "/" in name or not name.isprintable():
            raise ConfigError(f"{SCHEME}: the path {path!r} isn't a chroot; use a path such as /holdfast")
    return "".join(f"/{name}" for name in names)
