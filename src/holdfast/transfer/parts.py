"""Compares two sides of a part, such as all checkpoints, item by item in their common order, page by page."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

PAGE = 100
"""Items that are read at a time."""

WRITES = 500
"""The most items that are written at a time."""

WRITE_BYTES = 16 << 20
"""The most bytes of large records that are written at a time, unless a single one is larger."""


class Item(NamedTuple):
    """Something that is to be on both sides. Items of a side come in the order of their ``place``. ``digest``
    is the same for what means the same, and ``name`` is for people. ``size`` is about that of the record in
    bytes, where it may be large."""

    place: Any
    name: str
    digest: bytes
    record: Any
    size: int = 0


Verdict = Literal["same", "missing", "differs", "extra"]
"""How the target has an item: ``missing`` if only the source has it, ``extra`` if only the target does."""

Read = Callable[[], AsyncIterator[Item]]


@dataclass(frozen=True, slots=True)
class Part:
    """Items of one kind. ``write`` adds some to the target, in order; it is called once with none at the
    end."""

    name: str
    source: Read
    target: Read
    write: Callable[[Sequence[Any]], Awaitable[None]]


class PartReport(msgspec.Struct):
    """The comparison of both sides of a part: how many items each has, and a digest of all of them.
    ``difference`` names the first item that isn't the same, and says how; empty if all are."""

    part: str
    source: int
    target: int
    source_digest: str
    target_digest: str
    difference: str = ""


def digest(record: Any) -> bytes:
    """Return the digest of a record that JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(record)).digest()


async def compared(part: Part) -> AsyncIterator[tuple[Verdict, Item]]:
    """Yield what is on either side, in order."""
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
    """Return what the target has that the source hasn't, or has otherwise, and whether there is anything on
    either side."""
    is_empty = await anext(part.target(), None) is None
    if is_empty:
        return "", await anext(part.source(), None) is not None
    async for verdict, item in compared(part):
        if verdict in ("differs", "extra"):
            return _told(part, verdict, item), True
    return "", True


async def copy(part: Part, note: Callable[[int], None]) -> int:
    """Write what is missing to the target; returns how many items that were."""
    count, batch, size = 0, list[Any](), 0
    async for verdict, item in compared(part):
        if verdict != "missing":
            continue
        if batch and (len(batch) == WRITES or size + item.size > WRITE_BYTES):
            await part.write(batch)
            count += len(batch)
            note(count)
            batch, size = [], 0
        batch.append(item.record)
        size += item.size
    if batch:
        await part.write(batch)
    await part.write([])
    return count + len(batch)


async def report(part: Part, note: Callable[[int], None]) -> PartReport:
    """Read both sides to their ends."""
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
            difference = _told(part, verdict, item)
        note(counts[0])
    ours, theirs = (each.hexdigest() for each in hashes)
    return PartReport(part.name, counts[0], counts[1], ours, theirs, difference)


def _told(part: Part, verdict: Verdict, item: Item) -> str:
    said = {
        "missing": "is not in the target",
        "differs": "is not the same in the target",
        "extra": "is only in the target",
    }
    return f"{part.name}: {item.name} {said[verdict]}"
