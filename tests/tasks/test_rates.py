"""A rate that holds over all nodes, and what it costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import App, Job
from holdfast.errors import ConfigError, Unavailable
from holdfast.ports.registry import Document
from holdfast.rules.tasks.concurrency import ConcurrencyLimits, limit
from holdfast.rules.tasks.fair_queue import Permits
from holdfast.rules.tasks.rates import WINDOW_S
from holdfast.rules.tasks.task import State
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.tasks.concurrency import document_name
from holdfast.tasks.rates import LOOK_AGAIN_S, LOOK_S, RateKeeper
from holdfast.testing import node_for_tests
from simulator.loop import SimClock
from simulator.tasks import APP, QUICK, PlannedTask, RanAttempt, TaskScenario, TaskWorld, check
from tests.cluster.fakes import Log
from tests.tasks.simulated import simulated
from tests.tasks.test_work import calm

VIRTUAL = True
RATE = 4.0


class Asked(MemoryRegistry):
    """A registry that counts its calls."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.calls: Counter[str] = Counter()
        self.away = False

    async def get(self, name: str) -> Document | None:
        self.calls["get"] += 1
        if self.away:
            raise Unavailable("no connection")
        return await super().get(name)

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        self.calls["put"] += 1
        return await super().put(name, body, expect)


class FakeHost:
    def __init__(self, clock: SimClock) -> None:
        self.clock, self.log = clock, Log()


class FakeNode:
    """Begins what it has permits for, if tasks wait."""

    def __init__(self, registry: Asked, clock: SimClock, rate: Callable[[], float] = lambda: RATE) -> None:
        self.clock, self.waiting, self.began = clock, 0, list[float]()
        self.answers_s: list[float] = []
        """How long the store takes for each of its next answers."""
        self.on_got: Callable[[], None] = self.begin
        self.permits = Permits(lambda _: rate())
        self.keeper = RateKeeper(
            registry,
            "a",
            FakeHost(clock),  # type: ignore[arg-type]
            self.permits,
            per_s=lambda _: rate(),
            now=self.now,
            lacking=lambda: {"t": self.waiting} if self.waiting and self.permits.left("t") < 1 else {},
            got=self.got,
        )
        self.task = asyncio.ensure_future(self.keeper.run())

    async def now(self) -> float:
        if self.answers_s:
            await self.clock.sleep(self.answers_s.pop(0))
        return self.clock.wall()

    def give(self, count: int) -> None:
        self.waiting += count
        self.keeper.wake()

    def begin(self) -> None:
        while self.waiting and self.permits.left("t") >= 1:
            self.permits.spend("t")
            self.waiting -= 1
            self.began.append(self.clock.monotonic())

    def got(self) -> None:
        self.on_got()

    def die(self) -> None:
        self.task.cancel()


def most_in(times: list[float], window_s: float) -> int:
    times = sorted(times)
    return max(sum(begin <= at < begin + window_s for at in times[i:]) for i, begin in enumerate(times))


@pytest.fixture
async def clock() -> SimClock:
    return SimClock(Random(1), "c")


async def test_three_nodes_keep_one_rate_together_and_each_gets_its_turn(clock: SimClock) -> None:
    nodes = [FakeNode(registry := Asked(clock), clock)]
    nodes += [FakeNode(registry, clock) for _ in range(2)]
    for node in nodes:
        node.give(1000)
    await clock.sleep(60.0)
    began = [at for node in nodes for at in node.began]
    assert RATE * 60 * 0.9 <= len(began) <= RATE * (60 + WINDOW_S)
    for window_s in (1.0, 5.0, 20.0):
        assert most_in(began, window_s) <= RATE * (window_s + WINDOW_S)
    assert all(len(node.began) > 30 for node in nodes)
    assert sum(registry.calls.values()) <= 3 * 60 * 2 / (LOOK_S / 2), "whatever waits"


async def test_a_clock_that_was_told_slowly_serves_for_once(clock: SimClock) -> None:
    """The store says what its clock shows, and a node can't know when within the call that was."""
    node = FakeNode(Asked(clock), clock)
    node.answers_s = [2.0, 0.01]
    assert abs(await node.keeper.wall() - clock.wall()) <= 1.0
    for _ in range(2):
        assert await node.keeper.wall() == pytest.approx(clock.wall(), abs=0.01)


