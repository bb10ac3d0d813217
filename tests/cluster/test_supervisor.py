"""The supervisor: nodes that die are evicted and started again; those that mean to end, end."""

import asyncio
import signal

import pytest

from holdfast.cluster.supervisor import SHORT_LIFE_S, Supervisor
from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from tests.cluster.fakes import Log, settle_down

VIRTUAL = True
FINAL = (0, 2)
DRAIN_S = 20.0


class Child:
    """A process that ends on SIGTERM, or only on SIGKILL."""

    def __init__(self, pid: int, name: str, obedient: bool) -> None:
        self.pid = pid
        self.name = name
        self.signals: list[int] = []
        self._obedient = obedient
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int) -> None:
        self._code.set_result(code)

    def send_signal(self, number: int) -> None:
        if self._code.done():
            raise ProcessLookupError
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.end(-signal.SIGKILL)
        elif self._obedient:
            self.end(0)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)


class House:
    """A supervisor, the children it started, and its coordinator."""

    def __init__(self, clock: Clock) -> None:
        self.children: list[Child] = []
        self.started_at: list[float] = []
        self.log = Log()
        self.coordinator = MemoryCoordinator(clock)
        self.obedient = True
        self.refusals = 0
        self.clock = clock
        self.supervisor = self.make(self.coordinator)

    def make(self, coordinator: MemoryCoordinator) -> Supervisor:
        return Supervisor(
            coordinator,
            self.clock,
            self.launch,
            ["a", "b"],
            self.log,
            final=FINAL,
            drain_timeout_s=DRAIN_S,
        )

    async def launch(self, name: str) -> Child:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("no more processes")
        self.children.append(Child(100 + len(self.children), name, self.obedient))
        self.started_at.append(self.clock.monotonic())
        return self.children[-1]

    async def join(self, child: Child) -> None:
        member = Member(f"id-{child.name}", child.name, "sim://x")
        await self.coordinator.join(member, 1e6)

    async def members(self) -> list[str]:
        return [member.name for member in await self.coordinator.members()]


@pytest.fixture
async def house(clock: Clock) -> House:
    made = House(clock)
    await made.supervisor.start()
    await settle_down()
    return made


def parts(children: list[Child]) -> list[str]:
    return [child.name.rpartition("-")[0] for child in children]


async def test_a_node_that_dies_is_evicted_and_started_again_at_once(house: House) -> None:
    a, b = house.children
    await house.join(a)
    await house.join(b)
    a.end(-signal.SIGKILL)
    await settle_down()
    assert await house.members() == [b.name]
    assert parts(house.children) == ["a", "b", "a"]
    assert house.started_at[2] == house.started_at[0]
    assert house.supervisor.lives["a"].child is house.children[2]
    assert ("warning", "node died", {"node": a.name, "pid": a.pid, "cause": "SIGKILL"}) in house.log.entries


async def test_each_life_has_a_name_of_its_own(house: House) -> None:
    for _ in range(4):
        house.children[-1].end(1)
        await settle_down()
        await house.clock.sleep(60)
    names = [child.name for child in house.children]
    assert len(set(names)) == len(names)


async def test_a_successor_is_never_evicted_for_its_predecessor(house: House) -> None:
    """It may join before the supervisor has got round to the eviction."""
    a, _ = house.children
    await house.join(Child(1, "a-other", obedient=True))
    a.end(1)
    await settle_down()
    assert await house.members() == ["a-other"]


async def test_one_that_keeps_dying_is_started_ever_more_rarely(house: House) -> None:
    began_at = house.clock.monotonic()
    gaps = []
    for _ in range(12):
        (newest,) = (life.child for name, life in house.supervisor.lives.items() if name == "b")
        count = len(house.children)
        newest.end(1)  # type: ignore[attr-defined]
        at = house.clock.monotonic()
        while len(house.children) == count:
            await house.clock.sleep(0.01)
        gaps.append(house.clock.monotonic() - at)
    assert gaps[0] <= 0.02
    assert 0.2 < gaps[1] < 0.6
    assert 10 < gaps[-1] <= 31
    assert house.clock.monotonic() - began_at > 60


