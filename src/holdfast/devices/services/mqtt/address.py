"""The address of an MQTT broker, from a URL."""

from __future__ import annotations

import difflib
import re
import ssl
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import ConfigError
from holdfast.extend.tools import unsaid_port

FORM = "mqtt://[USER:PASSWORD@]HOST[:PORT] (mqtts: with TLS)"

Version = Literal["5", "3.1.1"]
QoS = Literal[0, 1, 2]
Hears = Literal["all", "own"]

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:,\[\]\s@/]+)(:(?P<port>[0-9]{1,5}))?")
WINDOW_MAX = 32_767
"""Half of MQTT's packet ids, so that one is always free."""
CONNECTIONS_MAX = 64
_NUMBERS = {  # least and most
    "qos": (0, 2),
    "connections": (1, CONNECTIONS_MAX),
    "keepalive_s": (1, 3600),
    "session_s": (0, 7 * 86400),
    "window": (1, WINDOW_MAX),
    "max_payload": (1, 268_435_455),
}
_WORDS: dict[str, tuple[str, ...]] = {"version": get_args(Version), "hears": get_args(Hears)}
_TEXTS = ("status", "ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """A broker, its credentials, and the settings of connections. ``str`` and ``repr`` leave out the
    password.

    Attributes:
        version: the protocol's version. 5 has ids beside payloads and reasons; 3.1.1 has neither.
        qos: the quality of service of commands and answers.
        connections: the number of connections over which the devices of an identity are spread.
        hears: ``all``: receive all devices' answers, by a wildcard, for the only dispatcher; ``own``: receive
            the answers of its own devices, by a subscription each.
        keepalive_s: silence after which the connection is tested; it ends after as much again.
        session_s: how long the broker keeps answers for a disconnected identity; 0: not at all. Brokers of
            3.1.1 have a time of their own.
        window: unconfirmed commands of a connection, at most; a broker may allow fewer.
        max_payload: the largest payload in bytes; a broker of version 5 may allow less.
        status: a retained topic with ``online`` while connected, else ``offline`` (by a will).
        ca, cert, key: files for TLS: trusted certificates (default: the system's), and this side's own.
    """

    host: str
    port: int = 1883
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    version: Version = "5"
    qos: QoS = 1
    connections: int = 1
    hears: Hears = "all"
    keepalive_s: int = 10
    session_s: int = 3600
    window: int = 10_000
    max_payload: int = 131_072
    status: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{user}{host}:{self.port}"


def parse(url: str) -> MqttAddress:
    """Return the address of a URL. Raises ConfigError."""
    scheme, _, rest = url.partition("://")
    if scheme not in _PORTS:
        raise ConfigError(f"{scheme[:30] or 'nothing'!r} is not MQTT; write {FORM}")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//{rest.removeprefix(authority)}")
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise ConfigError(f"{scheme}: a password or a path holds one of @ / ? #: percent-encode it")
    if parts.path.strip("/"):
        raise ConfigError(f"{scheme}: nothing goes between HOST and ?; a / in a password is %2F")
    credentials, _, host = authority.rpartition("@")
    match = _HOST.fullmatch(host)
    if match is None or not 0 < int(match["port"] or 1) < 65536:
        raise ConfigError(f"{scheme}: {unsaid_port(host)[:60]!r} is not HOST or HOST:PORT; write {FORM}")
    username, _, password = credentials.partition(":")
    given = _parameters(scheme, parts.query)
    fields = given | {
        "host": match["host"].strip("[]"),
        "port": int(match["port"] or _PORTS[scheme]),
        "username": unquote(username),
        "password": unquote(password),
        "tls": scheme == "mqtts",
    }
    return msgspec.convert(fields, MqttAddress)


def _parameters(scheme: str, query: str) -> dict[str, str | int]:
    names = (*_NUMBERS, *_WORDS, *_TEXTS)
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in parameters.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, 1) or [", ".join(names)]
            raise ConfigError(f"{scheme}: unknown parameter {name!r}; did you mean {near[0]}?")
        if not value:
            raise ConfigError(f"{scheme}: {name} is empty; give it a value, or leave it out")
        if name in _WORDS and value not in _WORDS[name]:
            raise ConfigError(f"{scheme}: {name} is {value[:60]!r}; write {' or '.join(_WORDS[name])}")
    files = [name for name in ("ca", "cert", "key") if name in parameters]
    if files and scheme == "mqtt":
        raise ConfigError(f"mqtt has no TLS, so {files[0]} has no meaning; write mqtts://…")
    if ("cert" in files) != ("key" in files):
        raise ConfigError(f"{scheme}: cert and key go together; give the paths of both files, or of none")
    status = parameters.get("status", "")
    if set("+#\0") & set(status) or status.startswith("$"):
        raise ConfigError(f"{scheme}: status is {status[:60]!r}; write a topic, such as holdfast/status")
    numbers = {name: _number(scheme, name, parameters[name]) for name in _NUMBERS if name in parameters}
    return {**parameters, **numbers}


def _number(scheme: str, name: str, text: str) -> int:
    least, most = _NUMBERS[name]
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ConfigError(f"{scheme}: {name} is {text[:60]!r}; write a number from {least} to {most}")
    return int(text)


def tls_context(address: MqttAddress) -> ssl.SSLContext | None:
    """Return the TLS context of an address; None without TLS. Raises ConfigError if its files can't be
    used."""
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key)
    except OSError as error:
        raise ConfigError(f"{address}: the files of ca, cert and key can't be used: {error}") from None
    return context
