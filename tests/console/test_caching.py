"""What is read once for all who ask."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.console.caching import SharedReads
from holdfast.errors import Unavailable


class Source:
    """Gives a new text at each read, once it may."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self.may = asyncio.Event()
        self.may.set()
        self.begun = asyncio.Event()
        self.reads: SharedReads[str] = SharedReads(lambda: self.now, 1.0, 2)

    async def read(self) -> str:
        self.count += 1
        text = f"text {self.count}"
        self.begun.set()
        await self.may.wait()
        return text

    async def get(self, name: str = "a") -> str:
        return await self.reads.get(name, self.read)


@pytest.fixture
async def source() -> Source:
    return Source()


async def test_all_who_ask_meanwhile_share_one_read_which_is_kept_for_a_time(source: Source) -> None:
    assert await asyncio.gather(*(source.get() for _ in range(3))) == ["text 1"] * 3
    source.now = 0.9
    assert await source.get() == "text 1"
    source.now = 1.0
    assert await source.get() == "text 2"


async def test_the_time_begins_when_it_is_read(source: Source) -> None:
    source.may.clear()
    first = asyncio.ensure_future(source.get())
    await source.begun.wait()
    source.now = 5.0
    source.may.set()
    assert [await first, await source.get()] == ["text 1", "text 1"]


async def test_a_read_that_failed_is_not_kept(source: Source) -> None:
    async def fail() -> str:
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        await source.reads.get("a", fail)
    assert await source.get() == "text 1"


async def test_the_oldest_read_is_dropped_when_too_many_are_kept(source: Source) -> None:
    assert [await source.get(name) for name in "abc"] == ["text 1", "text 2", "text 3"]
    assert [await source.get(name) for name in "cba"] == ["text 3", "text 2", "text 4"]


async def test_what_is_being_read_when_something_changes_is_given_to_nobody_later(source: Source) -> None:
    source.may.clear()
    before = asyncio.ensure_future(source.get())
    await source.begun.wait()
    source.reads.clear()
    source.may.set()
    assert [await source.get(), await before] == ["text 2", "text 1"]
    assert await source.get() == "text 2"


async def test_who_goes_away_ends_no_read_of_others(source: Source) -> None:
    source.may.clear()
    one = asyncio.ensure_future(source.get())
    await source.begun.wait()
    other = asyncio.ensure_future(source.get())
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    source.may.set()
    assert await other == "text 1"
