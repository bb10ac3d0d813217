"""The registry's records of an app: the URLs of its services, and which nodes run which types of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from urllib.parse import urlsplit

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Registry
from holdfast.registration.services import service_of
from holdfast.tasks.documents import change, record_in

REFRESH_S = 15.0
"""Seconds between two checks of a node that its entry is there, and entries of dead nodes are removed."""

APPS = "apps/"
"""The prefix of the names of documents about apps."""

SHARED = ("queue_url", "tasks_url", "coordinator_url", "values_url")
"""Settings that a node or a producer may read from the registry."""


class DeclaredTimes(msgspec.Struct, frozen=True):
    """The times at which something is done, as code declares them: a cron expression of five fields, and a
    time zone."""

    cron: str
    zone: str


class NodeEntry(msgspec.Struct, frozen=True):
    """A living node: its name, its HTTP address, its types of tasks, and the names of what it does by the
    clock, with the times that its code declares."""

    node: str
    address: str
    types: tuple[str, ...]
    periodics: tuple[str, ...] = msgspec.field(default=(), name="deeds")
    times: dict[str, DeclaredTimes] = {}


class Listing(msgspec.Struct, frozen=True):
    """The registry's record of an app: the ``settings`` that its nodes and producers share, and its living
    nodes by membership."""

    settings: dict[str, str] = {}
    nodes: dict[str, NodeEntry] = {}

    @property
    def types(self) -> dict[str, list[NodeEntry]]:
        """Return the nodes of each type of task, in order of type and name."""
        by_type: dict[str, list[NodeEntry]] = {}
        for entry in sorted(self.nodes.values(), key=lambda entry: (entry.node, entry.address)):
            for task_type in entry.types:
                by_type.setdefault(task_type, []).append(entry)
        return dict(sorted(by_type.items()))

    @property
    def times(self) -> dict[str, DeclaredTimes]:
        """Return when living nodes do what their code declares, in order of name."""
        entries = sorted(self.nodes.values(), key=lambda entry: (entry.node, entry.address))
        return dict(sorted((name, when) for entry in entries for name, when in entry.times.items()))


def announced(
    listing: Listing, member: str, entry: NodeEntry, living: Collection[str], settings: Mapping[str, str]
) -> Listing:
    """Return the listing with a node's entry, and without entries of dead members. Settings of the node are
    added if they weren't there before."""
    nodes = {name: known for name, known in listing.nodes.items() if name in living}
    return Listing(dict(settings) | listing.settings, nodes | {member: entry})


def withdrawn(listing: Listing, member: str) -> Listing:
    """Return the listing without a node."""
    return Listing(listing.settings, {name: e for name, e in listing.nodes.items() if name != member})


def shareable(settings: Mapping[str, str], registry_url: str) -> dict[str, str]:
    """Return the settings of a node that other processes can use, without files and secrets. A URL with the
    registry's user and password is stored without them, because every reader of the registry has them."""
    shared: dict[str, str] = {}
    for name, value in settings.items():
        url = urlsplit(value)
        if name not in SHARED or not value or service_of(value).one_host:
            continue
        if not url.password:
            shared[name] = value
        elif _user(value) == _user(registry_url) and _servers(value) == _servers(registry_url):
            shared[name] = _as_user(value, "")
    return shared


def usable(settings: Mapping[str, str], registry_url: str) -> dict[str, str]:
    """Return settings from the registry, with the registry's user and password added to URLs of the same
    servers."""
    return {
        name: _as_user(value, _user(registry_url)) if _servers(value) == _servers(registry_url) else value
        for name, value in settings.items()
    }


def _user(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[0]


def _servers(url: str) -> tuple[str, str]:
    return urlsplit(url).scheme, urlsplit(url).netloc.rpartition("@")[2]


def _as_user(url: str, user: str) -> str:
    netloc = _servers(url)[1]
    return urlsplit(url)._replace(netloc=f"{user}@{netloc}" if user else netloc).geturl()


class Directory:
    """The listing of one app in the registry."""

    def __init__(self, registry: Registry, app: str, clock: Clock) -> None:
        self._registry = registry
        self._name = f"{APPS}{app}"
        self._clock = clock

    async def read(self) -> Listing:
        """Read the listing. Raises InvalidMessage, and what the registry raises."""
        return record_in(await self._registry.get(self._name), Listing)

    async def change(self, how: Callable[[Listing], Listing]) -> Listing:
        """Change the listing and return the new one. Raises what the registry raises."""
        return await change(self._registry, self._clock, self._name, Listing, how)


class Announcer:
    """Keeps a node's entry in the listing under the id of its membership: its ``types`` of tasks, the names
    of its ``periodics`` by the clock, the ``times`` that its code declares, and ``settings`` for other
    processes (see :func:`shareable`)."""

    def __init__(
        self,
        directory: Directory,
        host: Host,
        *,
        types: Collection[str],
        periodics: Collection[str],
        times: Mapping[str, DeclaredTimes],
        settings: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._host = host
        self._clock, self._log = host.clock, host.log
        self._types = tuple(sorted(types))
        self._periodics = tuple(sorted(periodics))
        self._times = dict(sorted(times.items()))
        self._settings = settings
        self._warned: dict[str, str] = {}
        self._announced: Mapping[str, NodeEntry] = {}
        self._left = asyncio.Event()
        self._backoff = Backoff(1.0, REFRESH_S)

    @property
    def _member(self) -> str:
        """Return the name of this node's entry; "" while the node has no membership."""
        membership = self._host.membership
        return membership.id if membership.alive else ""

    def leads(self, periodic: str) -> bool:
        """Return True on one of the living nodes that do this by the clock, and False on the others. For a
        moment, or while nodes don't see each other, none or several may get True."""
        member, living = self._member, self._host.membership.view
        known = [
            name for name, entry in self._announced.items() if name in living and periodic in entry.periodics
        ]
        return bool(member) and member == min(known or living, default="")

    async def run(self, address: str) -> None:
        """Write the node's entry, with the HTTP ``address``, at intervals until the node leaves."""
        entry = NodeEntry(self._host.name, address, self._types, self._periodics, self._times)
        failures = 0
        while not self._left.is_set():
            try:
                await self._announce(entry)
                failures, pause_s = 0, REFRESH_S * (0.5 + self._clock.random())
            except HoldfastError as error:
                failures += 1
                pause_s = self._backoff.delay_s(failures, self._clock.random())
                self._log.warning("cannot announce node", error=str(error))
            await self._clock.wait(self._left, pause_s)

    async def leave(self) -> None:
        """Remove the entry. If this fails, other nodes remove it after the membership ends."""
        self._left.set()
        try:
            member = self._member
            await self._directory.change(lambda listing: withdrawn(listing, member))
        except HoldfastError as error:
            self._log.warning("cannot withdraw node", error=str(error))

    async def _announce(self, entry: NodeEntry) -> None:
        member = self._member
        if not member:
            return
        living = self._host.membership.view
        listing = await self._directory.change(
            lambda listing: (
                listing if self._left.is_set() else announced(listing, member, entry, living, self._settings)
            )
        )
        if self._left.is_set():
            return  # without this node's entry, the settings may be missing too
        self._announced = listing.nodes
        for name, value in self._settings.items():
            other = listing.settings[name]
            if value != other and self._warned.get(name) != other:
                self._warned[name] = other
                self._log.warning("settings differ between nodes", setting=name, here=value, there=other)
