"""The reader and writer of services' contents, and the comparison of two sides, item by item in their common
order."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from holdfast.ports.state import Logged, StateStore
from holdfast.rules.streams.ledger import Checkpoint

T = TypeVar("T")

PAGE = 100
"""Items of one read."""

KEYS_AT_ONCE = 1000
"""Checkpoints without their states of one read."""

WRITES = 500
"""Items of one write, at most."""

WRITE_BYTES = 16 << 20
"""Bytes of large records of one write, unless a single record is larger."""


async def pages(read: Callable[[T | None], Awaitable[list[T]]]) -> AsyncIterator[list[T]]:
    """Yield all pages; ``read`` gets the last record of the previous page."""
    last: T | None = None
    while page := await read(last):
        yield page
        last = page[-1]


def checkpoint_pages(state: StateStore) -> AsyncIterator[list[Checkpoint]]:
    """Yield pages of checkpoints, without states, by key."""
    return pages(lambda last: state.checkpoints(last.key if last else "", KEYS_AT_ONCE))


async def results_of(state: StateStore, after: int = 0, until: int = sys.maxsize) -> AsyncIterator[Logged]:
    """Yield the results with cursors above ``after``, up to ``until``."""
    while after < until and (page := await state.results(after, PAGE)):
        for logged in page:
            if logged.cursor <= until:
                yield logged
        after = page[-1].cursor


class Writer(Generic[T]):
    """Writes records in batches. ``note`` gets the number of written records so far."""

    def __init__(
        self, write: Callable[[Sequence[T]], Awaitable[None]], note: Callable[[int], None] = lambda _: None
    ) -> None:
        self._write = write
        self._note = note
        self._batch: list[T] = []
        self._bytes = 0
        self.count = 0

    async def add(self, record: T, size: int) -> None:
        """Add a record of ``size`` bytes."""
        if self._batch and (len(self._batch) == WRITES or self._bytes + size > WRITE_BYTES):
            await self.flush()
            self._note(self.count)
        self._batch.append(record)
        self._bytes += size

    async def flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if batch:
            await self._write(batch)
            self.count += len(batch)


class Item(NamedTuple):
    """A record that both sides should have. The items of a side come in the order of their ``place``. Equal
    records have equal digests; ``name`` is for people. ``size`` is about that of the record in bytes, if it
    may be large."""

    place: Any
    name: str
    digest: bytes
    record: Any
    size: int = 0


Verdict = Literal["same", "missing", "differs", "extra"]
"""The comparison of an item: ``missing`` if only the source has it, ``extra`` if only the target has it."""

Read = Callable[[], AsyncIterator[Item]]


@dataclass(frozen=True, slots=True)
class Part:
    """Items of one kind. ``write`` adds some to the target, in order; the last call has none."""

    name: str
    source: Read
    target: Read
    write: Callable[[Sequence[Any]], Awaitable[None]]


class PartReport(msgspec.Struct):
    """The comparison of both sides of a part: their numbers of items, and a digest of all items.
    ``difference`` describes the first item that differs, or is empty."""

    part: str
    source: int
    target: int
    source_digest: str
    target_digest: str
    difference: str = ""


def digest(record: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(record)).digest()


async def compared(part: Part) -> AsyncIterator[tuple[Verdict, Item]]:
    """Yield the items of both sides, in order."""
    source, target = part.source(), part.target()
    ours, theirs = await anext(source, None), await anext(target, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours.place < theirs.place):
            assert ours is not None
            yield "missing", ours
            ours = await anext(source, None)
        elif ours is None or theirs.place < ours.place:
            yield "extra", theirs
            theirs = await anext(target, None)
        else:
            yield ("same" if ours.digest == theirs.digest else "differs"), ours
            ours, theirs = await anext(source, None), await anext(target, None)


async def conflict(part: Part) -> tuple[str, bool]:
    """Return the first item that only the target has, or that differs, and whether either side has any
    items."""
    is_empty = await anext(part.target(), None) is None
    if is_empty:
        return "", await anext(part.source(), None) is not None
    async for verdict, item in compared(part):
        if verdict in ("differs", "extra"):
            return _difference(part, verdict, item), True
    return "", True


async def copy(part: Part, note: Callable[[int], None]) -> int:
    """Write the missing items to the target, and return how many."""
    writer = Writer[Any](part.write, note)
    async for verdict, item in compared(part):
        if verdict == "missing":
            await writer.add(item.record, item.size)
    await writer.flush()
    await part.write([])
    return writer.count


async def report(part: Part, note: Callable[[int], None]) -> PartReport:
    """Compare both sides to their ends."""
    counts, hashes = [0, 0], [hashlib.sha256(), hashlib.sha256()]
    difference = ""

    async def counted(read: Read, side: int) -> AsyncIterator[Item]:
        async for item in read():
            counts[side] += 1
            hashes[side].update(item.digest)
            yield item

    both = Part(part.name, lambda: counted(part.source, 0), lambda: counted(part.target, 1), part.write)
    async for verdict, item in compared(both):
        if verdict != "same" and not difference:
            difference = _difference(part, verdict, item)
        note(counts[0])
    ours, theirs = (each.hexdigest() for each in hashes)
    return PartReport(part.name, counts[0], counts[1], ours, theirs, difference)


def _difference(part: Part, verdict: Verdict, item: Item) -> str:
    texts = {
        "missing": "is not in the target",
        "differs": "is not the same in the target",
        "extra": "is only in the target",
    }
    return f"{part.name}: {item.name} {texts[verdict]}"
