"""Committed results as programs read them: all of a stream, or on from where a named reader has come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from holdfast import (
    App,
    AsyncClient,
    Client,
    Context,
    ReaderLost,
    ResultsExpired,
    Stream,
    StreamHandler,
    StreamResult,
)
from holdfast.config.settings import Config
from holdfast.ports.registry import Document
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.streams.results import Reader
from holdfast.testing import NodeForTests, node_for_tests
from holdfast.wiring.services import Services

app = App("metering")


@dataclass
class Reading:
    meter: str
    number: int
    kwh: float


@dataclass
class Meter:
    kwh: float = 0.0


@app.stream("readings", key="meter", seq="number", first_seq=0)
def add(reading: Reading, meter: Meter, context: Context) -> float:
    meter.kwh += reading.kwh
    context.wake("report", after_s=0)
    return meter.kwh


@add.on_timer("report")
def report(meter: Meter) -> None: ...


@add.on_query
def ask(factor: float, meter: Meter) -> float:
    return meter.kwh * factor


@app.stream("bytes")
class Own(StreamHandler[dict[str, int]]):
    def process(self, message: dict[str, int], context: Context) -> bytes:
        return b"\xff"

    def snapshot(self) -> bytes:
        return b"own"


@pytest.fixture(scope="module")
def node() -> Iterator[NodeForTests]:
    with node_for_tests(app) as node:
        add.send_many(Reading("m0", number, 1.0) for number in range(5))
        node.results("readings", 5)
        yield node


def values(results: Iterator[StreamResult[float]], count: int | None = None) -> list[float]:
    """Take some results, or all."""
    found = []
    for result in results:
        found.append(result.value)
        if len(found) == count:
            break
    return found


@pytest.mark.usefixtures("node")
def test_results_come_in_order_with_their_places() -> None:
    first, *_, last = list(add.results())
    assert (first.key, first.run, first.seq, first.value, first.timer) == ("m0", 0, 0, 1.0, "")
    assert (last.seq, last.value) == (4, 5.0)
    assert last.cursor > first.cursor
    assert last.at > 0
    assert values(add.results(after=first.cursor)) == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.usefixtures("node")
def test_a_named_reader_goes_on_behind_what_it_has_acknowledged() -> None:
    reading = add.results(reader="billing")
    assert [next(reading).value for _ in range(3)] == [1.0, 2.0, 3.0]
    reading.close()  # the third wasn't acknowledged: the next was never asked for
    assert values(add.results(reader="billing")) == [3.0, 4.0, 5.0]
    assert values(add.results(reader="billing")) == []
    assert values(add.results(reader="other")) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert values(add.results(reader="billing", after=0)) == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.usefixtures("node")
def test_the_newest_program_under_a_name_reads_on_and_the_other_loses() -> None:
    older = add.results(reader="shared")
    assert next(older).value == 1.0
    newer = add.results(reader="shared")
    assert next(newer).value == 1.0
    with pytest.raises(ReaderLost, match="another program reads stream 'readings' as 'shared' now"):
        list(older)
    assert values(newer) == [2.0, 3.0, 4.0, 5.0]


def test_a_reader_that_was_away_for_longer_than_results_are_kept_is_warned(
    node: NodeForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert values(add.results(reader="late"))[-1] == 5.0
    monkeypatch.setenv("HOLDFAST_RESULTS_KEEP_S", "0.000001")
    with Client(app, url=node.url) as client:
        with pytest.raises(ResultsExpired, match=r"some may have expired unread; pass after=\d+"):
            list(client.results("readings", reader="late"))
        assert values(client.results("readings")) == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_results_are_followed_without_blocking_a_loop(node: NodeForTests) -> None:
    results = add.aresults(reader="follower", follow=True)
    found = [await anext(results) for _ in range(5)]
    waiting = asyncio.ensure_future(anext(results))
    await asyncio.sleep(0)
    await add.asend_many([Reading("m1", 0, 7.0)])
    assert (await waiting).value == 7.0
    await results.aclose()
    assert [result.value for result in found] == [1.0, 2.0, 3.0, 4.0, 5.0]
    async with AsyncClient(app, url=node.url) as client:
        again = [result.value async for result in client.results("readings", reader="follower")]
    assert again == [7.0]


class DeafRegistry(MemoryRegistry):
    """A registry whose answer to the first change gets lost, so that it is sent again."""

    answers = False

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        if expect and not self.answers:
            self.answers = True
            await super().put(name, body, expect)
        return await super().put(name, body, expect)


async def test_a_reader_whose_save_was_answered_late_goes_on(node: NodeForTests) -> None:
    services = Services(Config(url=node.url))
    async with services:
        state, clock = services.state(), services.clock
        reader = Reader(DeafRegistry(clock), state, clock, "readings", "deaf", 60.0)
        assert [result.value async for result in reader.read(None, follow=False)][:2] == [1.0, 2.0]


@pytest.mark.usefixtures("node")
def test_state_and_queries_by_the_handle() -> None:
    state = add.state("m0")
    assert state == Meter(5.0)
    assert add.state("unknown") is None
    assert add.query("m0", 2.0).value == 10.0


def test_state_and_results_that_are_bytes_stay_bytes(node: NodeForTests) -> None:
    node.stream("bytes").send({"key": 1})
    (result,) = node.results("bytes", 1)
    assert result.value == b"\xff"
    assert app.client.state("bytes", 1) == b"own"


def test_a_stream_is_a_handle_and_a_function() -> None:
    assert isinstance(add, Stream)
    assert add.name == "readings"
