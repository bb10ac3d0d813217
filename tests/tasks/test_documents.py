"""Records in the registry."""

import asyncio
from random import Random

import msgspec
import pytest

from holdfast.errors import InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.ports.registry import Document
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.tasks.discovery import Listing
from holdfast.tasks.documents import change, record_in
from simulator.loop import SimClock

VIRTUAL = True


class Sum(msgspec.Struct, frozen=True):
    total: int = 0


class Forgetful(MemoryRegistry):
    """Loses every other answer of a write."""

    writes = 0

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        done = await super().put(name, body, expect)
        self.writes += 1
        if self.writes % 2:
            raise OutcomeUnknown("no answer")
        return done


def test_a_document_is_read_as_record() -> None:
    assert record_in(None, Sum) == Sum()
    assert record_in(Document("d", 1, b'{"total":3,"later":1}'), Sum) == Sum(3)


@pytest.mark.parametrize("junk", [b"", b"junk", b"[]", b'{"total":"\xff"}', b"[" * 100_000])
def test_what_is_no_record_is_an_error_of_ours(junk: bytes) -> None:
    with pytest.raises(InvalidMessage, match="document d in the registry"):
        record_in(Document("d", 1, junk), Sum)


def test_text_in_a_record_that_is_not_utf_8_is_an_error_of_ours() -> None:
    with pytest.raises(InvalidMessage, match="document d in the registry"):
        record_in(Document("d", 1, b'{"settings":{"a":"\xff"}}'), Listing)


class Part(msgspec.Struct, frozen=True):
    size: int = 0


class Whole(msgspec.Struct, frozen=True):
    parts: dict[str, Part] = {}
    words: tuple[str, ...] = ()


LATER = {
    "parts": {"a": {"size": 1, "colour": "red"}, "b": {"size": 2, "colour": "blue"}},
    "words": ["x"],
    "rate": {"s": 1},
}


async def test_what_a_newer_version_has_added_to_a_document_stays_when_this_one_changes_it() -> None:
    clock = SimClock(Random(0), "clock")
    registry = MemoryRegistry(clock)
    await registry.put("d", msgspec.json.encode(LATER), 0)
    after = Whole({"a": Part(7), "c": Part(3)}, ("y", "z"))
    assert await change(registry, clock, "d", Whole, lambda record: after) == after
    document = await registry.get("d")
    assert document is not None
    assert msgspec.json.decode(document.body) == {
        "parts": {"a": {"size": 7, "colour": "red"}, "c": {"size": 3}},
        "words": ["y", "z"],
        "rate": {"s": 1},
    }
    assert record_in(document, Whole) == after


async def test_a_document_that_can_not_be_read_is_written_anew() -> None:
    clock = SimClock(Random(0), "clock")
    registry = MemoryRegistry(clock)
    await registry.put("d", b"junk", 0)
    assert await change(registry, clock, "d", Sum, lambda record: Sum(record.total + 1)) == Sum(1)
    assert record_in(await registry.get("d"), Sum) == Sum(1)


async def test_changes_of_many_at_once_all_count() -> None:
    clock = SimClock(Random(0), "clock")
    registry = MemoryRegistry(clock)

    async def add() -> None:
        await change(registry, clock, "d", Sum, lambda record: Sum(record.total + 1))

    await asyncio.gather(*(add() for _ in range(9)))
    assert record_in(await registry.get("d"), Sum) == Sum(9)


async def test_lost_answers_are_looked_for_and_junk_is_replaced() -> None:
    clock = SimClock(Random(0), "clock")
    registry = Forgetful(clock)
    await MemoryRegistry.put(registry, "d", b"junk", 0)
    assert await change(registry, clock, "d", Sum, lambda record: Sum(7)) == Sum(7)
    assert registry.writes == 1


async def test_a_change_that_others_always_outrun_is_unavailable() -> None:
    clock = SimClock(Random(0), "clock")

    class Busy(MemoryRegistry):
        async def put(self, name: str, body: bytes, expect: int) -> Document | None:
            return None

    with pytest.raises(Unavailable, match="others wrote first"):
        await change(Busy(clock), clock, "d", Sum, lambda record: Sum(1))
