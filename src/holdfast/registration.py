"""Registration: who serves which URL, as installed packages say in their entry points.

A service is registered in the group :data:`SERVICES` under each URL scheme that it serves; products have
groups of their own, such as ``holdfast.sinks``. Nothing is looked up before a URL is opened, and Holdfast's
own schemes are looked up without reading other packages.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from holdfast.errors import ConfigError
from holdfast.urls import nothing_serves

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from holdfast.ports.backup import Backup
    from holdfast.ports.clock import Clock
    from holdfast.ports.coordinator import Coordinator
    from holdfast.ports.meter import Meter
    from holdfast.ports.objects import Objects
    from holdfast.ports.queue import Queue
    from holdfast.ports.queue_setup import QueueSetup
    from holdfast.ports.registry import Registry
    from holdfast.ports.state import Risk, StateStore
    from holdfast.ports.tasks import TaskStore
    from holdfast.system.files import Access

SERVICES = "holdfast.services"
BACKUPS = "holdfast.backups"
COMMANDS = "holdfast.commands"
PRODUCTS = "holdfast.products"
OWN = "holdfast"


class Closing(Protocol):
    """What is closed at the end."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Closing)
T = TypeVar("T")


class NotServed(Exception):
    """A service is asked for a port that it doesn't serve."""


class Shared:
    """What was opened so far: shared by name, and closed together."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._closers: list[Callable[[], Any]] = []

    def keep(self, opened: S) -> S:
        """Have it closed at the end."""
        self._closers.append(opened.close)
        return opened

    def get(self, name: Hashable, make: Callable[[], S]) -> S:
        """What ``make`` made when this name was first asked for."""
        if name not in self._made:
            self._made[name] = self.keep(make())
        found: S = self._made[name]
        return found

    async def close(self) -> None:
        """Close everything that was opened, last first."""
        while self._closers:
            await self._closers.pop()()


@dataclass(frozen=True, slots=True)
class Opening:
    """What a service is told when one of its ports is opened.

    Attributes:
        setting: the setting that holds the URL, for errors to name.
        url: the URL.
        clock: the only source of time, chance and ids.
        meter: counts the calls to the service.
        access: the modes of files that are made.
        reads_only: nothing is made that is missing.
        durability: the setting of that name; so are the next three.
        lock_timeout_s, max_message_bytes, max_state_bytes: see there.
        opened: what the same process has opened before.
    """

    setting: str
    url: str
    clock: Clock
    meter: Meter
    access: Access
    reads_only: bool
    durability: Literal["full", "normal"]
    lock_timeout_s: float
    max_message_bytes: int
    max_state_bytes: int
    opened: Shared

    def shared(self, name: Hashable, make: Callable[[], S]) -> S:
        """What the ports of a service share, such as a database: made when ``name`` is first asked for, and
        closed after all of them. Begin the name with your package's."""
        return self.opened.get(name, make)


class Service:
    """Serves the URLs of some schemes. An adapter's package registers an object of a subclass, which
    overrides what the service offers.

    Methods that open a port raise ConfigError, naming ``opening.setting``, for a URL that can't be. They
    connect to nothing: the port itself does so at its first call. Import client libraries in them, not at
    the top of the module, so that other commands don't wait for them.

    Attributes:
        example: a URL that it serves, for errors to name.
        one_host: whether only processes of one host share the service, as they share a file.
        waits_for_locks: whether a call may wait for as long as ``lock_timeout_s``.
        cuts_receives: whether a receive that waits ends when its node stops.
    """

    example = ""
    one_host = False
    waits_for_locks = False
    cuts_receives = True

    def queue(self, opening: Opening, name: str) -> Queue:
        """The queue ``name``."""
        raise NotServed

    def coordinator(self, opening: Opening) -> Coordinator:
        """The coordinator."""
        raise NotServed

    def state(self, opening: Opening) -> StateStore:
        """The state store."""
        raise NotServed

    def tasks(self, opening: Opening, app: str) -> TaskStore:
        """The task store of the app of that name."""
        raise NotServed

    def registry(self, opening: Opening) -> Registry:
        """The registry."""
        raise NotServed

    def objects(self, opening: Opening) -> Objects:
        """The object store."""
        raise NotServed

    def slot_objects(self, url: str, meter: Meter) -> Objects:
        """The object store for a handler in a child process: one call is made at a time, nothing else waits
        meanwhile, and nothing is made that is missing."""
        raise NotServed

    # --- what is special about a service, which most need not say

    async def filled_queues(self, opening: Opening) -> list[str]:
        """The names of all queues that hold messages, whoever declares them; none if it doesn't tell."""
        return []

    def queue_setup(self, opening: Opening) -> QueueSetup | None:
        """What makes and checks queues; None where they are made by their first use."""
        return None

    async def state_risks(self, opening: Opening) -> list[Risk]:
        """What the settings of the state store's servers put at risk. Raises Unavailable."""
        return []

    async def iam_statements(self, opening: Opening, streams: Iterable[str]) -> list[dict[str, Any]]:
        """What AWS must allow a node of ``streams`` here, as statements of an IAM policy."""
        return []

    def only_stream(self, opening: Opening) -> str:
        """The one stream that a coordinator's URL keeps claims of, where it is for one alone."""
        return ""

    def local_file(self, url: str) -> Path | None:
        """The file that the URL names, where it is a file of this machine that others must not read."""
        return None


