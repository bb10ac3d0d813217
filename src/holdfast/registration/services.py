"""The registration of services: which package serves which URL, by entry points.

A service is registered in the group :data:`SERVICES` under each URL scheme that it serves. Products have
groups of their own, such as ``holdfast.sinks``. An entry point is looked up only when a URL is opened. For
Holdfast's own schemes, no other package is read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import unquote

from holdfast.errors import ConfigError
from holdfast.registration.entry_points import (
    BACKUPS,
    SERVICES,
    examples,
    find,
    lookup,
    registered,
    scheme_of,
)
from holdfast.registration.urls import nothing_serves, shown

if TYPE_CHECKING:
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
    from holdfast.ports.tasks import TaskStore
    from holdfast.system.files import Access


class Closing(Protocol):
    """An object that must be closed at the end."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Closing)


class NotServed(Exception):
    """A service doesn't have the port that was asked for."""


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
        lock_timeout_s, max_message_bytes, max_state_bytes: see :class:`holdfast.config.settings.Config`.
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
    """A service at the URLs of some schemes. An adapter's package registers an object of a subclass, which
    overrides the methods of its ports.

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

    # --- properties with defaults that fit most services

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
        """Return the object that makes and checks queues; None if queues are made at their first use."""
        return None

    async def risks(self, opening: Opening) -> list[Risk]:
        """Return the risks of data loss in the settings of the servers. Raises Unavailable."""
        return []

    async def database_health(self, opening: Opening) -> DatabaseHealth | None:
        """Return the health of the database for a node's metrics; None without a database. Raises
        Unavailable."""
        return None

    def prices(self, url: str) -> Mapping[tuple[str, str], float]:
        """Return the list price of a million calls in dollars, by service and operation as ``Meter`` counts
        them. An empty operation stands for all others of the service. Empty if calls are free."""
        return {}

    async def schema_steps(self, opening: Opening) -> SchemaSteps | None:
        """Return the version and the missing migrations of the service's tables; None without tables. Changes
        nothing. Raises Unavailable, and UnsupportedStore for tables that this version can't use."""
        return None

    async def migrate(self, opening: Opening, *, contract: bool = False) -> list[int] | None:
        """Expand the service's tables, which otherwise happens at its first use. With ``contract``, also
        remove parts that only earlier versions use. Returns the numbers of the applied migrations; None
        without tables."""
        return None

    def grants(self, opening: Opening, role: str) -> list[str]:
        """Return the SQL statements that give a role exactly the rights of a node here."""
        return []

    def grants_to_send(self, opening: Opening, role: str, *, tasks: bool = False) -> list[str]:
        """Return the SQL statements that give a role exactly the rights to send messages to streams here,
        also in transactions of its own; with ``tasks`` also to send tasks, and to wait for them."""
        return []

    async def iam_statements(self, opening: Opening, streams: Iterable[str]) -> list[dict[str, Any]]:
        """Return the statements of an IAM policy for a node of ``streams``."""
        return []

    def only_stream(self, opening: Opening) -> str:
        """Return the name of the one stream that this coordinator is for; empty if it is for all."""
        return ""

    def local_file(self, url: str) -> Path | None:
        """Return the file that the URL names, if it is a local file that other users must not read."""
        return None


class OpenBackup(Protocol):
    """A function that opens a back-up of dead letters at the URL in ``setting``, registered in the group
    :data:`BACKUPS`. ``access`` has the modes of files. Raises ConfigError."""

    def __call__(self, setting: str, url: str, access: Access) -> Backup: ...


def service_of(url: str) -> Service:
    """Return the service for the scheme of a URL; a service without ports for a scheme that isn't registered.
    Raises ConfigError for a service that can't be imported."""
    return find(SERVICES, scheme_of(url), Service) or Service()


def has_port(service: Any, port: str) -> bool:
    """Return whether a service has the port that the method ``port`` opens."""
    return getattr(type(service), port, None) is not getattr(Service, port)


def unserved(setting: str, url: str, port: str) -> ConfigError:
    """Return the error for a URL whose service lacks a port, with an example of each service that has it.
    ``port`` is the name of the method that opens it."""
    return nothing_serves(setting, url, examples(SERVICES, lambda service: has_port(service, port)))


def place_of(url: str) -> str:
    """Return the service for the scheme of a URL as ``module:object``, so that another process can import it
    without a look-up. Raises NotServed."""
    point = registered(SERVICES, scheme_of(url))
    if point is None:
        raise NotServed
    return point.value


def backup_opener(setting: str, url: str) -> OpenBackup:
    """Return the function that opens a back-up at a URL. Raises ConfigError without one."""
    opener: OpenBackup = lookup(BACKUPS, setting, url)
    return opener
