"""URLs in settings: what opens a URL, and the errors for a URL that nothing opens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError

T = TypeVar("T")


def by_scheme(
    setting: str, url: str, openers: Mapping[str, Callable[[str], T]], examples: Sequence[str]
) -> T:
    """Open a URL with the opener of its scheme. Raises ConfigError if there is none."""
    opener = openers.get(url.partition(":")[0])
    if opener is None:
        raise nothing_serves(setting, url, examples)
    return opener(url)


def nothing_serves(setting: str, url: str, examples: Sequence[str]) -> ConfigError:
    """The error for a URL that nothing serves."""
    known = " or ".join(repr(example) for example in examples)
    return ConfigError(f"{setting} is {redact_url(url)!r}: nothing serves that; use a URL such as {known}")


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
        raise ConfigError(f"{setting} is {redact_url(url)!r}: {error}") from None


def path_in(setting: str, url: str, example: str) -> Path:
    """The path in a URL: ``file:relative``, ``sqlite:///relative``, ``sqlite:////absolute``."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "sqlite":
        path = path.removeprefix("/")
    if parts.netloc or parts.query or parts.fragment or not path:
        raise ConfigError(
            f"{setting} is {redact_url(url)!r}: it names no path; use a URL such as {example!r}"
        )
    return Path(path)