async def test_a_long_life_makes_up_for_failures(house: House) -> None:
    for _ in range(2):
        house.supervisor.lives["b"].child.end(1)  # type: ignore[attr-defined]
        await house.clock.sleep(5)
    await house.clock.sleep(SHORT_LIFE_S)
    count = len(house.children)
    house.supervisor.lives["b"].child.end(1)  # type: ignore[attr-defined]
    await settle_down()
    assert len(house.children) == count + 1


async def test_a_process_that_can_not_be_started_is_tried_again(clock: Clock) -> None:
    house = House(clock)
    house.refusals = 3
    await house.supervisor.start()
    await clock.sleep(10)
    assert sorted(parts(house.children)) == ["a", "b"]
    assert house.log.events("error") == ["cannot start a node"] * 3


@pytest.mark.parametrize("code", FINAL)
async def test_nodes_that_mean_to_end_stay_away(house: House, code: int) -> None:
    a, b = house.children
    a.end(code)
    await house.clock.sleep(100)
    assert not house.supervisor.ended.is_set()
    b.end(0)
    await settle_down()
    assert house.supervisor.ended.is_set()
    assert house.supervisor.codes == {"a": code, "b": 0}
    assert len(house.children) == 2


async def test_a_stop_lets_all_drain_together(house: House) -> None:
    await house.supervisor.stop()
    assert [child.signals for child in house.children] == [[signal.SIGTERM]] * 2
    assert house.supervisor.codes == {"a": 0, "b": 0}


async def test_who_does_not_drain_in_time_is_killed(clock: Clock) -> None:
    house = House(clock)
    house.obedient = False
    await house.supervisor.start()
    await settle_down()
    began_at = clock.monotonic()
    await house.supervisor.stop()
    assert clock.monotonic() - began_at == pytest.approx(DRAIN_S)
    assert [child.signals for child in house.children] == [[signal.SIGTERM, signal.SIGKILL]] * 2
    assert house.log.events("warning") == ["drain timed out; nodes killed"]


async def test_a_kill_ends_a_stop_at_once(clock: Clock) -> None:
    house = House(clock)
    house.obedient = False
    await house.supervisor.start()
    await settle_down()
    for child in house.children:
        await house.join(child)
    stopping = asyncio.ensure_future(house.supervisor.stop())
    await settle_down()
    house.supervisor.kill()
    await stopping
    assert house.supervisor.codes == {"a": -signal.SIGKILL, "b": -signal.SIGKILL}
    assert await house.members() == []


async def test_a_stop_ends_the_wait_before_another_try(house: House) -> None:
    for _ in range(5):
        if "b" in house.supervisor.lives:
            house.supervisor.lives["b"].child.end(1)  # type: ignore[attr-defined]
        await settle_down()
    assert "b" not in house.supervisor.lives
    began_at = house.clock.monotonic()
    await house.supervisor.stop()
    assert house.clock.monotonic() == began_at
    assert house.supervisor.codes == {"a": 0, "b": 1}


async def test_a_child_started_while_stopping_is_told(clock: Clock) -> None:
    house = House(clock)
    gate = asyncio.Event()
    launch = house.launch

    async def slow(name: str) -> Child:
        await gate.wait()
        return await launch(name)

    house.launch = slow  # type: ignore[method-assign]
    supervisor = house.make(house.coordinator)
    await supervisor.start()
    stopping = asyncio.ensure_future(supervisor.stop())
    await settle_down()
    gate.set()
    await stopping
    assert [child.signals for child in house.children] == [[signal.SIGTERM]] * 2


class Down(MemoryCoordinator):
    """A coordinator that can't be reached."""

    async def members(self) -> list[Member]:
        raise Unavailable("no connection")


async def test_without_a_coordinator_nodes_are_started_all_the_same(clock: Clock) -> None:
    house = House(clock)
    supervisor = house.make(Down(clock))
    await supervisor.start()
    await settle_down()
    house.children[0].end(1)
    await settle_down()
    assert parts(house.children) == ["a", "b", "a"]
    assert "cannot evict a dead node" in house.log.events("warning")
