"""Registration: who serves which URL, as the entry points of installed packages say.

A service is registered in the group :data:`SERVICES` under each URL scheme that it serves. Products have
groups of their own, such as ``holdfast.sinks``. An entry point is looked up only when a URL is opened. For
Holdfast's own schemes, no other package is read.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, overload
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigError
from holdfast.urls import has_password, nothing_serves, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from holdfast.common.migrations import SchemaSteps
    from holdfast.ports.backup import Backup
    from holdfast.ports.clock import Clock
    from holdfast.ports.coordinator import Coordinator
    from holdfast.ports.meter import Meter
    from holdfast.ports.objects import Objects
    from holdfast.ports.queue import Queue
    from holdfast.ports.queue_setup import QueueSetup
    from holdfast.ports.registry import Registry
    from holdfast.ports.state import DatabaseHealth, Risk, StateStore
    from holdfast.ports.target import Target
    from holdfast.ports.tasks import TaskStore
    from holdfast.system.files import Access

SERVICES = "holdfast.services"
TARGETS = "holdfast.targets"
BACKUPS = "holdfast.backups"
COMMANDS = "holdfast.commands"
PRODUCTS = "holdfast.products"
OWN = "holdfast"


class LazyCommand(NamedTuple):
    """A command of ``holdfast`` that is imported only when it is called, or asked for its own page of help.

    Attributes:
        place: ``module:object``: a function with typed parameters, or an App of Cyclopts.
        summary: what the page of all commands says of it.
    """

    place: str
    summary: str


class Closing(Protocol):
    """An object that must be closed at the end."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Closing)
T = TypeVar("T")


class NotServed(Exception):
    """A service is asked for a port that it doesn't serve."""


class Shared:
    """The objects that one process has opened. They are shared by name, and closed together."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._closers: list[Callable[[], Any]] = []

    def keep(self, opened: S) -> S:
        """Close this object at the end, and return it."""
        self._closers.append(opened.close)
        return opened

    def get(self, name: Hashable, make: Callable[[], S]) -> S:
        """Return the object of this name; ``make`` makes it at the first call."""
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
    """The settings and helpers that a service gets when one of its ports is opened.

    Attributes:
        setting: the setting that holds the URL, for errors to name.
        url: the URL.
        clock: the only source of time, random numbers and ids.
        meter: counts the calls to the service.
        access: the modes of files that the service makes.
        reads_only: whether the service must make nothing that is missing.
        durability: the setting of this name. The next three are settings too.
        lock_timeout_s, max_message_bytes, max_state_bytes: see :class:`holdfast.config.Config`.
        opened: the objects that the same process has opened before.
        expands: whether a database gets, when it is opened, the migrations that add what this version uses.
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
    expands: bool = True

    def shared(self, name: Hashable, make: Callable[[], S]) -> S:
        """Return an object that the ports of a service share, such as a database. It is made when ``name`` is
        first asked for, and closed after all ports. Begin the name with the name of your package."""
        return self.opened.get(name, make)


