"""The log of changes, and one reader of it.

Every change is noted in the same transaction that makes it: as a numbered znode, and by a write to the
directory of the notes, which is the bell. A reader waits for the bell's watch, learns from its version how
many changes are new, and reads only these, by name. No reader lists claims, so the cost of a change doesn't
depend on their number. A session that expires notes nothing; a watch on /services reports it.

Other programs, and people with a shell, note nothing either. A watch on all claims reports every change to a
claim. A reader looks only at changes that no note explains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from holdfast.errors import Damaged, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Change, Claim, Member
from holdfast.services.zookeeper import layout
from holdfast.services.zookeeper.records import LogEntry, decode_entry, decode_service
from holdfast.services.zookeeper.session import TransactionStep, ZooKeeperSession, create, write

LOGGED = 5_000
"""Changes kept at the servers."""

PRUNE_EVERY = 500
KEPT = 10_000
"""Changes kept in this process for its readers."""

NEVER = -1
"""The zxid of no change."""

RETRY_S = 1.0
READ_TOGETHER = 200

_log = logging.getLogger("holdfast.zookeeper")


def note(entry: LogEntry) -> list[TransactionStep]:
    """Return the steps that note a change; :func:`noted` finds the first one's result."""
    missing = Unavailable(f"{layout.CHANGES} is missing; the next node that joins creates it")
    return [
        create(layout.CHANGE, msgspec.json.encode(entry), missing, sequence=True),
        write(layout.CHANGES, b"", missing),
    ]


async def noted(session: ZooKeeperSession, results: Iterable[Any]) -> int:
    """Return the zxid of a transaction that noted a change, from its results. Now and then, prunes the log.
    Raises OutcomeUnknown, for the change is made."""
    path = next(result for result in results if isinstance(result, str) and result.startswith(layout.CHANGE))
    number = int(path.removeprefix(layout.CHANGE))
    if number % PRUNE_EVERY == 0:
        session.spawn(_prune(session, number))
    try:
        stat = await session.exists(path)
    except Unavailable as error:
        raise OutcomeUnknown(f"made, but then: {error}") from error
    if stat is None:
        raise OutcomeUnknown(f"{path} was made, and is gone")
    return int(stat.czxid)


async def _prune(session: ZooKeeperSession, number: int) -> None:
    """Delete changes beyond the length of the log."""
    kept = {layout.change_name(number + i) for i in range(-LOGGED, LOGGED)}
    with contextlib.suppress(HoldfastError):
        for name in await session.children(layout.CHANGES):
            if name not in kept:
                with contextlib.suppress(NoNodeError):
                    await session.delete(f"{layout.CHANGES}/{name}")


class _LogGap(Exception):
    """The log doesn't continue where this reader stopped."""


class FoundClaim(Protocol):
    """A claim that stands."""

    @property
    def claim(self) -> Claim: ...


class _Events(NamedTuple):
    """Events at one claim: how many a watch has reported, and how many of them notes explain. ``written``:
    some have made or changed the claim, not only ended it."""

    heard: int = 0
    explained: int = 0
    written: bool = False


