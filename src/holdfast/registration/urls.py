"""URLs in settings, and the errors for a URL that nothing serves or that is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from holdfast.errors import ConfigError


def nothing_serves(setting: str, url: str, examples: Sequence[str]) -> ConfigError:
    """Return the error for a URL that nothing serves."""
    known = " or ".join(repr(example) for example in examples)
    return ConfigError(f"{setting} is {shown(url)!r}: nothing serves that; use a URL such as {known}")


@contextlib.contextmanager
def extra(name: str, setting: str) -> Iterator[None]:
    """Raise a ConfigError that names the extra to install, if a service's library is missing inside."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting} needs the library {error.name!r}: pip install 'holdfast-streams[{name}]'"
        ) from None


@contextlib.contextmanager
def named(setting: str, url: str) -> Iterator[None]:
    """Name the setting in a ConfigError about its URL that is raised inside."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{setting} is {shown(url)!r}: {error}") from None


def path_in(setting: str, url: str, example: str) -> Path:
    """Return the path in a URL: ``file:relative``, ``sqlite:///relative``, ``sqlite:////absolute``."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "sqlite":
        path = path.removeprefix("/")
    if parts.netloc or parts.query or parts.fragment or not path:
        raise ConfigError(f"{setting} is {shown(url)!r}: it names no path; use a URL such as {example!r}")
    return Path(path)


def shown(url: str) -> str:
    """Return a URL without secrets."""
    from holdfast.common.redaction import redact_url  # noqa: PLC0415 - takes a while, and most URLs are right

    return redact_url(url)


def find_secret(url: str, secrets: Mapping[str, str]) -> str:
    """Return the secret whose URL is the longest beginning of ``url``; "" for none. Hosts must be equal, and
    a path ends at a slash, so that a secret never goes to a host or a path that only begins alike."""
    parts = urlsplit(url)
    found = [prefix for prefix in secrets if _begins(parts.scheme, parts.netloc, parts.path, prefix)]
    return secrets[max(found, key=len)] if found else ""


def _begins(scheme: str, netloc: str, path: str, prefix: str) -> bool:
    parts = urlsplit(prefix)
    folder = parts.path.rstrip("/")
    same_host = (scheme, netloc.lower()) == (parts.scheme, parts.netloc.lower())
    return same_host and (path == folder or path.startswith(f"{folder}/"))


def has_password(url: str) -> bool:
    """Return whether a URL holds a password."""
    return ":" in url.partition("://")[2].partition("/")[0].rpartition("@")[0]


def with_password(url: str, password: str) -> str:
    """Return ``url`` with a password, if that isn't empty."""
    scheme, mark, rest = url.partition("://")
    user, _, place = rest.rpartition("@") if "@" in rest.partition("/")[0] else ("", "", rest)
    return f"{scheme}{mark}{user}:{quote(password, safe='')}@{place}" if password else url