async def test_where_nothing_waits_nothing_is_asked(clock: SimClock) -> None:
    registry = Asked(clock)
    node = FakeNode(registry, clock)
    await clock.sleep(3600.0)
    assert not registry.calls
    node.give(1)
    await clock.sleep(10.0)
    assert len(node.began) == 1
    calls = dict(registry.calls)
    await clock.sleep(3600.0)
    assert dict(registry.calls) == calls


async def test_what_a_node_took_that_died_costs_the_others_a_moment(clock: SimClock) -> None:
    registry = Asked(clock)
    first, second = FakeNode(registry, clock), FakeNode(registry, clock)
    first.give(1000)
    first.on_got = first.die  # all that it took dies with it
    await clock.sleep(0.1)
    assert registry.calls["put"] == 1
    second.give(1000)
    await clock.sleep(2.0)
    assert len(second.began) >= RATE / 2


async def test_another_rate_is_heeded_at_once_though_the_last_was_slow(clock: SimClock) -> None:
    rate = [0.001]
    node = FakeNode(Asked(clock), clock, lambda: rate[0])
    node.give(100)
    await clock.sleep(60.0)
    assert len(node.began) == 1, "of a thousand seconds"
    rate[0] = 10.0
    await clock.sleep(LOOK_AGAIN_S + 12.0)
    assert len(node.began) == 100


async def test_while_the_registry_is_away_nothing_begins_and_then_it_goes_on(clock: SimClock) -> None:
    registry = Asked(clock)
    registry.away = True
    node = FakeNode(registry, clock)
    node.give(10)
    await clock.sleep(60.0)
    assert node.began == []
    assert registry.calls["get"] < 60
    registry.away = False
    await clock.sleep(15.0)
    assert len(node.began) == 10


def rated(rates: dict[str, float], count: int) -> tuple[TaskScenario, dict[str, float]]:
    tasks = [PlannedTask(0.1, f"t{n}", QUICK, 0.05) for n in range(count)]
    return msgspec.structs.replace(calm(*tasks), nodes=3), rates


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [0, 6])
@simulated
async def test_the_nodes_of_an_app_keep_a_rate_that_an_operator_sets(maximum: int) -> None:
    """Beside a global limit too: permits are taken where there is room, and room is asked for."""
    scenario, rates = rated({QUICK: RATE}, 80)
    world = TaskWorld(scenario)
    limits = msgspec.json.encode(limit(ConcurrencyLimits(), maximum, rates=rates))
    await world.registry.put(document_name(APP), limits, 0)
    assert check(world, await world.live()) == []
    began = [event for event in world.log if isinstance(event, RanAttempt) and not event.end]
    times = [event.at for event in began]
    assert len(times) == 80
    for window_s in (1.0, 5.0):
        assert most_in(times, window_s) <= RATE * (window_s + 2 * WINDOW_S)
    assert max(times) - min(times) <= 80 / RATE * 1.25, "and it is used"
    nodes = Counter(task.node.partition(".")[0] for task in world.store.standing.values())
    assert len(nodes) == 3, "by all of them"


app = App("slow")


@app.task("tick", body=int, rate=2.0)
def tick(body: int, job: Job) -> int:
    return body


@app.task("free", body=int)
def free(body: int, job: Job) -> int:
    return body


@pytest.mark.nightly
def test_a_declared_rate_holds_and_delays_no_other_type() -> None:
    with node_for_tests(app) as node:
        ticks = [tick.send(n) for n in range(6)]
        assert node.outcome(free.send(7)).value == 7
        outcomes = [node.outcome(task_id) for task_id in ticks]
    began = sorted(outcome.started_at for outcome in outcomes)
    assert {outcome.state for outcome in outcomes} == {State.SUCCEEDED}
    assert began[-1] - began[0] >= (len(began) - 2 - 2 * WINDOW_S * 2.0) / 2.0
    assert most_in(began, 0.9) <= 2.0 * (0.9 + 2 * WINDOW_S)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), "10/s"])
def test_a_task_with_an_impossible_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigError, match="rate is "):
        App("a").task("t", rate=rate)(lambda body, job: None)


def test_a_rate_that_an_operator_takes_back_is_the_declared_one_again() -> None:
    limits = limit(ConcurrencyLimits(), rates={"a": 1.0, "b": 0.0})
    assert limits.rates == {"a": 1.0, "b": 0.0}
    assert limit(limits, maximum=5, rates={"a": None}).rates == {"b": 0.0}
