"""The results log in Redis: a stream of each shard for each stream that has results there.

A result's cursor is its entry's id: a number that grows within its shard, and with the server's time, so that
cursors keep growing in a Redis that has lost its last results. A result that was transferred from another
store keeps its cursor, and holds its time. The cursor modulo the number of shards is the shard, so no two
results share a cursor.

With several shards, a reader must not pass a cursor below which another shard may still add a result. So
before it passes one, it makes every shard that is behind continue from there. That keeps the order of commits
as far as the servers' clocks agree, and misses nothing even if they differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.common.record import reading
from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Result
from holdfast.services.redis.connection import TIMEOUT_S, RedisConnection, Script
from holdfast.services.redis.lane import Word
from holdfast.services.redis.shards import StateShards

BLOCK_S = 5.0
"""Seconds for which one blocking call waits at the server."""

PAUSE_S = 1.0
"""Seconds until the next try to listen after a failure."""

EXPIRE_BATCH = 100
"""Results that one call drops, so that commits don't wait for it."""

CURSOR_MAX = 2**63 - 1
MICROS_MAX = 2**53 - 1

READ = Script.load("read", "shard")
EXPIRE = Script.load("expire_results")
RESTORE = Script.load("restore_results", "shard")


class ResultsPage(NamedTuple):
    """Some results of a shard. Later results have a cursor above the last of these, or above ``last`` if
    these are all."""

    last: int
    results: list[Logged]


class LogList(NamedTuple):
    """The streams that have a log in a shard, and the id of the last entry of that list."""

    streams: list[str]
    id: str


