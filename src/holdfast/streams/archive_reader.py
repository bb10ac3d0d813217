"""Reads the messages of a stream from its archive, each once, in the order of its key."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta

from holdfast.common.message import Place
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.ports.objects import Objects
from holdfast.streams.archive import AGAIN, HOUR, ArchivedMessage, ObjectName, folder, read_line, segment

IN_PLACE = ("done", "skip", AGAIN)
"""The kinds of messages that are read: a commit has passed them in their place. Others were set aside."""

DAY = re.compile(r"\d{4}-\d\d-\d\d")
FEW_HOURS = 24 * 31
"""The most hours that are listed one by one."""

FIRST_HOUR, LAST_HOUR = "T00", "T23"


class Hours:
    """The hours from ``since`` to ``until``. Each of them is an hour such as ``2026-11-22T19``, or a day; ""
    for no limit. Raises ConfigError."""

    def __init__(self, since: str = "", until: str = "") -> None:
        self.since = _hour("since", since, FIRST_HOUR)
        self.until = _hour("until", until, LAST_HOUR)
        if self.until and self.since > self.until:
            raise ConfigError(f"--since {since} is after --until {until}: no hour is left")

    def __contains__(self, hour: str) -> bool:
        return self.since <= hour and (not self.until or hour <= self.until)

    def few(self) -> Iterator[str] | None:
        """Return all the hours if they are few; None if they are many, or have no limit on one side."""
        if not (self.since and self.until):
            return None
        first, last = (datetime.strptime(hour, HOUR).replace(tzinfo=UTC) for hour in (self.since, self.until))
        count = int((last - first) / timedelta(hours=1)) + 1
        if count > FEW_HOURS:
            return None
        return ((first + number * timedelta(hours=1)).strftime(HOUR) for number in range(count))


def _hour(option: str, text: str, of_day: str) -> str:
    hour = text + of_day if DAY.fullmatch(text) else text
    try:
        if hour and datetime.strptime(hour, HOUR).strftime(HOUR) != hour:  # noqa: DTZ007 - only its form counts
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--{option} {text} isn't an hour; write it as 2026-11-22T19, in UTC, or a day as 2026-11-22"
        ) from None
    return hour


class ArchiveReader:
    """Reads one stream's archive. Where a line can't be read, or an object vanishes meanwhile, ``on_broken``
    is called with the error, and may raise it.

    Attributes:
        left_out: how many messages were not given, by why: ``"set aside"`` by their commit, or ``"repeated"``
            in the archive.
    """

    def __init__(
        self,
        objects: Objects,
        stream: str,
        hours: Hours,
        *,
        ordered: bool,
        on_broken: Callable[[InvalidMessage], None],
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self._objects = objects
        self._stream = stream
        self._hours = hours
        self._ordered = ordered
        self._on_broken = on_broken

    async def objects(self, key: str | None) -> dict[str, list[str]]:
        """Return the URLs of the objects of a key, or of all keys, by the folders of their keys."""
        found: dict[str, list[str]] = {}
        for under in self._folders(key):
            async for url in self._objects.urls(under):
                name = ObjectName.of(url)
                if name is not None and name.hour in self._hours:
                    found.setdefault(name.key, []).append(url)
        return dict(sorted(found.items()))

    def _folders(self, key: str | None) -> Iterator[str]:
        """Yield where to look: of a key only in the hours that are meant, if they are few."""
        hours = self._hours.few() if key is not None else None
        if hours is None:
            yield folder(self._stream, key)
        else:
            yield from (f"{folder(self._stream, key)}/{segment(hour)}" for hour in hours)

    async def messages(self, urls: list[str]) -> AsyncIterator[ArchivedMessage]:
        """Yield the messages in the objects of one key.

        They come in the order of their commits. One that only came again, because the node that committed it
        has died before it wrote to the archive, comes in the place of its seq; without seqs it comes where
        it came again."""
        seen: dict[int, set[int | str]] = {}
        objects = sorted((name, url) for url in urls if (name := ObjectName.of(url)) is not None)
        objects.sort(key=lambda each: (each[0].epoch, each[0].number))
        again: list[tuple[Place, int, ArchivedMessage]] = []
        if self._ordered:
            for _, url in (each for each in objects if each[0].again):
                async for message in self._read(url):
                    again.append((message.place, len(again), message))
            heapq.heapify(again)
            objects = [each for each in objects if not each[0].again]
        for _, url in objects:
            async for message in self._read(url):
                while again and again[0][0] < message.place:
                    if self._is_new(seen, earlier := heapq.heappop(again)[2]):
                        yield earlier
                if self._is_new(seen, message):
                    yield message
        while again:
            if self._is_new(seen, last := heapq.heappop(again)[2]):
                yield last

    def _is_new(self, seen: dict[int, set[int | str]], message: ArchivedMessage) -> bool:
        places, place = seen.setdefault(message.run, set()), message.id or message.seq
        if place in places:
            self.left_out["repeated"] += 1
            return False
        places.add(place)
        return True

    async def _read(self, url: str) -> AsyncIterator[ArchivedMessage]:
        try:
            data = await self._objects.get(url)
        except FileNotFoundError:
            self._on_broken(InvalidMessage(f"{url} is no longer there: perhaps it was kept long enough"))
            return
        for number, line in enumerate(data.splitlines(), 1):
            try:
                message = read_line(line, f"{url} line {number}")
            except InvalidMessage as error:
                self._on_broken(error)
                continue
            if message.kind in IN_PLACE:
                yield message
            else:
                self.left_out["set aside"] += 1
