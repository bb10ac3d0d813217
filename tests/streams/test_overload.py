"""More requests than can be handled: who would wait in vain is told at once, what is taken is done in time,
and moves do not wait for the end of it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.message import Place
from holdfast.errors import Busy, NotOwner
from holdfast.streams.requests import ANSWERS_MIN, Pace
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
STREAMS = 10
HANDLING_S = 0.1
TIMEOUT_S = 10.0
ANSWERED = "answered"


class Slow(StreamHandler[bytes]):
    """Takes its time."""

    async def process(self, message: bytes, context: Context) -> Any:
        await asyncio.sleep(HANDLING_S if message else 0.001)
        return 1


def app(**settings: Any) -> App:
    made = App("t")
    made.stream("s", message=bytes, **settings)(Slow)
    return made


class Crowd:
    """Clients of all streams who ask twenty times as often as one slot can answer. They follow redirects."""

    def __init__(self, town: Town, nodes: list[TownNode]) -> None:
        self.town = town
        self.nodes = nodes
        self.came: Counter[str] = Counter()
        self.refused_after_s: list[float] = []
        self.waited_s: list[float] = []
        self.again_s: list[float] = []
        self._owner = [0] * STREAMS
        self._asking: set[asyncio.Task[None]] = set()

    async def ask_for(self, seconds: float, between: float = HANDLING_S / 20) -> None:
        """Ask at an even pace, whether earlier ones are answered or not."""
        for n in range(round(seconds / between)):
            self._asking.add(asyncio.create_task(self._ask(n)))
            await self.town.clock.sleep(between)

    async def answered(self) -> None:
        """Wait for all answers."""
        await asyncio.gather(*self._asking)

    async def _ask(self, n: int) -> None:
        stream, begun = n % STREAMS, self.town.clock.monotonic()
        passed: Callable[[], float] = lambda: self.town.clock.monotonic() - begun  # noqa: E731
        place = Place(0, 0, f"request {n}")
        while True:
            requests = self.nodes[self._owner[stream]].work.requests
            try:
                await requests.process("s", f"s/{stream}", place, b"x", {}, TIMEOUT_S - passed())
            except NotOwner:
                self._owner[stream] = 1
                continue
            except Busy as error:
                self.came["busy"] += 1
                self.refused_after_s.append(passed())
                self.again_s.append(error.retry_after_s)
            else:
                self.came[ANSWERED] += 1
                self.waited_s.append(passed())
            return


@pytest.mark.slow
async def test_who_would_wait_in_vain_is_told_at_once(town: Town) -> None:
    node = await town.start(app(inbox_limit=1000), limits=LIMITS)
    crowd = Crowd(town, [node])
    await crowd.ask_for(60)
    await crowd.answered()
    assert crowd.came.keys() == {ANSWERED, "busy"}
    assert max(crowd.refused_after_s) == 0
    assert min(crowd.again_s) >= 1
    assert max(crowd.waited_s) < TIMEOUT_S
    assert crowd.came[ANSWERED] * HANDLING_S > 50, "the slot is never idle"
    assert len(node.work.requests) == 0


@pytest.mark.slow
async def test_a_node_drains_in_time_while_it_is_overloaded(town: Town) -> None:
    nodes = [await town.start(app(inbox_limit=1000), name) for name in "ab"]
    crowd = Crowd(town, nodes)
    asking = asyncio.create_task(crowd.ask_for(30))
    await town.clock.sleep(15)
    begun = town.clock.monotonic()
    await nodes[0].node.stop()
    town.nodes.remove(nodes[0])
    assert town.clock.monotonic() - begun < 10
    assert nodes[0].log.events("info").count("drained") == 1
    await asking
    await crowd.answered()
    assert crowd.came.keys() == {ANSWERED, "busy"}
    assert max(crowd.waited_s) < TIMEOUT_S


async def test_a_message_that_others_wait_for_gets_in(town: Town) -> None:
    """Frame 1 is missing: all that is behind it waits, and the pace tells nothing."""
    node = await town.start(app(seq="n", first_seq=0))

    async def ask(n: int) -> Any:
        return (await node.work.requests.process("s", "s/k", Place(0, n), b"x", {}, TIMEOUT_S)).result

    await ask(0)
    waiting = [asyncio.create_task(ask(n)) for n in range(2, 30)]
    await town.clock.sleep(5)
    for n in range(ANSWERS_MIN):
        node.work.requests.pace.answered(float(n))
    assert node.work.requests.wait_s("s/k") > TIMEOUT_S
    assert await ask(1) == b"1"
    assert set(await asyncio.gather(*waiting)) == {b"1"}


async def test_no_more_wait_than_a_node_has_room_for(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, max_held=2)
    node = await town.start(app(seq="n", first_seq=0), limits=limits)
    ask = node.work.requests.process
    waiting = [asyncio.create_task(ask("s", "s/k", Place(0, n), b"x", {}, TIMEOUT_S)) for n in (1, 2)]
    await town.clock.sleep(0.1)
    with pytest.raises(Busy, match="max_held"):
        await ask("s", "s/other", Place(0, 0), b"x", {}, TIMEOUT_S)
    for task in waiting:
        task.cancel()


@pytest.mark.slow
async def test_after_a_pause_nobody_is_refused(town: Town) -> None:
    """The store was away for a while: what gathered is done in a moment."""
    node = await town.start(app(seq_kind="increasing", seq="n", checkpoint_after_ms=1.0))
    commit = town.state.commit
    away = asyncio.Event()

    async def late(*args: Any) -> Any:
        await away.wait()
        return await commit(*args)

    async def ask(n: int) -> Any:
        await node.work.requests.process("s", f"s/{n % 20}", Place(0, n), b"", {}, TIMEOUT_S)

    async def ask_for(first: int, count: int) -> list[asyncio.Task[Any]]:
        asked = []
        for n in range(first, first + count):
            asked.append(asyncio.create_task(ask(n)))
            await town.clock.sleep(0.006)
        return asked

    asked = await ask_for(0, 200)
    node.state.instead["commit"] = late
    asked += await ask_for(200, 400)
    away.set()
    asked += await ask_for(600, 200)
    await asyncio.gather(*asked)


def test_a_pace_is_that_of_the_last_answers_without_the_longest_pause() -> None:
    pace = Pace()
    for n in range(ANSWERS_MIN):
        assert pace.interval_s == 0
        pace.answered(100.0 + n)
    assert pace.interval_s == 1.0
    pace.answered(200.0)
    assert pace.interval_s == 1.0
    for n in range(1000):
        pace.answered(200.0 + n / 128)
    assert pace.interval_s == 1 / 128
    pace.rest()
    assert pace.interval_s == 0