class Service:
    """Serves the URLs of some schemes. An adapter's package registers an object of a subclass, which
    overrides the methods of the ports that the service has.

    Methods that open a port raise ConfigError, naming ``opening.setting``, for a URL that is wrong. They
    don't connect; the port connects at its first call. Import client libraries inside these methods, not at
    the top of the module, so that other commands don't wait for the import.

    Attributes:
        example: a URL that it serves, for errors to name.
        one_host: whether only processes of one host can share the service, as with a file.
        waits_for_locks: whether a call may wait for a lock, up to ``lock_timeout_s``.
        cuts_receives: whether a waiting receive ends at once when its node stops.
        briefs_with_outcomes: whether its task stores send briefs to queues at the same URL; they are
            :class:`~holdfast.ports.tasks.BriefingTasks` then.
    """

    example = ""
    one_host = False
    waits_for_locks = False
    cuts_receives = True
    briefs_with_outcomes = False

    def queue(self, opening: Opening, name: str) -> Queue:
        """Open the queue ``name``."""
        raise NotServed

    def queue_name(self, url: str) -> tuple[str, str]:
        """Return what :meth:`queue` gets for a URL that names one queue, as the target of an effect: the
        URL of the service, and the queue's name, which follows a ``#``. Override it if URLs of the service
        name queues in another way. Raises ConfigError if the URL names no queue. It does no I/O."""
        service, _, name = url.partition("#")
        if not name:
            raise ConfigError(
                f"target is {shown(url)!r}: it names no queue; put the queue's name behind it, as in"
                f" {f'{shown(url)}#alerts'!r}"
            )
        return service, unquote(name)

    def coordinator(self, opening: Opening) -> Coordinator:
        """Open the coordinator."""
        raise NotServed

    def state(self, opening: Opening) -> StateStore:
        """Open the state store."""
        raise NotServed

    def tasks(self, opening: Opening, app: str) -> TaskStore:
        """Open the task store of the app of that name."""
        raise NotServed

    def registry(self, opening: Opening) -> Registry:
        """Open the registry."""
        raise NotServed

    def objects(self, opening: Opening) -> Objects:
        """Open the object store."""
        raise NotServed

    def slot_objects(self, url: str, meter: Meter) -> Objects:
        """Open the object store for a handler in a child process. The handler makes one call at a time, and
        the store must make nothing that is missing."""
        raise NotServed

    # --- what is special about a service, which most need not say

    async def filled_queues(self, opening: Opening) -> list[str]:
        """Return the names of all queues that hold messages, of any app. Empty if the service can't list
        them."""
        return []

    async def queue_names(self, opening: Opening) -> list[str]:
        """Return the names of all queues that hold messages or dead letters, of any app, and perhaps of
        others. Empty if the service can't list them."""
        return []

    async def task_apps(self, opening: Opening) -> list[str]:
        """Return the names of the apps that have tasks, as far as the service can list them."""
        return []

    def queue_setup(self, opening: Opening) -> QueueSetup | None:
        """Return what makes and checks queues; None if queues are made at their first use."""
        return None

    async def risks(self, opening: Opening) -> list[Risk]:
        """Return what the settings of the servers put at risk of what is kept there. Raises Unavailable."""
        return []

    async def database_health(self, opening: Opening) -> DatabaseHealth | None:
        """Return what a node's metrics tell of the database; None if the service is none, or doesn't tell.
        Raises Unavailable."""
        return None

    def prices(self, url: str) -> Mapping[tuple[str, str], float]:
        """Return the list price of a million calls in dollars, by service and operation as ``Meter`` counts
        them. An empty operation stands for all others of the service. Empty if calls are free."""
        return {}

    async def schema_steps(self, opening: Opening) -> SchemaSteps | None:
        """Return where the tables of the service stand, and what they haven't had; None if it keeps none.
        Change and make nothing. Raises Unavailable, and UnsupportedStore for tables of no use to this
        version."""
        return None

    async def migrate(self, opening: Opening, *, contract: bool = False) -> list[int] | None:
        """Expand the tables that the service keeps, which else happens when it is first used; with
        ``contract`` also remove what earlier versions use, none of which runs any more. Return the numbers of
        the migrations that were applied; None if it has no tables to keep."""
        return None

    def grants(self, opening: Opening, role: str) -> list[str]:
        """Return the statements of SQL by which a role may do all that nodes do here, and no more."""
        return []

    def grants_to_send(self, opening: Opening, role: str, *, tasks: bool = False) -> list[str]:
        """Return the statements of SQL by which a role may send messages to streams whose queues are here, in
        transactions of its own too, and no more. With ``tasks`` it may also send tasks, and wait for them."""
        return []

    async def iam_statements(self, opening: Opening, streams: Iterable[str]) -> list[dict[str, Any]]:
        """Return what AWS must allow a node of ``streams`` to do here, as statements of an IAM policy."""
        return []

    def only_stream(self, opening: Opening) -> str:
        """Return the name of the one stream that this coordinator is for; empty if it is for all."""
        return ""

    def local_file(self, url: str) -> Path | None:
        """Return the file that the URL names, if it is a local file that other users must not read."""
        return None


@dataclass(frozen=True, slots=True)
class TargetOpening:
    """The settings and helpers that a :class:`TargetService` gets when a target is opened.

    Attributes:
        url: the URL that the handler named.
        clock: the only source of time, random numbers and ids.
        meter: counts the calls to the target.
        secret: the secret that the setting ``target_secrets`` has for this URL; "" for none. Keep it out of
            all texts.
        plain_http: whether the setting ``plain_http_targets`` allows URLs without TLS to other hosts.
        opened: the objects that the same process has opened before.
    """

    url: str
    clock: Clock
    meter: Meter
    secret: str
    plain_http: bool
    opened: Shared

    def shared(self, name: Hashable, make: Callable[[], S]) -> S:
        """As :meth:`Opening.shared`. What is common to all targets of a scheme, such as a client with its
        connections, should be shared in this way, because targets themselves are not closed."""
        return self.opened.get(name, make)


class TargetService:
    """Serves the targets of effects at the URLs of some schemes. A package registers an object of a subclass
    in the group :data:`TARGETS`.

    Attributes:
        example: a URL that it serves, for errors to name.
    """

    example = ""

    def check(self, url: str) -> None:
        """Raise ConfigError for a URL that can't be a target; the text says what to write instead. It is
        called in the handler's process whenever a handler sends to the URL, so it must do no I/O."""

    def target(self, opening: TargetOpening) -> Target:
        """Return the target at a URL. A node calls this when there are effects for the URL, and may call it
        again later. It doesn't connect; the target connects when it takes effects. Raises ConfigError."""
        raise NotImplementedError


class OpenBackup(Protocol):
    """Opens a back-up of dead letters at the URL that ``setting`` holds; ``access`` gives the modes of files.
    Registered in the group :data:`BACKUPS`. Raises ConfigError."""

    def __call__(self, setting: str, url: str, access: Access) -> Backup: ...


