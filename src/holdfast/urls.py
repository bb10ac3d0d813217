"""URLs in settings, and the errors for a URL that nothing serves or that is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigError


def nothing_serves(setting: str, url: str, examples: Sequence[str]) -> ConfigError:
    """The error for a URL that nothing serves."""
    known = " or ".join(repr(example) for example in examples)
    return ConfigError(f"{setting} is {_shown(url)!r}: nothing serves that; use a URL such as {known}")


@contextlib.contextmanager
def extra(name: str, setting: str) -> Iterator[None]:
    """Raise a ConfigError that names the extra to install, if a service's library is missing inside."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting} needs the library {error.name!r}: install it with pip install 'holdfast[{name}]'"
        ) from None


@contextlib.contextmanager
def named(setting: str, url: str) -> Iterator[None]:
    """Name the setting in a ConfigError about its URL that is raised inside."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{setting} is {_shown(url)!r}: {error}") from None


def path_in(setting: str, url: str, example: str) -> Path:
    """The path in a URL: ``file:relative``, ``sqlite:///relative``, ``sqlite:////absolute``."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "sqlite":
        path = path.removeprefix("/")
    if parts.netloc or parts.query or parts.fragment or not path:
        raise ConfigError(f"{setting} is {_shown(url)!r}: it names no path; use a URL such as {example!r}")
    return Path(path)


def _shown(url: str) -> str:
    from holdfast.common.redaction import redact_url  # noqa: PLC0415 - takes a while, and most URLs are right

    return redact_url(url)