class Results:
    """The results of all streams."""

    def __init__(self, connection: RedisConnection, shards: StateShards, clock: Clock) -> None:
        self._connection = connection
        self._shards = shards
        self._clock = clock
        self._logs = [LogList([], "0-0") for _ in range(shards.count)]
        self._listeners: dict[LogListener, asyncio.Task[None]] = {}
        self._idle: list[RedisConnection] = []
        self._waiting: set[asyncio.Event] = set()
        self._closings = 0

    async def read(self, after: int, limit: int, wait_s: float, stream: str) -> list[Logged]:
        """See ``results`` of the port."""
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        after = min(max(after, 0), CURSOR_MAX)
        while True:
            found = await self._read(after, limit, stream)
            remaining_s = deadline - self._clock.monotonic()
            if found or remaining_s <= 0:
                return found
            await self._wait(after, stream, remaining_s)
            if self._closings != closings:
                return []

    async def find(self, key: str, name: str) -> Logged | None:
        """See ``result`` of the port."""
        shard = self._shards.of(key)
        names = self._shards.name(shard, "names", key)
        cursor = await self._connection.command(names, "HGET", names, name)
        if cursor is None:
            return None
        log = self._shards.name(shard, "log", stream_of(key))
        id_ = cursor.decode() + "-0"
        entries = await self._connection.command(log, "XRANGE", log, id_, id_)
        return _logged(entries[0]) if entries else None

    async def expire(self, before: float) -> int:
        """Drop results older than a wall time; returns how many."""
        first_kept = micros(before)
        dropped = 0
        for shard in range(self._shards.count):
            for stream in (await self._list_logs(shard)).streams:
                log, names = self._shards.name(shard, "log", stream), self._shards.name(shard, "names", "")
                while batch := await self._connection.script(EXPIRE, (log,), first_kept, EXPIRE_BATCH, names):
                    dropped += batch
        return dropped

    async def last_cursor(self) -> int:
        """See the port."""
        records = [self._shards.name(shard, "shard") for shard in range(self._shards.count)]
        lasts = await asyncio.gather(*(self._connection.command(r, "HGET", r, "last") for r in records))
        return max(int(last or 0) for last in lasts)

    async def restore(self, shards: StateShards, results: Sequence[Logged], above: int) -> None:
        """See ``restore_results`` of the port. The connection of ``shards`` writes them."""
        every = range(self._shards.count)
        keys: list[list[str]] = [[self._shards.name(shard, "logs")] for shard in every]
        words: list[list[Word]] = [[] for _ in every]
        for r in results:
            shard, stream = self._shards.of(r.key), stream_of(r.key)
            keys[shard] += (self._shards.name(shard, "log", stream), self._shards.name(shard, "names", r.key))
            at = round(r.at * 1e6)
            own_at = "" if at == r.cursor else at
            words[shard] += (r.cursor, stream, r.key, r.epoch, r.result.name, r.result.body, own_at)
        for shard in every:
            await shards.run(RESTORE, shard, keys[shard], above, *words[shard])

    async def close(self) -> None:
        """End waiting readers, and close their connections."""
        self._closings += 1
        for bell in self._waiting:
            bell.set()
        tasks = list(self._listeners.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._idle))

    # --- reading

    async def _read(self, after: int, limit: int, stream: str) -> list[Logged]:
        if stream and self._shards.count == 1:
            log = self._shards.name(0, "log", stream)
            entries = await self._connection.command(log, "XRANGE", log, f"({after}-0", "+", "COUNT", limit)
            return [_logged(entry) for entry in entries]
        every = range(self._shards.count)
        pages = await asyncio.gather(*(self._read_shard(n, after, limit, stream, 0) for n in every))
        found = _merge(pages, limit, CURSOR_MAX)
        if self._shards.count == 1 or not found:
            return found
        passed = found[-1].cursor
        behind = [n for n in every if pages[n].last < passed]
        later = await asyncio.gather(*(self._read_shard(n, after, limit, stream, passed) for n in behind))
        for n, page in zip(behind, later, strict=True):
            pages[n] = page
        return _merge(pages, limit, passed)

    async def _read_shard(self, shard: int, after: int, limit: int, stream: str, passed: int) -> ResultsPage:
        """Return results of one shard, whose later cursors are above ``passed``."""
        logs = self._shards.name(shard, "logs")
        while True:
            streams = [stream] if stream else self._logs[shard].streams
            keys = [logs, *(self._shards.name(shard, "log", name) for name in streams)]
            known: str | int = "" if stream else len(streams)
            reply = await self._shards.run(READ, shard, keys, after, limit, passed, known)
            if reply[0] == b"ok":
                return ResultsPage(
                    int(reply[1]), [_logged(entry) for entries in reply[2] for entry in entries]
                )
            self._logs[shard] = _logs(reply[1])

    async def _list_logs(self, shard: int) -> LogList:
        name = self._shards.name(shard, "logs")
        self._logs[shard] = _logs(await self._connection.command(name, "XRANGE", name, "-", "+"))
        return self._logs[shard]

    # --- waiting

    async def _wait(self, after: int, stream: str, timeout_s: float) -> None:
        """Wait until there may be a result after ``after``."""
        bell = asyncio.Event()
        self._waiting.add(bell)
        listeners = [self._listener(shard, stream, after) for shard in range(self._shards.count)]
        for listener in listeners:
            listener.bells.add(bell)
        try:
            await self._clock.wait(bell, timeout_s)
        finally:
            self._waiting.discard(bell)
            for listener in listeners:
                listener.bells.discard(bell)

    def _listener(self, shard: int, stream: str, after: int) -> LogListener:
        """Return a listener to a shard from ``after`` on: perhaps one that listens from an earlier place, and
        has heard nothing since."""
        for listener in self._listeners:
            if (listener.shard, listener.stream) == (shard, stream) and listener.after <= after:
                return listener
        streams, last = ([stream], "") if stream else self._logs[shard]
        places = {self._shards.name(shard, "log", name): f"{after}-0" for name in streams}
        if not stream:
            places[self._shards.name(shard, "logs")] = last
        listener = LogListener(shard, stream, after)
        self._listeners[listener] = asyncio.create_task(self._listen(listener, places))
        return listener

    async def _listen(self, listener: LogListener, places: Mapping[str, str]) -> None:
        """Block at the server, over a connection that no other call needs, until something new is there."""
        connection = self._idle.pop() if self._idle else self._connection.apart(BLOCK_S + TIMEOUT_S)
        try:
            await self._hear(connection, listener, places)
        except BaseException:
            await connection.close()
            raise
        finally:
            del self._listeners[listener]
        self._idle.append(connection)
        for bell in listener.bells:
            bell.set()

    async def _hear(
        self, connection: RedisConnection, listener: LogListener, places: Mapping[str, str]
    ) -> None:
        key, block_ms = next(iter(places)), int(BLOCK_S * 1000)
        names = (*places, *places.values())
        heard = None
        try:
            while listener.bells and heard is None:
                heard = await connection.command(
                    key, "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *names
                )
        except HoldfastError:
            await self._clock.sleep(PAUSE_S)  # callers read next, and get the error


class LogListener:
    """Listens for results of ``stream`` ("": of all streams) in a shard after a cursor."""

    __slots__ = ("after", "bells", "shard", "stream")

    def __init__(self, shard: int, stream: str, after: int) -> None:
        self.shard = shard
        self.stream = stream
        self.after = after
        self.bells: set[asyncio.Event] = set()


def micros(wall: float) -> int:
    """Return a wall time as servers count it, from just after 1970 to the end of what they can count."""
    return round(min(max(wall * 1e6, 1), MICROS_MAX))


def stream_of(key: str) -> str:
    """Return the stream in a full key."""
    return key[: max(key.find("/"), 0)]


def _merge(pages: Sequence[ResultsPage], limit: int, last: int) -> list[Logged]:
    """Return the first results of all shards, up to a cursor."""
    every = sorted((result for page in pages for result in page.results), key=attrgetter("cursor"))
    return [result for result in every[:limit] if result.cursor <= last]


def _logs(entries: Sequence[Any]) -> LogList:
    with reading("the list of logs"):
        last = entries[-1][0].decode() if entries else "0-0"
        return LogList([fields[1].decode() for _, fields in entries], last)


def _logged(entry: Sequence[Any]) -> Logged:
    with reading("an entry of the results log"):
        id_, (_, key, _, epoch, _, name, _, body, *own_at) = entry
        cursor = int(id_.partition(b"-")[0])
        at = int(own_at[1]) if own_at else cursor
        return Logged(cursor, key.decode(), int(epoch), Result(name.decode(), body), at / 1e6)
