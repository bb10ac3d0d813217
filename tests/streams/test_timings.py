"""How long things take in a node, as its metrics tell: by declared names, however many keys there are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.cluster.timings import Histogram
from holdfast.services.memory.slots import MemorySlot
from tests.streams.town import Town, TownNode

VIRTUAL = True
HANDLING_S = 0.2


class Item(msgspec.Struct):
    """A numbered message."""

    key: str
    n: int


class Echo(StreamHandler[Item]):
    """Returns what it gets."""

    async def process(self, message: Item, context: Context) -> Any:
        return message.n


def app() -> App:
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0)(Echo)
    return app


def count(histogram: Histogram) -> float:
    return histogram.buckets()[-1][1]


def series(node: TownNode) -> set[tuple[str, str]]:
    """The metrics with a label, and its values."""
    found = {(name, value) for name, timings in node.host.timings for value, _ in timings.items()}
    return found | {(numbers.name, value) for numbers in node.work.numbers() for value in numbers.values}


async def test_a_message_is_timed_from_its_receipt_to_its_commit(town: Town) -> None:
    node = await town.start(app())

    async def slow(slot: MemorySlot) -> None:
        await town.clock.sleep(HANDLING_S)

    for n in range(2):
        town.deeds[b'{"key": "k", "n": %d}' % n] = slow
    await town.send({"key": "k", "n": 0}, {"key": "k", "n": 1})
    await town.until_over()
    took = node.host.timings
    delivery, handler = took.delivery_seconds.of("s"), took.handler_seconds.of("s")
    assert (count(delivery), count(handler)) == (2, 2)
    assert HANDLING_S * 2 <= handler.sum_s < HANDLING_S * 3
    assert handler.sum_s < delivery.sum_s + 0.001
    assert count(took.commit_seconds.of("s")) == node.host.stats.commits
    assert count(took.stall_seconds.of("s")) == 0, "it changed no node"


@pytest.mark.slow
async def test_as_many_series_with_many_keys_as_with_few(town: Town) -> None:
    node = await town.start(app())
    await town.send(*({"key": f"k{n}", "n": 0} for n in range(10)))
    await town.until_over()
    few = series(node)
    assert ("delivery_seconds", "s") in few
    await town.send(*({"key": f"more{n}", "n": 0} for n in range(1000)))
    await town.until_over()
    assert series(node) == few


async def test_the_stall_of_a_fail_over_is_from_the_loss_to_the_first_commit(town: Town) -> None:
    a, b = await town.start(app(), "a"), await town.start(app(), "b")
    await town.send(*({"key": f"k{n}", "n": 0} for n in range(8)))
    await town.until_over()
    lost = [f"k{n}" for n in range(8) if a.owns(f"s/k{n}")]
    assert lost, "the streams are on both nodes"
    member = a.id
    await town.crash(a)
    await town.send(*({"key": key, "n": 1} for key in lost))
    await town.until(lambda: member not in b.host.membership.view)
    await town.until_over()
    stall = b.host.timings.stall_seconds.of("s")
    assert count(stall) == len(lost)
    assert 0.0 < stall.sum_s / len(lost) < 1.0
    await town.send(*({"key": key, "n": 2} for key in lost))
    await town.until_over()
    assert count(stall) == len(lost), "only their first commit there ends a stall"


@pytest.mark.slow
async def test_a_stream_without_work_does_not_stall(town: Town) -> None:
    a, b = await town.start(app(), "a"), await town.start(app(), "b")
    await town.send(*({"key": f"k{n}", "n": 0} for n in range(8)))
    await town.until_over()
    lost = [f"k{n}" for n in range(8) if a.owns(f"s/k{n}")]
    await town.crash(a)
    await town.clock.sleep(3600.0)
    await town.send(*({"key": key, "n": 1} for key in lost))
    await town.until_over()
    stall = b.host.timings.stall_seconds.of("s")
    assert count(stall) == len(lost)
    assert stall.sum_s < 1.0, "nothing waited in that hour"


async def test_the_stall_of_a_move_is_told_by_the_new_owner(town: Town) -> None:
    a = await town.start(app(), "a")
    await town.send({"key": "k", "n": 0})
    await town.until_over()
    b = await town.start(app(), "b")
    await town.until(lambda: b.id in a.host.membership.view)
    began = asyncio.Event()

    async def slow(slot: MemorySlot) -> None:
        began.set()
        await town.clock.sleep(HANDLING_S)

    town.deeds[b'{"key": "k", "n": 1}'] = slow
    await town.send({"key": "k", "n": 1}, {"key": "k", "n": 2})
    await began.wait()
    assert await a.work.moves.move("s/k", b.id) == ""
    await town.until_over()
    assert town.results("k") == [0, 1, 2]
    stall = b.host.timings.stall_seconds.of("s")
    assert count(stall) == 1
    assert 0.0 < stall.sum_s < HANDLING_S + 1.0, "it includes what the message took that ran"
    assert count(a.host.timings.stall_seconds.of("s")) == 0


async def test_the_oldest_message_that_waits_is_told(town: Town) -> None:
    node = await town.start(app())
    await town.send({"key": "k", "n": 1})
    await town.until(node.work.owners.with_messages)
    await town.clock.sleep(30.0)
    numbers = {each.name: each.values for each in node.work.numbers()}
    assert 29.0 < numbers["oldest_message_seconds"]["s"] < 32.0
    assert numbers["longest_wait_seconds"]["gap"] > 20.0
    assert numbers["longest_wait_seconds"]["parked"] == 0.0


async def test_loads_of_models_are_counted_and_undeclared_ones_together(town: Town) -> None:
    made = App("town")
    fails = [True]

    def load() -> str:
        if fails.pop() if fails else False:
            raise OSError("no such file")
        return "weights"

    made.model("weights", load)
    made.stream("s", message=Item, seq="n", first_seq=0, models="weights")(Echo)
    node = await town.start(made)
    await town.send({"key": "k", "n": 0})
    await town.until_over()
    node.work.pool.model_loads.update({f"made up {n}": 1 for n in range(3)})
    numbers = {each.name: each.values for each in node.work.numbers()}
    assert numbers["model_load_failures"] == {"weights": 1.0}
    assert numbers["model_loads"] == {"weights": 1.0, "(undeclared)": 3.0}
    assert numbers["models_loaded"] == {"weights": 1.0}


async def test_the_number_of_slots_at_work_is_told(town: Town) -> None:
    node = await town.start(app())
    began, go_on = asyncio.Event(), asyncio.Event()

    async def wait(slot: MemorySlot) -> None:
        began.set()
        await go_on.wait()

    town.deeds[b'{"key": "k", "n": 0}'] = wait
    await town.send({"key": "k", "n": 0})
    await began.wait()
    busy = {each.name: each.values for each in node.work.numbers()}
    assert busy["slots_busy"] == {"streams": 1}
    assert busy["slots_max"] == {"streams": 2}
    go_on.set()
    await town.until_over()
    assert {each.name: each.values for each in node.work.numbers()}["slots_busy"] == {"streams": 0}
