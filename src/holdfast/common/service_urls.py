"""Parts of the URLs of services: credentials, hosts, and parameters, for which a service declares readers.

Every error names the scheme, what is wrong and what to write, and none shows a password."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.common.redaction import unsaid_port
from holdfast.errors import ConfigError

Host: TypeAlias = tuple[str, int]

Reader: TypeAlias = Callable[[str], Any]
"""Returns the value of a parameter, or raises ValueError with a text that follows the parameter's name."""

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]+)(:(?P<port>[0-9]{1,5}))?")


class ServiceUrl(NamedTuple):
    """A URL of several hosts, split. ``hosts``, ``path`` and ``query`` are as they stand there."""

    scheme: str
    username: str
    password: str
    hosts: str
    path: str
    query: str


def split(url: str, schemes: Container[str], service: str, form: str) -> ServiceUrl:
    """Split a URL. Raises ConfigError unless it has one of the ``schemes`` of ``service``; then its text says
    to write ``form``."""
    scheme, _, rest = url.partition("://")
    if scheme not in schemes:
        raise ConfigError(f"{scheme[:30] or 'nothing'!r} isn't a scheme of {service}; write {form}")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//{rest.removeprefix(authority)}")  # urlsplit expects one host
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise ConfigError(f"{scheme}: a password or a name holds one of @ / ? #: percent-encode it")
    credentials, _, hosts = authority.rpartition("@")
    username, _, password = credentials.partition(":")
    return ServiceUrl(scheme, unquote(username), unquote(password), hosts, parts.path, parts.query)


def hosts_of(scheme: str, text: str, port: int, form: str) -> tuple[Host, ...]:
    """Return the hosts in ``HOST:PORT,HOST``; ``port`` is the default. Raises ConfigError."""
    hosts = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None:
            raise ConfigError(f"{scheme}: {unsaid_port(part)!r} isn't a HOST:PORT; write {form}")
        number = int(match["port"] or port)
        if not 0 < number < 65536:
            raise ConfigError(f"{scheme}: {number} isn't a port; use a number from 1 to 65535")
        hosts.append((match["host"].strip("[]"), number))
    return tuple(hosts)


def join(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parameters_of(scheme: str, query: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the values of a query's parameters. Raises ConfigError, also for one of ``cert`` and ``key``
    without the other."""
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in readers:
            near = difflib.get_close_matches(name, readers, 1) or [", ".join(readers)]
            raise ConfigError(f"{scheme}: unknown parameter {name!r}; did you mean {near[0]}?")
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise ConfigError(f"{scheme}: {name} {error}") from None
    if bool(values.get("cert")) != bool(values.get("key")):
        raise ConfigError(f"{scheme}: cert and key go together; give the paths of both files, or of none")
    return values


def number(least: int, most: int) -> Reader:
    """Return the reader of a whole number within limits."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(f"is {text!r}; write a number from {least} to {most}")
        return int(text)

    return read


def matching(pattern: re.Pattern[str], rule: str) -> Reader:
    """Return the reader of a text that matches ``pattern``, which ``rule`` states in words."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} should have {rule}")
        return text

    return read


def filled(text: str) -> str:
    """Read a text that may not be empty."""
    if not text:
        raise ValueError("is empty; give it a value, or leave it out")
    return text
