"""Loads are measured, told, and evened out."""

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.cluster.rules.balance import STREAM_LOAD
from holdfast.common.protocol import Done, Drain, Explain
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.loads import Loads
from simulator.loop import SimClock
from tests.streams.town import LIMITS, Town

VIRTUAL = True


async def test_a_load_is_smoothed_and_fades() -> None:
    clock = SimClock(Random(0), "loads")
    loads = Loads(clock)
    for _ in range(10):
        loads.note("k", 0.5)
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
    loads.note("k", 1.0)
    await clock.sleep(1.0)
    loads.roll()
    loads.roll()
    loads.note("k", 1.0)
    loads.forget("k")
    await clock.sleep(1.0)
    loads.roll()
    assert loads.busy == 0


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


async def test_idle_nodes_are_left_alone(town: Town) -> None:
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


async def test_an_operator_may_tell_a_node_to_end(town: Town) -> None:
    node = await town.start(app())
    assert await node.peer.call(node.peer.address, Drain(node.id), 1.0) == Done()
    assert node.host.told_to_drain.is_set()


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
