"""The look-up of objects that installed packages have registered, by their entry points."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from holdfast.errors import ConfigError
from holdfast.registration.urls import nothing_serves

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

SERVICES = "holdfast.services"
TARGETS = "holdfast.targets"
BACKUPS = "holdfast.backups"
COMMANDS = "holdfast.commands"
PRODUCTS = "holdfast.products"
DISTRIBUTION = "holdfast-streams"
"""The name that pip installs. ``holdfast`` is the package in it; on PyPI that name is another project's."""


class LazyCommand(NamedTuple):
    """A command of ``holdfast`` that is imported only when it is called, or for its own page of help.

    Attributes:
        place: ``module:object``: a function with typed parameters, or an App of Cyclopts.
        summary: its line in the list of commands.
    """

    place: str
    summary: str


T = TypeVar("T")


@overload
def lookup(group: str, setting: str, url: str, kind: type[T]) -> T: ...
@overload
def lookup(group: str, setting: str, url: str) -> Any: ...
def lookup(group: str, setting: str, url: str, kind: type[Any] = object) -> Any:
    """Return the object of ``kind`` that is registered in ``group`` under the scheme of a URL. Raises
    ConfigError without one. The error names ``setting``, and the ``example`` of each object in the group."""
    found = find(group, scheme_of(url), kind)
    if found is None:
        raise nothing_serves(setting, url, examples(group))
    return found


def schemes(group: str) -> list[str]:
    """Return all URL schemes that are registered in a group."""
    return sorted(all_registered(group))


def find(group: str, name: str, kind: type[T]) -> T | None:
    """Return the object that is registered under a name in a group; None without one. Raises ConfigError for
    an object that can't be imported, or is not of ``kind``."""
    found = _loaded(group, name, tuple(sys.path))
    if found is None or isinstance(found, kind):
        return found
    raise ConfigError(f"{found!r}, registered as {name!r} in {group}, isn't a {_public_name(kind)}")


def all_of(group: str, kind: type[T]) -> list[T]:
    """Import all objects that are registered in a group. Raises ConfigError as ``find`` does."""
    return [found for name in schemes(group) if (found := find(group, name, kind)) is not None]


def _public_name(kind: type[Any]) -> str:
    public = {"holdfast.registration": "holdfast.extend", "holdfast.assembly": "holdfast.extend.products"}
    package, _, _ = kind.__module__.rpartition(".")
    return f"{public.get(package, kind.__module__)}.{kind.__name__}"


def examples(group: str, serves: Callable[[Any], bool] = lambda found: True) -> list[str]:
    """Return an example URL of each object in a group for which ``serves`` is true."""
    examples: set[str] = set()
    for scheme in schemes(group):
        with contextlib.suppress(ConfigError):  # a broken package is reported elsewhere
            found = find(group, scheme, object)
            if serves(found):
                examples.add(getattr(found, "example", "") or f"{scheme}:…")
    return sorted(examples)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL: ``redis`` of ``redis://host``."""
    return url.partition(":")[0]


def registered(group: str, name: str) -> EntryPoint | None:
    """Return the entry point ``name`` of a group: Holdfast's own, or else another package's. Raises
    ConfigError if several other packages have registered the name."""
    from importlib import metadata  # noqa: PLC0415 - takes long

    own = _own_entry_points().select(group=group, name=name)
    found = {point.value: point for point in own or metadata.entry_points(group=group, name=name)}
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(sorted(found))} are both registered as {name!r} in {group}: uninstall one of them"
        )
    return next(iter(found.values()), None)


def all_registered(group: str) -> dict[str, str]:
    """Return the entry points of a group by name, as ``module:object``. Holdfast's own come first."""
    return _all_registered(group, tuple(sys.path))


@functools.cache
def _all_registered(group: str, path: tuple[str, ...]) -> dict[str, str]:
    from importlib import metadata  # noqa: PLC0415 - as above

    own = _own_entry_points().select(group=group)
    return {
        point.name: point.value for points in (metadata.entry_points(group=group), own) for point in points
    }


def _own_entry_points() -> EntryPoints:
    """Return Holdfast's own entry points; none if its code runs without having been installed."""
    from importlib import metadata  # noqa: PLC0415 - as above

    try:
        return metadata.distribution(DISTRIBUTION).entry_points
    except metadata.PackageNotFoundError:
        return metadata.EntryPoints()


@functools.cache
def _loaded(group: str, name: str, path: tuple[str, ...]) -> Any:
    """Import the object that is registered under a name; None without one. ``path`` is ``sys.path``, a part
    of the cache's key."""
    point = registered(group, name)
    if point is None:
        return None
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{point.value!r}, registered as {name!r} in {group}, can't be imported: {error}; correct the"
            " package, or uninstall it"
        ) from error
