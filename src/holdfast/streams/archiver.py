"""Writes a stream's messages to its archive, after their commit and before they are deleted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from holdfast.cluster.deliveries import Settlement
from holdfast.cluster.host import Host
from holdfast.common.held import Held
from holdfast.common.redaction import redact
from holdfast.ports.objects import Objects
from holdfast.streams.archive import ArchivedMessage, archived, hour_of, lines_of, object_name
from holdfast.system.retrying import retry_call

LINGER_S = 2.0
"""Seconds for which committed messages wait for others of their key, to share an object. A client's request
doesn't wait."""

ENOUGH = 512
"""The number of messages that are written without waiting for more."""

PUTS_AT_ONCE = 8
"""The most objects that are written at once."""

OBJECT_BYTES_MAX = 8 << 20
"""The size at which an object is full. An object with a single commit may be larger."""

BACKLOG_SHARE = 2
"""The share of ``max_held`` (1/2) that may wait for the archive."""

LOG_EVERY_S = 5.0
"""Seconds between two log lines about an archive that is away."""


class Archiver:
    """Writes the messages of one stream to ``objects``. While the archive is away, what is committed waits,
    its deliveries are kept, and nothing else stops, until too much waits: then ``is_full``, and
    ``on_change`` is called, as it is when there is room again."""

    def __init__(self, stream: str, objects: Objects, host: Host, *, on_change: Callable[[], None]) -> None:
        self.waiting = 0
        """The number of committed messages that aren't in the archive yet."""
        self.is_full = False
        self.error = ""
        """The error of the last try; "" if it succeeded."""
        self.linger_s, self.enough = LINGER_S, ENOUGH
        self.on_change = on_change
        self._stream = stream
        self._objects = objects
        self._clock, self._log = host.clock, host.log
        self._retry = host.limits.retry
        self._waiting_max = max(1, host.limits.max_held // BACKLOG_SHARE)
        self._number = 0
        self._logged_at = -math.inf

    def expect(self, settlement: Settlement) -> None:
        """Note that a settlement is going to be written."""
        self.waiting += len(settlement.messages)
        self._set_full(self.is_full or self.waiting >= self._waiting_max)

    async def write(self, settlements: Sequence[Settlement]) -> None:
        """Write all messages of these settlements. Each settlement's ``archived`` is called as soon as its
        own messages are written."""
        room = asyncio.Semaphore(PUTS_AT_ONCE)
        with_messages = [item for item in settlements if item.messages]
        for item in settlements:
            if not item.messages:
                item.archived()
        async with asyncio.TaskGroup() as group:
            for items in self._objects_of(with_messages):
                group.create_task(self._write_object(room, items))

    def _objects_of(self, settlements: Iterable[Settlement]) -> Iterator[list[Settlement]]:
        """Group the settlements that share an object, in the order of their commits."""
        by_object: dict[tuple[object, ...], list[Settlement]] = {}
        for item in settlements:
            assert item.commit is not None
            place = item.key, hour_of(item.commit.at), item.commit.epoch, _came_again(item)
            by_object.setdefault(place, []).append(item)
        for items in by_object.values():
            yield from _cut(items)

    async def _write_object(self, room: asyncio.Semaphore, items: list[Settlement]) -> None:
        async with room:
            first = items[0]
            assert first.commit is not None
            key = first.key.partition("/")[2]
            self._number += 1
            name = object_name(self._stream, key, first.commit, self._number, again=_came_again(first))
            await self._put(name, lines_of(self._messages(key, items)))
        self.waiting -= sum(len(item.messages) for item in items)
        self._set_full(self.is_full and self.waiting > self._waiting_max // 2)
        for item in items:
            item.archived()

    def _messages(self, key: str, items: Iterable[Settlement]) -> Iterator[ArchivedMessage]:
        ahead_s = self._clock.wall() - self._clock.monotonic()
        for item in items:
            assert item.commit is not None
            for held in item.messages:
                yield archived(key, held, item.commit, _received_at(held, ahead_s))

    async def _put(self, name: str, data: bytes) -> None:
        """Put an object, and repeat that until it is answered. People can correct what is refused, such as a
        bucket that is missing, so that is repeated too."""

        def failed(error: Exception) -> None:
            self.error = redact(str(error))
            self._log_error()

        await retry_call(lambda: self._objects.put(name, data), self._clock, self._retry, failed)
        self.error = ""

    def _log_error(self) -> None:
        now = self._clock.monotonic()
        if now >= self._logged_at + LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "cannot archive messages",
                stream=self._stream,
                waiting=self.waiting,
                error=self.error,
            )

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            self.on_change()


def _came_again(item: Settlement) -> bool:
    """Return True for a settlement of a message that an earlier commit covers."""
    return not any(held.covered_as for held in item.messages)


def _received_at(held: Held, ahead_s: float) -> float:
    """Return the wall time of the first known delivery; 0 for the request of a client."""
    first = min((receipt.received_at for receipt in held.receipts), default=math.inf)
    return first + ahead_s if first < math.inf else 0.0


def _cut(items: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Divide settlements into objects of about ``OBJECT_BYTES_MAX``."""
    size = 0

    def number_of(item: Settlement) -> int:
        nonlocal size
        size += sum(len(held.body) for held in item.messages)
        return size // OBJECT_BYTES_MAX

    for _, some in groupby(items, key=number_of):
        yield list(some)