def service_of(url: str) -> Service:
    """Return the service for the scheme of a URL. For a scheme that nobody has registered, return a service
    that serves nothing. Raises ConfigError for one that can't be imported."""
    return find(SERVICES, scheme_of(url), Service) or Service()


def check_target(target: str, declared: Collection[str] = ()) -> None:
    """Raise ConfigError for a name that isn't declared, or a URL that no installed package takes effects
    at."""
    if target in declared:
        return
    if "://" not in target:
        raise ConfigError(
            f"target {target!r} is not declared; name one of {sorted(declared)}, or give a URL (a stream"
            " whose messages have a seq can't be a target)"
        )
    service = target_service(target)
    try:
        urlsplit(target)
    except ValueError as error:  # whose text repeats no more than a part of the host
        raise ConfigError(f"target is {shown(target)!r}: it is no URL ({error})") from None
    if has_password(target):
        raise ConfigError(
            f"target is {shown(target)!r}: it holds a password, which would be stored with each effect;"
            " leave it out, and put it into the setting target_secrets"
        )
    if isinstance(service, TargetService):
        service.check(target)
    else:
        service.queue_name(target)


def target_service(url: str) -> TargetService | Service:
    """Return what takes effects at a URL: a target service, or else a service that has queues. Raises
    ConfigError."""
    scheme = scheme_of(url)
    found = find(TARGETS, scheme, TargetService)
    if found is not None:
        return found
    service = find(SERVICES, scheme, Service)
    if service is None or not _has_port(service, "queue"):
        queues = [f"{each}#queue" for each in _examples(SERVICES, lambda each: _has_port(each, "queue"))]
        raise nothing_serves("target", url, [*_examples(TARGETS), *queues])
    return service


def _has_port(service: Any, port: str) -> bool:
    return getattr(type(service), port, None) is not getattr(Service, port)


def unserved(setting: str, url: str, port: str) -> ConfigError:
    """The error for a URL whose service has no such port. It names an example of each service that has the
    port. ``port`` is the name of the method that opens it."""
    return nothing_serves(setting, url, _examples(SERVICES, lambda service: _has_port(service, port)))


def place_of(url: str) -> str:
    """Return the service for the scheme of a URL as ``module:object``, so that another process can import it
    without a look-up. Raises NotServed."""
    point = registered(SERVICES, scheme_of(url))
    if point is None:
        raise NotServed
    return point.value


def backup_opener(setting: str, url: str) -> OpenBackup:
    """Return what opens a back-up at such a URL. Raises ConfigError if nothing does."""
    opener: OpenBackup = lookup(BACKUPS, setting, url)
    return opener


@overload
def lookup(group: str, setting: str, url: str, kind: type[T]) -> T: ...
@overload
def lookup(group: str, setting: str, url: str) -> Any: ...
def lookup(group: str, setting: str, url: str, kind: type[Any] = object) -> Any:
    """Return the object of ``kind`` that is registered in ``group`` under the scheme of a URL. Raises
    ConfigError if there is none. The error names ``setting``, and the ``example`` of each object in the
    group."""
    found = find(group, scheme_of(url), kind)
    if found is None:
        raise nothing_serves(setting, url, _examples(group))
    return found


def schemes(group: str) -> list[str]:
    """Return all URL schemes that are registered in a group."""
    return sorted(all_registered(group))


def find(group: str, name: str, kind: type[T]) -> T | None:
    """Return what is registered under a name in a group; None for nothing. Raises ConfigError for an object
    that can't be imported, or is not of ``kind``."""
    found = _loaded(group, name, tuple(sys.path))
    if found is None or isinstance(found, kind):
        return found
    raise ConfigError(f"{found!r}, registered as {name!r} in {group}, is no {_public_name(kind)}")


def all_of(group: str, kind: type[T]) -> list[T]:
    """Import all objects that are registered in a group. Raises ConfigError as ``find`` does."""
    return [found for name in schemes(group) if (found := find(group, name, kind)) is not None]


def _public_name(kind: type[Any]) -> str:
    module = "holdfast.extend" if kind in (Service, TargetService) else kind.__module__
    return f"{module}.{kind.__name__}"


def _examples(group: str, serves: Callable[[Any], bool] = lambda found: True) -> list[str]:
    """Return an example URL of each object in a group for which ``serves`` is true."""
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
    """Return the entry point ``name`` of a group: Holdfast's own, or else that of another package. Raises
    ConfigError if several other packages have registered the name."""
    from importlib import metadata  # noqa: PLC0415 - takes as long as opening many a service does

    own = metadata.distribution(OWN).entry_points.select(group=group, name=name)
    found = {point.value: point for point in own or metadata.entry_points(group=group, name=name)}
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(sorted(found))} are both registered as {name!r} in {group}: uninstall one of them"
        )
    return next(iter(found.values()), None)


def all_registered(group: str) -> dict[str, str]:
    """Return the entry points of a group by name, as ``module:object``. Holdfast's own hide those of other
    packages."""
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
    """Import what is registered under a name; None for nothing. ``path`` is ``sys.path``, a part of the
    cache's key."""
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
