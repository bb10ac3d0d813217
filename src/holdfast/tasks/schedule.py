"""An app's schedule: the tasks sent by the clock that are added and changed while nodes run. It is one
document of the registry, which every node of the app follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack

import msgspec

from holdfast.common.codec import encode
from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, NotKnown, OperationRefused
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, Registry
from holdfast.tasks.discovery import Directory
from holdfast.tasks.documents import change, record_in
from holdfast.tasks.order import Order, TimesOptions
from holdfast.tasks.periodic import DLQ_BACKUP, LOOK_S, Periodic, PeriodicCall, Scheduler

PREFIX = "schedule/"

SCHEDULE = "(schedule)"
"""Among what a node does by the clock, the name of the schedule. No declared one can have it."""

OF_TASK = ("task_type", "body", "group", "priority", "timeout_s", "tries")
"""The fields of an entry that an Order has too."""

OF_TIMES = ("cron", "zone", "missed", "window_s", "since")
"""The fields of an entry that a Periodic has too."""

ENTRIES_MAX = 1000
"""The most entries in a schedule."""


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task that the clock sends, as the schedule has it, with settings of :meth:`holdfast.App.periodic` and
    of :class:`holdfast.Order`. Times up to ``since`` (wall time), when the entry was written, don't count."""

    cron: str
    zone: str = "UTC"
    missed: Literal["all", "last", "skip"] = "last"
    window_s: float = 3600.0
    task_type: str
    body: Any = None
    group: str = ""
    priority: int = 0
    timeout_s: float | None = None
    tries: int | None = None
    since: float = 0.0

    def periodic(self, name: str) -> Periodic:
        """Return what the scheduler takes. Raises ConfigError, and InvalidMessage for a wrong task."""
        order = Order(**{field: getattr(self, field) for field in OF_TASK})
        times = {field: getattr(self, field) for field in OF_TIMES}
        return Periodic(name=name, orders=lambda moment: [order], **times)


def entry_of(order: Order, cron: str, **options: Unpack[TimesOptions]) -> ScheduleEntry:
    """Return the entry that sends a task. Raises InvalidMessage for what an entry can't have."""
    for field in ("task_id", "dedupe", "delay_s", "at", "then", "on_failure"):
        if getattr(order, field):
            raise InvalidMessage(f"field {field!r} is set; a task in a schedule has none", field)
    return ScheduleEntry(cron=cron, **{field: getattr(order, field) for field in OF_TASK}, **options)


class Schedule(msgspec.Struct, frozen=True):
    """The document of an app."""

    entries: dict[str, ScheduleEntry] = {}


def document_name(app: str) -> str:
    """Return the name of the document with an app's schedule."""
    return f"{PREFIX}{app}"


def schedule_in(document: Document | None) -> Mapping[str, ScheduleEntry]:
    """Return the entries of a document. Raises InvalidMessage."""
    return record_in(document, Schedule).entries


class Schedules:
    """Reads and changes the schedule of an app."""

    def __init__(self, registry: Registry, app: str, clock: Clock) -> None:
        self._registry = registry
        self._app = app
        self._clock = clock

    async def read(self) -> Mapping[str, ScheduleEntry]:
        """Return the entries. Raises what the registry does, and InvalidMessage for a damaged document."""
        return schedule_in(await self._registry.get(document_name(self._app)))

    async def set(self, name: str, entry: ScheduleEntry, now: float) -> None:
        """Add an entry, or put it in the place of the one of that name. It counts from ``now`` on. Raises
        ConfigError and InvalidMessage for an entry that can't be, OperationRefused, TooLarge, and what the
        registry does."""
        entry.periodic(name)
        try:
            encode(entry.body)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidMessage(f"field 'body' must be what JSON can hold: {error}", "body") from None
        await self._check_free(name)
        entry = msgspec.structs.replace(entry, since=now)
        await self._change(lambda entries: {**entries, name: entry})

    async def remove(self, name: str) -> None:
        """Remove an entry. Raises OperationRefused for an unknown name, and what the registry does."""
        if name not in await self.read():
            raise NotKnown(f"the schedule of app {self._app!r} has no {name!r}")
        await self._change(lambda entries: {each: entry for each, entry in entries.items() if each != name})

    async def _check_free(self, name: str) -> None:
        listing = await Directory(self._registry, self._app, self._clock).read()
        if name in (DLQ_BACKUP, SCHEDULE) or any(name in node.periodics for node in listing.nodes.values()):
            raise OperationRefused(
                f"periodic {name!r} is declared in the code of app {self._app!r}; change it there, or take"
                " another name"
            )

    async def _change(self, how: Callable[[Mapping[str, ScheduleEntry]], dict[str, ScheduleEntry]]) -> None:
        def changed(schedule: Schedule) -> Schedule:
            entries = how(schedule.entries)
            if len(entries) > ENTRIES_MAX:
                raise ConfigError(f"the schedule of app {self._app!r} has {ENTRIES_MAX} entries already")
            return Schedule(entries)

        await change(self._registry, self._clock, document_name(self._app), Schedule, changed)


class ScheduleFollower:
    """Does what is due on a node: what is declared, by ``scheduler``, and what the schedule has at present.
    ``call`` returns what is done at the times of an entry."""

    def __init__(
        self,
        app: str,
        scheduler: Scheduler,
        call: Callable[[Periodic], PeriodicCall],
        registry: Registry,
        clock: Clock,
        log: Any,
    ) -> None:
        self._name = document_name(app)
        self._scheduler = scheduler
        self._call = call
        self._registry = registry
        self._clock = clock
        self._log = log
        self._keeping: dict[str, tuple[ScheduleEntry, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Fire what is due, without end."""
        loops = [asyncio.ensure_future(loop) for loop in (self._scheduler.run(), self._follow())]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:  # when one fails, the other goes on, and both are begun again
                loop.cancel()
            self._take({})

    async def _follow(self) -> None:
        version = -1
        while True:
            try:
                document = await self._registry.changed(
                    self._name, max(version, 0), LOOK_S if version >= 0 else 0.0
                )
                found = document.version if document else 0
                if found != version:
                    version = found
                    self._take(schedule_in(document))
            except HoldfastError as error:
                self._log.warning("cannot read schedule", error=str(error))
                await self._clock.sleep(LOOK_S * (0.5 + self._clock.random()))

    def _take(self, entries: Mapping[str, ScheduleEntry]) -> None:
        """Keep to these entries from now on."""
        for name, (entry, keeping) in list(self._keeping.items()):
            if entries.get(name) != entry:
                keeping.cancel()
                del self._keeping[name]
        for name, entry in entries.items():
            if name in self._keeping:
                continue
            if name in self._scheduler.names:
                self._log.warning("schedule entry ignored", periodic=name)
                continue
            try:
                periodic = entry.periodic(name)
            except HoldfastError as error:
                self._log.warning("bad schedule entry", periodic=name, error=str(error))
                continue
            keeping = asyncio.ensure_future(self._scheduler.keep(periodic, self._call(periodic), SCHEDULE))
            self._keeping[name] = entry, keeping
