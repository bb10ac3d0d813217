"""Metrics of services: read when the page is read, and left out if unknown."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.service_metrics import FREE_EVERY_S, PAID_EVERY_S, ServiceMetrics
from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Depth
from holdfast.ports.state import DatabaseHealth, Risk
from tests.cluster.fakes import make_host

VIRTUAL = True


class AskedQueue:
    """A queue that is only asked for its depth."""

    def __init__(self, *, linger_s: float = 0.0, tells_lag: bool = True) -> None:
        self.linger_s, self.tells_lag = linger_s, tells_lag
        self.asked = 0
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def depth(self) -> Depth:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return Depth(ready=5, in_flight=3, delayed=2, dead=1, lag_s=60.0)


class Rig:
    def __init__(self, clock: Clock, tasks: Tasks, **queues: AskedQueue) -> None:
        self.clock = clock
        self.risks: list[tuple[str, Risk]] = []
        self.health: dict[str, DatabaseHealth] = {}
        made: Any = queues
        self.metrics = ServiceMetrics(make_host(clock, tasks), made, self._risks, self._health)

    async def _risks(self) -> list[tuple[str, Risk]]:
        return self.risks

    async def _health(self) -> dict[str, DatabaseHealth]:
        return self.health

    async def read(self) -> dict[tuple[str, ...], float]:
        """The samples, by name and values of labels."""
        await self.metrics.refresh()
        return {
            (sample.name.removeprefix("holdfast_"), *sample.labels.values()): sample.value
            for family in self.metrics.collect()
            for sample in family.samples
        }


async def test_a_queue_tells_its_depth_and_the_age_of_its_oldest_message(clock: Clock, tasks: Tasks) -> None:
    found = await Rig(clock, tasks, s=AskedQueue()).read()
    states = ("ready", "in_flight", "delayed", "dead")
    assert [found["queue_messages", "s", state] for state in states] == [5, 3, 2, 1]
    assert found["queue_age_seconds", "s"] == 60.0
    assert found["queues_unknown",] == 0.0


async def test_a_queue_that_does_not_know_the_age_has_none(clock: Clock, tasks: Tasks) -> None:
    found = await Rig(clock, tasks, s=AskedQueue(tells_lag=False)).read()
    assert ("queue_age_seconds", "s") not in found


async def test_a_depth_that_is_not_known_is_not_told_as_zero(clock: Clock, tasks: Tasks) -> None:
    broken, well = AskedQueue(), AskedQueue()
    rig = Rig(clock, tasks, broken=broken, well=well)
    assert ("queue_messages", "broken", "ready") in await rig.read()
    broken.error = Unavailable("away")
    await clock.sleep(FREE_EVERY_S)
    found = await rig.read()
    assert not any("broken" in labels for labels in found), "what it said before is over"
    assert found["queue_messages", "well", "ready"] == 5.0
    assert found["queues_unknown",] == 1.0
    broken.error = None
    await clock.sleep(FREE_EVERY_S)
    assert (await rig.read())["queues_unknown",] == 0.0


async def test_an_adapter_that_fails_badly_ends_no_node(clock: Clock, tasks: Tasks) -> None:
    broken = AskedQueue()
    broken.error = ZeroDivisionError()
    assert (await Rig(clock, tasks, s=broken).read())["queues_unknown",] == 1.0


async def test_many_readers_ask_no_more_often(clock: Clock, tasks: Tasks) -> None:
    free, paid = AskedQueue(), AskedQueue(linger_s=0.1)
    rig = Rig(clock, tasks, free=free, paid=paid)
    for _ in range(10):
        await asyncio.gather(*(rig.read() for _ in range(5)))
        await clock.sleep(PAID_EVERY_S / 10)
    assert free.asked <= PAID_EVERY_S / FREE_EVERY_S + 1
    assert paid.asked == 1


async def test_a_service_that_hangs_holds_nobody_up_for_long(clock: Clock, tasks: Tasks) -> None:
    slow, well = AskedQueue(), AskedQueue()
    slow.answers.clear()
    rig = Rig(clock, tasks, slow=slow, well=well)
    began_at = clock.monotonic()
    found = await rig.read()
    assert clock.monotonic() - began_at <= 2.0
    assert found["queues_unknown",] == 1.0
    assert ("queue_messages", "slow", "ready") not in found
    await rig.read()
    assert slow.asked == 1, "the first question isn't answered yet"
    slow.answers.set()
    await clock.sleep(0.0)
    assert ("queue_messages", "slow", "ready") in await rig.read()


async def test_a_slow_service_is_asked_less_often(clock: Clock, tasks: Tasks) -> None:
    slow = AskedQueue()
    rig = Rig(clock, tasks, slow=slow)
    slow.answers.clear()
    await asyncio.gather(rig.read(), _later(clock, slow.answers))
    for _ in range(4):
        await clock.sleep(FREE_EVERY_S)
        await rig.read()
    assert slow.asked == 1, "an answer took a second"


async def _later(clock: Clock, event: asyncio.Event) -> None:
    await clock.sleep(1.0)
    event.set()


async def test_the_risks_of_stores_and_the_health_of_databases_are_told(clock: Clock, tasks: Tasks) -> None:
    rig = Rig(clock, tasks)
    rig.risks = [("state_url", Risk("", "failed", "it stores nothing", "set appendonly"))]
    rig.health = {
        "state_url": DatabaseHealth({"transaction": 900.0}, {"slot": 4}, {"messages": 7}, {"messages": 2})
    }
    found = await rig.read()
    assert (found["store_risks", "failed"], found["store_risks", "warning"]) == (1.0, 0.0)
    assert found["database_snapshot_seconds", "state_url", "transaction"] == 900.0
    assert found["database_snapshot_transactions", "state_url", "slot"] == 4.0
    assert found["database_rows", "state_url", "messages", "dead"] == 7.0
    assert found["database_rows", "state_url", "messages", "live"] == 2.0
