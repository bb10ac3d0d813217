"""Loads are measured, told, and evened out."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.protocol import Busiest, Done, Drain, Explain
from holdfast.rules.cluster.balance import STREAM_LOAD
from holdfast.rules.streams.activity import StreamActivity
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.loads import Loads
from simulator.loop import SimClock
from tests.streams.town import LIMITS, Town

VIRTUAL = True


async def test_a_load_is_smoothed_and_fades() -> None:
    clock = SimClock(Random(0), "loads")
    loads = Loads(clock)
    for _ in range(10):
        loads.note("k", 0.5, 1)
        await clock.sleep(1.0)
        loads.roll()
    assert loads.busy == pytest.approx(0.5)
    assert loads.of("k") == pytest.approx(0.5 + STREAM_LOAD)
    for _ in range(40):
        await clock.sleep(1.0)
        loads.roll()
    assert (loads.busy, loads.of("k")) == (0, STREAM_LOAD)


async def test_a_stream_that_left_has_no_load() -> None:
    clock = SimClock(Random(0), "loads")
    loads = Loads(clock)
    loads.note("k", 1.0, 1)
    await clock.sleep(1.0)
    loads.roll()
    loads.roll()
    loads.note("k", 1.0, 1)
    loads.forget("k")
    await clock.sleep(1.0)
    loads.roll()
    assert loads.busy == 0


async def test_a_rate_is_smoothed_as_its_load_is() -> None:
    clock = SimClock(Random(0), "loads")
    loads = Loads(clock)
    for _ in range(10):
        loads.note("k", 0.1, 3)
        loads.note("k", 0.1, 1)
        await clock.sleep(2.0)
        loads.roll()
    slots_busy, messages_per_s = loads.measured("k")
    assert slots_busy == pytest.approx(0.1)
    assert messages_per_s == pytest.approx(2.0)
    assert loads.measured("x").messages_per_s == 0
    assert loads.active == ["k"]


async def test_the_load_of_all_is_that_of_each_whatever_was_noted_and_forgotten() -> None:
    clock, random = SimClock(Random(0), "loads"), Random(1)
    loads, keys = Loads(clock), [f"k{n}" for n in range(8)]
    for _ in range(300):
        for key in random.sample(keys, random.randrange(len(keys))):
            loads.note(key, random.random(), 1)
        if random.random() < 0.2:
            loads.forget(random.choice(keys))
        await clock.sleep(1.0)
        loads.roll()
        assert loads.busy == pytest.approx(sum(loads.measured(key).slots_busy for key in keys))
        assert set(loads.active) == {key for key in keys if loads.measured(key).slots_busy > 0}


class Slow(StreamHandler[dict[str, Any]]):
    """Takes as long as its message says."""

    def process(self, message: dict[str, Any], context: Context) -> Any:
        return message["n"]


def app() -> App:
    made = App("t")
    made.stream("s", key="key", seq="n", first_seq=0)(Slow)
    return made


async def feed(town: Town, keys: int, seconds: float, busy_s: float) -> None:
    """Every key gets a message a second, which takes so long."""

    async def work(slot: MemorySlot) -> None:
        await town.clock.sleep(busy_s)

    for n in range(int(seconds)):
        for k in range(keys):
            body = b'{"key": "k%d", "n": %d}' % (k, n)
            town.deeds[body] = work
            await town.send(body)
        await town.clock.sleep(1.0)


@pytest.mark.slow
async def test_a_node_that_joins_gets_streams_of_those_that_are_hot(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, balance_s=5.0, rest_s=3.0, slots=4)
    a = await town.start(app(), "a", limits)
    feeding = asyncio.create_task(feed(town, 8, 60, 0.2))
    await town.clock.sleep(10)
    assert len(a.work.owners) == 8
    b = await town.start(app(), "b", limits)
    await feeding
    await town.until_over()
    assert 3 <= len(b.work.owners) <= 5
    for k in range(8):
        assert town.results(f"k{k}") == list(range(60)), "moves lose and reorder nothing"
    moves = town.nodes[0].host.stats.moved_out + b.host.stats.moved_out
    assert moves <= 6, "what is even is left alone"


async def test_no_stream_moves_between_idle_nodes(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, balance_s=5.0, rest_s=0.0)
    a = await town.start(app(), "a", limits)
    await town.send(*({"key": f"k{k}", "n": 0} for k in range(4)))
    await town.until_over()
    await town.start(app(), "b", limits)
    await town.clock.sleep(30)
    assert a.host.stats.moved_out == 0


async def test_a_node_tells_what_matters_for_a_stream(town: Town) -> None:
    node = await town.start(app())
    await town.send({"key": "k", "n": 0})
    await town.until_over()
    await town.clock.sleep(5)
    said = await node.peer.call(node.peer.address, Explain(node.id, "s", "s/k"), 1.0)
    assert isinstance(said, Done)
    told = msgspec.json.decode(said.text)
    assert told["here_s"] == pytest.approx(5, abs=0.5)
    assert told["rests_s"] == pytest.approx(LIMITS.rest_s - 5, abs=0.5)
    assert await node.peer.call(node.peer.address, Explain(node.id, "s", "s/x"), 1.0) == Done(
        ok=False, text="s/x is not owned here"
    )


async def test_a_node_tells_its_busiest_streams(town: Town) -> None:
    made = app()
    made.stream("other", key="key", seq="n", first_seq=0)(Slow)
    node = await town.start(made)

    async def busiest(by: str, most: int = 10, only: Sequence[str] = ()) -> list[StreamActivity]:
        request = Busiest(node.id, most, by, [*only])
        said = await node.peer.call(node.peer.address, request, 1.0)
        assert isinstance(said, Done)
        assert said.ok, said.text
        return msgspec.json.decode(said.text, type=list[StreamActivity])

    assert await busiest("load") == []
    feeding = asyncio.create_task(feed(town, 1, 20, 0.5))
    await town.clock.sleep(15)
    await town.send({"key": "k9", "n": 1}, {"key": "k9", "n": 2})  # wait for the one before them
    await town.clock.sleep(3)
    first, second = await busiest("load")
    assert (first.key, second.key) == ("s/k0", "s/k9")
    assert first.load == pytest.approx(0.5, abs=0.1)
    assert first.rate == pytest.approx(1.0, abs=0.2)
    assert first.time_s == pytest.approx(0.5, abs=0.1)
    assert (second.load, second.rate, second.time_s, second.waiting) == (0, 0, 0, 2)
    assert (await busiest("waiting"))[0].key == "s/k9"
    assert [each.key for each in await busiest("load", 1)] == ["s/k0"]
    assert await busiest("load", only=["other"]) == []
    refused = await node.peer.call(node.peer.address, Busiest(node.id, 10, "beauty"), 1.0)
    assert isinstance(refused, Done)
    assert not refused.ok
    await feeding


async def test_an_operator_may_tell_a_node_to_end(town: Town) -> None:
    node = await town.start(app())
    assert await node.peer.call(node.peer.address, Drain(node.id), 1.0) == Done()
    assert node.host.drain_requested.is_set()


@pytest.mark.parametrize("models", [(), "weights"])
async def test_streams_that_begin_in_a_burst_spread_over_the_nodes(town: Town, models: Any) -> None:
    """Though each node places what it receives, and one has its model loaded already."""
    made = App("town")
    made.model("weights", list)
    made.stream("s", message=dict, seq="n", first_seq=0, models=models)(lambda message, context: None)
    limits = msgspec.structs.replace(LIMITS, slots=8, balance_s=0.0)
    nodes = [await town.start(made, "a", limits)]
    await town.send({"key": "first", "n": 0})
    await town.until_over()
    nodes += [await town.start(made, name, limits) for name in "bc"]
    everybody = {node.id for node in nodes}
    await town.until(lambda: all({*node.host.membership.view} == everybody for node in nodes))
    await town.clock.sleep(2 * LIMITS.renew_s)
    await town.send(*({"key": f"k{k}", "n": 0} for k in range(6)))
    await town.until_over()
    counts = sorted(sum(entry.key != "s/first" for entry in node.work.owners) for node in nodes)
    assert counts in ([2, 2, 2], [1, 2, 3]), "six of six on one of them, before"