class OpenBackup(Protocol):
    """Opens where dead letters are kept, at the URL that a setting holds; files are made with ``access``.
    Registered in the group :data:`BACKUPS`. Raises ConfigError."""

    def __call__(self, setting: str, url: str, access: Access) -> Backup: ...


def service_of(url: str) -> Service:
    """What serves the scheme of a URL; a service of nothing, where nobody has registered it. Raises
    ConfigError for one that can't be imported."""
    return find(SERVICES, scheme_of(url), Service) or Service()


def unserved(setting: str, url: str, port: str) -> ConfigError:
    """Says that a URL opens no such port, and names one of each service that has it. ``port`` is the method
    of a service that opens it."""

    def serves(service: Any) -> bool:
        return getattr(type(service), port, None) is not getattr(Service, port)

    return nothing_serves(setting, url, _examples(SERVICES, serves))


def place_of(url: str) -> str:
    """Where the service is that serves the scheme of a URL, as ``module:object``, for another process to
    import it without a look-up. Raises NotServed."""
    point = registered(SERVICES, scheme_of(url))
    if point is None:
        raise NotServed
    return point.value


def backup_opener(setting: str, url: str) -> OpenBackup:
    """What opens a back-up at such a URL. Raises ConfigError where nothing does."""
    opener: OpenBackup = lookup(BACKUPS, setting, url)
    return opener


@overload
def lookup(group: str, setting: str, url: str, kind: type[T]) -> T: ...
@overload
def lookup(group: str, setting: str, url: str) -> Any: ...
def lookup(group: str, setting: str, url: str, kind: type[Any] = object) -> Any:
    """What serves a URL: what is registered in ``group`` under its scheme, an object of ``kind``. Raises
    ConfigError, naming ``setting`` and the ``example`` of each that is registered, where nothing does."""
    found = find(group, scheme_of(url), kind)
    if found is None:
        raise nothing_serves(setting, url, _examples(group))
    return found


def schemes(group: str) -> list[str]:
    """All URL schemes that are registered in a group."""
    return sorted(all_registered(group))


def find(group: str, name: str, kind: type[T]) -> T | None:
    """What is registered under a name in a group, if anything is. Raises ConfigError for what can't be
    imported, or is not of ``kind``."""
    found = _loaded(group, name, tuple(sys.path))
    if found is None or isinstance(found, kind):
        return found
    raise ConfigError(f"{found!r}, registered as {name!r} in {group}, is no {_public_name(kind)}")


def all_of(group: str, kind: type[T]) -> list[T]:
    """All that is registered in a group, imported. Raises ConfigError as ``find`` does."""
    return [found for name in schemes(group) if (found := find(group, name, kind)) is not None]


def _public_name(kind: type[Any]) -> str:
    module = "holdfast.extend" if kind is Service else kind.__module__
    return f"{module}.{kind.__name__}"


def _examples(group: str, serves: Callable[[Any], bool] = lambda found: True) -> list[str]:
    """A URL for each of what is registered in a group and serves what is wanted."""
    examples: set[str] = set()
    for scheme in schemes(group):
        with contextlib.suppress(ConfigError):  # of a package that is broken nothing need be said here
            found = find(group, scheme, object)
            if serves(found):
                examples.add(getattr(found, "example", "") or f"{scheme}:…")
    return sorted(examples)


def scheme_of(url: str) -> str:
    """``redis`` of ``redis://host``."""
    return url.partition(":")[0]


def registered(group: str, name: str) -> EntryPoint | None:
    """The entry point ``name`` of a group: ours, or else that of another package. Raises ConfigError where
    several others have registered the name."""
    from importlib import metadata  # noqa: PLC0415 - takes as long as opening many a service does

    own = metadata.distribution(OWN).entry_points.select(group=group, name=name)
    found = {point.value: point for point in own or metadata.entry_points(group=group, name=name)}
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(sorted(found))} are both registered as {name!r} in {group}: uninstall one of them"
        )
    return next(iter(found.values()), None)


def all_registered(group: str) -> dict[str, str]:
    """The entry points of a group, ``module:object`` by name: ours before those of other packages."""
    return _all_registered(group, tuple(sys.path))


@functools.cache
def _all_registered(group: str, path: tuple[str, ...]) -> dict[str, str]:
    from importlib import metadata  # noqa: PLC0415 - as above

    own = metadata.distribution(OWN).entry_points.select(group=group)
    return {
        point.name: point.value for points in (metadata.entry_points(group=group), own) for point in points
    }


@functools.cache
def _loaded(group: str, name: str, path: tuple[str, ...]) -> Any:
    """What is registered; None for nothing. ``path`` is where packages are found now: in another place there
    may be others."""
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