class ChangeFeed:
    """Reads changes from its first use on, and keeps the last of them under its own numbers from 1 on.

    ``read`` reads the present claims. ``concerns`` returns True if the end of a key's claim matters to this
    process, and ``see`` is called with claims that changed without a note."""

    def __init__(
        self,
        session: ZooKeeperSession,
        clock: Clock,
        read: Callable[[ZooKeeperSession, Iterable[str]], Awaitable[Sequence[FoundClaim]]],
        *,
        concerns: Callable[[str], bool],
        see: Callable[[Claim], None],
    ) -> None:
        self._session = session
        self._clock = clock
        self._read_claims = read
        self._concerns = concerns
        self._see = see
        self._events: dict[str, _Events] = {}
        self._watching = 0
        self._zxid = 0
        self._unexplained = 0
        self._number = 0
        self._missed_at = 0
        self._changes: deque[Change] = deque(maxlen=KEPT)
        self._members: dict[str, Member] = {}
        self._origin = (0, 0)
        self._version = 0
        self._name = ""
        self._rung = asyncio.Event()
        self._news = asyncio.Event()
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def watch(self, after: int, wait_s: float) -> tuple[int, list[Change]]:
        """See the port. Raises Unavailable if no server answers at the first use."""
        await self._start()
        deadline = self._clock.monotonic() + wait_s
        while True:
            if after < 0 or after > self._number:
                return self._number, []
            if after < max(self._missed_at, self._number - len(self._changes)):
                return -1, []
            remaining_s = deadline - self._clock.monotonic()
            if after < self._number or remaining_s <= 0 or self._closed:
                first = len(self._changes) - (self._number - after)
                return self._number, [self._changes[i] for i in range(first, len(self._changes))]
            await self._clock.wait(self._news, remaining_s)

    def ring(self) -> None:
        """Check for changes."""
        self._rung.set()

    async def close(self) -> None:
        """Stop reading. Waiting calls end with what there is."""
        self._closed = True
        self._wake()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # --- how it is done

    async def _start(self) -> None:
        async with self._starting:
            if self._reading is None and not self._closed:
                await self._session.sync()
                await self._begin()
                self._reading = asyncio.create_task(self._read())

    async def _begin(self) -> None:
        await self._watch_claims()
        self._zxid, self._unexplained = await self._last_change(), 0  # a caller that begins reads all claims
        await self._find_end()
        self._members = await self._read_members(await self._list_services())

    async def _read(self) -> None:
        lost = False
        while True:
            self._rung.clear()
            patience_s = None
            try:
                if lost:
                    await self._begin()
                    self._miss()  # again, for callers that began before this
                    lost = False
                await self._catch_up()
            except _LogGap:
                self._miss()
                lost, patience_s = True, RETRY_S
            except HoldfastError:
                patience_s = RETRY_S  # a connection that comes back rings as well
            await self._clock.wait(self._rung, patience_s)

    async def _catch_up(self) -> None:
        """Read the log to its end. Later differences in /services and at claims happened without a note."""
        while True:
            await self._watch_claims()
            touched = dict(self._events)
            paths = await self._list_services()
            known = self._members.keys() - paths
            unknown = paths - self._members.keys()
            noted = False
            while entries := await self._read_log():
                for entry, zxid in entries:
                    noted |= entry.kind != "claim"
                    self._apply(entry, zxid)
            if noted:
                continue  # the list is older than the notes
            joined = await self._read_members(unknown)
            for path in sorted(known):
                self._apply(LogEntry("left", path=path), 0)
            for path, member in sorted(joined.items()):
                self._apply(LogEntry("joined", path=path, member=member), 0)
            await self._look_at(touched)
            if self._unexplained:
                self._unexplained = 0
                self._miss()
            return

    async def _watch_claims(self) -> None:
        """Watch all claims, once for each connection. Changes between two connections may have left no note.
        That is so if the last change to /tasks isn't a noted one. Where other programs are members, it must
        be assumed, because they may also have written into a claim."""
        connection = self._session.connections
        if self._watching == connection:
            return
        self._events.clear()
        if not await self._session.watch_below(layout.TASKS, self._note_event):
            _log.warning("zookeeper older than 3.6")
        if self._watching:
            zxid = await self._last_change()
            mixed = any(member.foreign for member in self._members.values())
            self._unexplained = NEVER if mixed else zxid if zxid != self._zxid else 0
        self._watching = connection

    def _note_event(self, path: str, kind: EventType) -> None:
        try:
            key = layout.unescape(layout.basename(path))
        except ValueError:
            return  # no key leads to that claim
        seen = self._events.get(key, _Events())
        written = seen.written or kind != EventType.DELETED
        self._events[key] = seen._replace(heard=seen.heard + 1, written=written)
        self.ring()

    def _explain(self, entry: LogEntry, zxid: int) -> None:
        """Count a note. Its event has arrived before: a note can't be read earlier."""
        self._zxid = zxid
        if zxid == self._unexplained:
            self._unexplained = 0
        seen = self._events.get(entry.key)
        if seen is not None:
            self._events[entry.key] = seen._replace(explained=seen.explained + entry.events)

    async def _look_at(self, touched: Mapping[str, _Events]) -> None:
        """Report claims that changed without a note. ``touched`` are the events from before the log was read.
        The end of a claim, as when a node dies with all of its claims, concerns few processes."""
        left = [key for key, seen in touched.items() if self._events[key].explained < seen.heard]
        keys = [key for key in left if touched[key].written or self._concerns(key)]
        if keys:
            gone_at = await self._last_change()
            standing = {
                found.claim.key: found.claim for found in await self._read_claims(self._session, keys)
            }
            for key in keys:
                claim = standing.get(key) or Claim(key, "", gone_at)
                self._see(claim)
                self._add(Change("claim", claim=claim))
        for key, before in touched.items():  # later events belong to the next reading
            seen = self._events[key]
            self._events[key] = seen._replace(explained=max(seen.explained, before.heard))
            if self._events[key].explained >= seen.heard:
                del self._events[key]

    async def _last_change(self) -> int:
        """Return the zxid of the last change to /tasks: of the last claim that was made or taken away."""
        stat = await self._session.exists(layout.TASKS)
        return int(stat.pzxid) if stat is not None else 0

    def _apply(self, entry: LogEntry, zxid: int) -> None:
        if entry.kind == "claim":
            self._explain(entry, zxid)
            self._add(Change("claim", claim=Claim(entry.key, entry.owner, zxid)))
        elif entry.kind == "joined" and entry.member is not None and entry.path not in self._members:
            self._members[entry.path] = entry.member
            self._add(Change("joined", member=entry.member))
        elif entry.kind == "left" and entry.path in self._members:
            self._add(Change("left", member=self._members.pop(entry.path)))

    def _add(self, change: Change) -> None:
        self._changes.append(change)
        self._number += 1
        self._wake()

    def _miss(self) -> None:
        self._number += 1
        self._missed_at = self._number
        self._changes.clear()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- reading

    async def _list_services(self) -> set[str]:
        names = await self._session.children(layout.SERVICES, self.ring)
        return {f"{layout.SERVICES}/{name}" for name in names}

    async def _read_members(self, paths: Iterable[str]) -> dict[str, Member]:
        ordered = sorted(paths)
        found = await self._session.get_all(ordered)
        return {
            path: decode_service(path, answer[0])
            for path, answer in zip(ordered, found, strict=True)
            if answer is not None
        }

    async def _find_end(self) -> None:
        """Go to the end of the log: the change without a successor. Raises Unavailable if there is no log."""
        before, names = None, set[str]()
        while True:
            stat = await self._session.exists(layout.CHANGES, self.ring)
            if stat is None:
                raise Unavailable(f"{layout.CHANGES} is missing; the next node that joins creates it")
            if before == (stat.version, _origin(stat)):
                break
            before = (stat.version, _origin(stat))
            names = set(await self._session.children(layout.CHANGES))
        names = {name for name in names if layout.is_change(name)}
        ends = [name for name in names if layout.after(name) not in names]
        self._name = layout.change_name(-1) if not ends else await self._newest(ends)
        self._origin, self._version = _origin(stat), stat.version

    async def _newest(self, names: list[str]) -> str:
        found = await self._session.get_all(f"{layout.CHANGES}/{name}" for name in names)
        return max(
            (answer[1].czxid if answer else 0, name) for answer, name in zip(found, names, strict=True)
        )[1]

    async def _read_log(self) -> list[tuple[LogEntry, int]]:
        """Return the next changes with their zxids; none at the end. Raises _Missed if they aren't there."""
        stat = await self._session.exists(layout.CHANGES, self.ring)
        news = (stat.version - self._version) % 2**32 if stat is not None else 0
        if stat is None or _origin(stat) != self._origin or news > LOGGED:
            raise _LogGap
        count = min(news, READ_TOGETHER)
        names = [self._name]
        for _ in range(count):
            names.append(layout.after(names[-1]))
        found = await self._session.get_all(f"{layout.CHANGES}/{name}" for name in names[1:])
        try:
            entries = [
                (decode_entry(name, answer[0]), answer[1].czxid)
                for name, answer in zip(names[1:], found, strict=True)
                if answer is not None
            ]
        except Damaged as error:
            raise _LogGap from error
        if len(entries) < count:
            raise _LogGap
        self._name, self._version = names[-1], self._version + count
        return entries


def _origin(stat: Any) -> tuple[int, int]:
    """Return the mark of this log. An earlier log had another: servers that lost their data count from 0
    again."""
    return stat.czxid, stat.ctime
