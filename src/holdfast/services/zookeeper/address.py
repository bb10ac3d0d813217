"""The address of ZooKeeper, from a URL. Pure: nothing is looked up, and the client library isn't needed."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.common.redaction import unsaid_port
from holdfast.errors import ConfigError

FORM = "zookeeper://[USER:PASSWORD@]HOST:2181,HOST:2181[/CHROOT][?ca=FILE&cert=FILE&key=FILE]"
SCHEME = "zookeeper"
PORT = 2181

_PARAMETERS = ("ca", "cert", "key", "stream")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]+)(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """The servers of an ensemble, the part of its tree that Holdfast uses, and the credentials.

    ``str`` returns the URL without the password; ``repr`` hides it too.

    Attributes:
        hosts: (host, port) of each server.
        chroot: the path under which everything is kept: empty, or ``/some/path``.
        username, password: for digest ACLs; without a user everything is open to everyone.
        stream: the one stream whose claims have bare ids, ``/tasks/cam-1``; else they are ``STREAM/ID``.
        ca, cert, key: files for TLS, which is spoken if any is given: who is trusted, what this side shows.
    """

    hosts: tuple[tuple[str, int], ...]
    chroot: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    stream: str = ""

    @property
    def tls(self) -> bool:
        """True if the servers are spoken to under TLS."""
        return bool(self.ca or self.cert)

    @property
    def servers(self) -> str:
        """The hosts as ZooKeeper's clients write them: ``host:port,host:port``."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        return f"{SCHEME}://{user}{self.servers}{self.chroot}"


def parse(url: str) -> ZooKeeperAddress:
    """The address in a URL. Raises ConfigError that names what is wrong and what to write."""
    scheme, _, rest = url.partition("://")
    if scheme != SCHEME:
        raise ConfigError(f"{scheme[:30] or 'nothing'!r} is no ZooKeeper; write {FORM}")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//{rest.removeprefix(authority)}")  # it wants one host, where there may be many
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise ConfigError(f"{SCHEME}: a password or a path holds one of @ / ? #: percent-encode it")
    credentials, _, hosts = authority.rpartition("@")
    username, _, password = credentials.partition(":")
    if credentials and not (username and password):
        raise ConfigError(f"{SCHEME}: user and password go together; write {FORM}")
    parameters = _parameters(parts.query)
    return ZooKeeperAddress(
        hosts=tuple(_host(part) for part in hosts.split(",")),
        chroot=_chroot(parts.path),
        username=unquote(username),
        password=unquote(password),
        **parameters,
    )


def _host(text: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None:
        raise ConfigError(f"{SCHEME}: {unsaid_port(text)!r} is no HOST:PORT; write {FORM}")
    port = int(match["port"] or PORT)
    if not 0 < port < 65536:
        raise ConfigError(f"{SCHEME}: {port} is no port; write one of 1 to 65535")
    return match["host"].strip("[]"), port


def _chroot(path: str) -> str:
    names = [unquote(name) for name in path.strip("/").split("/")] if path.strip("/") else []
    for name in names:
        if name in ("", ".", "..") or "/" in name or not name.isprintable():
            raise ConfigError(f"{SCHEME}: the path {path!r} is no chroot; write one such as /holdfast")
    return "".join(f"/{name}" for name in names)


def _parameters(query: str) -> dict[str, str]:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in parameters.items():
        if name not in _PARAMETERS:
            near = difflib.get_close_matches(name, _PARAMETERS, 1) or [", ".join(_PARAMETERS)]
            raise ConfigError(f"{SCHEME}: unknown parameter {name!r}; did you mean {near[0]}?")
        if not value:
            what = "stream" if name == "stream" else "file"
            raise ConfigError(f"{SCHEME}: {name} names no {what}; give it a value, or leave it out")
    if ("cert" in parameters) != ("key" in parameters):
        raise ConfigError(f"{SCHEME}: cert and key go together; give the paths of both files, or of none")
    return parameters
