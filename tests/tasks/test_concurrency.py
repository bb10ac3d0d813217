"""A node's share of the maximum, in virtual time and in any weather."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.registry import Document
from holdfast.rules.tasks import concurrency as rules
from holdfast.rules.tasks.concurrency import ConcurrencyLimits
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.tasks.concurrency import LEASE_S, UNLIMITED, ConcurrencyLimiter, document_name
from holdfast.tasks.documents import change
from simulator.faults import Faulty, ServiceLine, Weather
from simulator.loop import SimClock, run
from tests.cluster.fakes import make_host

PATIENCE_S = 300.0
FAIR = Weather()


class Town:
    """A registry, and what stands in it of one app."""

    def __init__(self, seed: int = 0, maximum: int = 0, per_node: int = 0) -> None:
        self.random = Random(seed)
        self.clock = SimClock(Random(seed), "world")
        self.registry = MemoryRegistry(self.clock)
        self.nodes: list[Node] = []
        self.limits = maximum, per_node

    async def set(
        self, maximum: int | None = None, per_node: int | None = None, strict: bool | None = None
    ) -> None:
        await change(
            self.registry,
            self.clock,
            document_name("app"),
            ConcurrencyLimits,
            lambda limits: rules.limit(limits, maximum, per_node, strict),
        )

    async def standing(self) -> ConcurrencyLimits:
        document = await self.registry.get(document_name("app"))
        return msgspec.json.decode(document.body, type=ConcurrencyLimits) if document else ConcurrencyLimits()

    async def node(self, weather: Weather = FAIR, rate: float = 1.0) -> "Node":
        if not self.nodes and any(self.limits):
            await self.set(*self.limits)
        node = Node(self, len(self.nodes), weather, rate)
        self.nodes.append(node)
        node.keeper.start()
        return node

    @property
    def running(self) -> int:
        return sum(node.running for node in self.nodes)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.clock.sleep(0.05)


class Quiet:
    """A log that nobody reads."""

    def warning(self, event: str, **fields: Any) -> None:
        pass


class Node:
    """A keeper behind a line of its own, and as many tasks as are running."""

    def __init__(self, town: Town, number: int, weather: Weather, rate: float) -> None:
        self.clock = SimClock(Random(number), f"n{number}", rate=rate, offset_s=number * 1e5)
        self.line = ServiceLine(self.clock.gate, Random(number), weather, Counter(), lambda: None)
        self.crashes: list[BaseException] = []
        self.tasks = Tasks(self.crashes.append)
        self.running = 0
        self.told: list[int] = []
        self.keeper = ConcurrencyLimiter(
            Faulty(town.registry, "registry", self.line),
            "app",
            make_host(self.clock, self.tasks, log=Quiet()),
            member=lambda: f"member-{number}",
        )
        self.keeper.holder = self

    def limits_changed(self) -> None:
        if self.told[-1:] != [self.keeper.granted]:
            self.told.append(self.keeper.granted)

    @property
    def granted(self) -> int:
        return self.keeper.granted

    async def crash(self) -> None:
        """End at once, with all that runs here."""
        self.running = 0
        await self.tasks.close()


def in_town(story: Callable[[Town], Coroutine[Any, Any, None]], **settings: int) -> None:
    """Play a story in virtual time."""

    async def play() -> None:
        town = Town(**settings)
        await story(town)
        for node in town.nodes:
            await node.tasks.close()
            assert node.crashes == []

    run(play())


def test_without_a_limit_nothing_is_written() -> None:
    async def story(town: Town) -> None:
        node = await town.node()
        assert node.granted == 0
        node.keeper.want(5)
        await town.until(lambda: node.granted > 0)
        assert node.granted == UNLIMITED
        await town.clock.sleep(100)
        assert await town.registry.list("") == []
        assert node.line.calls < 20
        await town.set(per_node=3)
        await town.until(lambda: node.granted == 3)
        assert node.told == [UNLIMITED, 3]

    in_town(story)


def test_one_node_gets_what_it_wants_and_gives_it_back() -> None:
    async def story(town: Town) -> None:
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        node.keeper.want(40)
        await town.until(lambda: node.granted == 10)
        node.keeper.want(0)
        await town.until(lambda: node.granted == 0)
        assert (await town.standing()).grants == {}
        node.keeper.want(2)
        await town.until(lambda: node.granted == 2)
        await node.keeper.leave()
        assert node.granted == 0
        assert (await town.standing()).grants == {}

    in_town(story, maximum=10)


def test_limits_that_a_newer_version_has_added_stay_while_grants_are_taken_and_given_back() -> None:
    async def story(town: Town) -> None:
        later = {"maximum": 10, "per_host": 3}
        await town.registry.put(document_name("app"), msgspec.json.encode(later), 0)
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        await node.keeper.leave()
        document = await town.registry.get(document_name("app"))
        assert document is not None
        assert msgspec.json.decode(document.body)["per_host"] == 3
        assert (await town.standing()).grants == {}

    in_town(story)


def test_a_grant_stands_for_hours_at_few_writes() -> None:
    async def story(town: Town) -> None:
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        calls = node.line.calls
        for _ in range(36):
            await town.clock.sleep(100)
            assert node.granted == 4
        assert node.line.calls - calls < 3 * 3600 / 10
        assert node.told == [4]

    in_town(story, maximum=10)


def test_nodes_share_and_who_has_too_much_shrinks_as_its_tasks_end() -> None:
    async def story(town: Town) -> None:
        first, second = await town.node(), await town.node()
        first.keeper.want(50)
        await town.until(lambda: first.granted == 10)
        first.running = 10
        second.keeper.want(50)
        await town.until(lambda: first.granted == 5)
        assert second.granted == 0
        first.running = 7
        first.keeper.want(50)
        await town.until(lambda: second.granted == 3)
        first.running = 5
        first.keeper.want(50)
        await town.until(lambda: second.granted == 5)
        await first.keeper.leave()
        await town.until(lambda: second.granted == 10)

    in_town(story, maximum=10)


def test_what_a_dead_node_had_is_free_after_its_lease() -> None:
    async def story(town: Town) -> None:
        first, second = await town.node(), await town.node()
        first.keeper.want(50)
        await town.until(lambda: first.granted == 10)
        await first.crash()
        crashed_at = town.clock.monotonic()
        second.keeper.want(50)
        await town.until(lambda: second.granted == 10)
        assert LEASE_S / 2 < town.clock.monotonic() - crashed_at < 2 * LEASE_S

    in_town(story, maximum=10)


def test_cut_off_a_node_keeps_its_grant_until_the_lease_is_over() -> None:
    async def story(town: Town) -> None:
        node, other = await town.node(), await town.node()
        node.keeper.want(50)
        await town.until(lambda: node.granted == 10)
        node.line.cut["registry"] = None
        cut_at = town.clock.monotonic()
        other.keeper.want(50)
        await town.until(lambda: node.granted == 0)
        assert town.clock.monotonic() - cut_at > LEASE_S / 2
        await town.until(lambda: other.granted > 0)
        await town.until(lambda: node.told[-1] == 0)
        node.line.cut.clear()
        await town.until(lambda: node.granted == other.granted == 5)

    in_town(story, maximum=10)


def test_what_runs_ends_before_others_have_its_grant_unless_told_otherwise() -> None:
    async def story(town: Town) -> None:
        first, second = await town.node(), await town.node()
        assert first.keeper.until == math.inf, "nothing is known of limits yet"
        first.keeper.want(50)
        await town.until(lambda: first.granted == 10)
        first.running = 10
        for _ in range(10):
            await town.clock.sleep(10)
            assert first.keeper.until > first.clock.monotonic() + LEASE_S / 3
        second.keeper.want(50)
        first.line.cut["registry"] = None
        await town.until(lambda: second.granted > 0)
        assert first.keeper.until < first.clock.monotonic()
        await town.set(strict=False)
        first.line.cut.clear()
        await town.until(lambda: first.keeper.until == math.inf)
        await town.set(strict=True)
        await town.until(lambda: first.clock.monotonic() < first.keeper.until < math.inf)

    in_town(story, maximum=10)


def test_what_began_without_a_limit_goes_on_under_one() -> None:
    async def story(town: Town) -> None:
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        await town.set(maximum=0)
        await town.until(lambda: node.granted == UNLIMITED)
        await town.clock.sleep(2 * LEASE_S)
        node.running = 20
        await town.set(maximum=10)
        node.keeper.want(20)
        while node.granted != 10:
            assert node.keeper.until > node.clock.monotonic()
            await town.clock.sleep(0.05)
        await town.clock.sleep(2 * LEASE_S)
        assert node.keeper.until > node.clock.monotonic()

    in_town(story, maximum=10)


def test_tasks_that_run_on_while_the_registry_is_away_keep_their_grants() -> None:
    async def story(town: Town) -> None:
        first, second = await town.node(), await town.node()
        for node in (first, second):
            node.keeper.want(50)
        await town.until(lambda: first.granted == second.granted == 5)
        first.running = second.running = 5
        for node in (first, second):
            node.line.cut["registry"] = None
        await town.until(lambda: first.granted == second.granted == 0)
        await town.clock.sleep(5 * LEASE_S)
        second.line.cut.clear()
        await town.until(lambda: second.granted > 0)
        assert second.granted == 5
        first.line.cut.clear()
        await town.until(lambda: first.granted > 0)
        assert (first.granted, second.granted) == (5, 5)
        assert second.told[-3:] == [5, 0, 5]

    in_town(story, maximum=10)


def test_limits_may_change_while_tasks_run() -> None:
    async def story(town: Town) -> None:
        nodes = [await town.node() for _ in range(3)]
        for node in nodes:
            node.keeper.want(50)
        await town.until(lambda: sorted(node.granted for node in nodes) == [4, 4, 4])
        await town.set(maximum=6)
        await town.until(lambda: all(node.granted == 2 for node in nodes))
        await town.set(maximum=60, per_node=8)
        await town.until(lambda: all(node.granted == 8 for node in nodes))
        await town.set(maximum=0)
        await town.until(lambda: all(node.granted == 8 for node in nodes))
        await town.set(per_node=0)
        await town.until(lambda: all(node.granted == UNLIMITED for node in nodes))

    in_town(story, maximum=12)


def test_with_a_limit_of_one_all_get_to_run() -> None:
    async def story(town: Town) -> None:
        nodes = [await town.node() for _ in range(3)]
        served: Counter[int] = Counter()
        for node in nodes:
            node.keeper.want(5)
        for _ in range(9):
            await town.until(lambda: any(node.granted for node in nodes))
            [turn] = [i for i, node in enumerate(nodes) if node.granted]
            served[turn] += 1
            nodes[turn].running = 1
            await town.until(lambda turn=turn: nodes[turn].granted == 0)  # type: ignore[misc]
            nodes[turn].running = 0
            nodes[turn].keeper.want(5)
        assert min(served[i] for i in range(3)) >= 2

    in_town(story, maximum=1)


def test_limits_that_nobody_understands_leave_all_as_it_was() -> None:
    async def story(town: Town) -> None:
        node = await town.node()
        await town.until(lambda: node.granted == UNLIMITED)
        await town.registry.put(document_name("app"), b"junk", 0)
        await town.clock.sleep(5)
        assert node.granted == UNLIMITED
        await town.set(maximum=3)
        node.keeper.want(9)
        await town.until(lambda: node.granted == 3)

    in_town(story)


class Forgetful(MemoryRegistry):
    """Loses the answers of writes, some of which it has done."""

    fates: list[str]

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        fate = self.fates.pop(0) if self.fates else "fine"
        if fate == "refused":
            raise Unavailable("busy")
        done = None if fate == "late" else await super().put(name, body, expect)
        if fate != "fine":
            raise OutcomeUnknown("no answer")
        return done


class Withheld(MemoryRegistry):
    """What ``member-0`` writes to have less is done, and then nothing is answered until it may be."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.has = 0

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        done = await super().put(name, body, expect)
        own = msgspec.json.decode(body, type=ConcurrencyLimits).grants.get("member-0")
        if own is not None and own.count < self.has:
            self.may_answer.clear()
        self.has = own.count if own is not None else 0
        await self.may_answer.wait()
        return done

    async def changed(self, name: str, after: int, wait_s: float) -> Document | None:
        found = await super().changed(name, after, wait_s)
        await self.may_answer.wait()
        return found


def test_what_is_given_up_is_not_used_while_the_answer_is_under_way() -> None:
    async def story(town: Town) -> None:
        registry = town.registry = Withheld(town.clock)
        await town.set(maximum=10)
        first, second = await town.node(), await town.node()
        first.keeper.want(50)
        await town.until(lambda: first.granted == 10)
        second.keeper.want(50)
        await town.until(lambda: not registry.may_answer.is_set())
        assert first.granted == 5
        registry.may_answer.set()
        await town.until(lambda: second.granted == 5)

    in_town(story)


class Losing(MemoryRegistry):
    """Can lose its last write, as a server that takes over from another."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.before: Document | None = None

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        before = await self.get(name)
        done = await super().put(name, body, expect)
        if done is not None:
            self.before = before
        return done

    def lose(self) -> None:
        assert self.before is not None
        self._documents[self.before.name] = self.before
        self._bell.ring()


def test_a_node_goes_on_from_what_a_registry_has_left_that_lost_a_write() -> None:
    """It ignored the older version for good, and nothing began any more."""

    async def story(town: Town) -> None:
        registry = town.registry = Losing(town.clock)
        await town.set(maximum=10)
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        registry.lose()
        await town.until(lambda: node.told == [4, 0, 4])
        node.keeper.want(6)
        await town.until(lambda: node.granted == 6)
        registry.lose()
        await town.until(lambda: node.told == [4, 0, 4, 6, 4, 6])
        await town.clock.sleep(2 * LEASE_S)
        assert node.granted == 6

    in_town(story)


def test_a_renewal_that_the_registry_has_lost_makes_no_lease_longer() -> None:
    """Others count from the one before."""

    async def story(town: Town) -> None:
        registry = town.registry = Losing(town.clock)
        await town.set(maximum=10)
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        first = node.keeper.until
        await town.until(lambda: node.keeper.until > first)
        untils = list[float]()
        node.limits_changed = lambda: untils.append(node.keeper.until)  # type: ignore[method-assign]
        registry.lose()
        await town.until(lambda: len(untils) == 2)
        lost, renewed = untils
        assert lost == first < renewed

    in_town(story)


@pytest.mark.parametrize("fates", [["done"], ["late"], ["late", "done"], ["refused", "late"]])
def test_lost_answers_of_the_registry_are_survived(fates: list[str]) -> None:
    async def story(town: Town) -> None:
        town.registry = Forgetful(town.clock)
        town.registry.fates = []
        await town.set(maximum=10)
        town.registry.fates = list(fates)
        node = await town.node()
        node.keeper.want(6)
        await town.until(lambda: node.granted == 6)
        assert not town.registry.fates
        assert (await town.standing()).grants["member-0"].count == 6
        town.registry.fates = list(fates)
        await node.keeper.leave()

    in_town(story)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_never_above_the_maximum_in_bad_weather(seed: int) -> None:
    """Nodes with drifting clocks begin tasks whenever they may; some crash, some are cut off for long."""

    async def story(town: Town) -> None:
        random = town.random
        weather = Weather(0.05, lost=0.05, answer_lost=0.05, late=0.05, late_s=20.0)
        for _ in range(4):
            await town.node(weather, rate=random.choice([0.996, 1.0, 1.004]))
        most, began = 0, Counter[int]()
        for step in range(3000):
            await town.clock.sleep(random.uniform(0.0, 0.5))
            index = random.randrange(4)
            node = town.nodes[index]
            for other in town.nodes:
                if other.keeper.until <= other.clock.monotonic():
                    other.running = 0
            deed = random.random()
            if deed < 0.4:
                node.running = max(0, node.running - random.randrange(3))
            elif node.running < node.granted:
                node.running += random.randrange(1, node.granted - node.running + 1)
                began[index] += 1
                assert town.running <= 10, f"at step {step}"
            most = max(most, town.running)
            node.keeper.want(node.running + random.choice([0, 0, 1, 5, 20]))
            if random.random() < 0.003:
                node.line.cut["registry"] = None
            elif random.random() < 0.02:
                node.line.cut.clear()
            if random.random() < 0.002:
                await node.crash()
                again = Node(town, len(town.nodes) + step, weather, 1.0)
                town.nodes[index] = again
                again.keeper.start()
        assert most >= 9
        assert len(began) == 4

    in_town(story, seed=seed, maximum=10)


def test_what_is_had_is_kept_between_renewals_while_nobody_wants_it() -> None:
    async def story(town: Town) -> None:
        node = await town.node()
        node.keeper.want(8)
        await town.until(lambda: node.granted == 8)
        node.keeper.want(1)
        await town.clock.sleep(LEASE_S / rules.LOOKS / 2)
        assert node.granted == 8, "it would be asked for again in a moment"
        await town.until(lambda: node.granted == 1)
        assert node.told == [8, 1]

    in_town(story, maximum=10)


class Slow(MemoryRegistry):
    """What is heard of changes may come late."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def changed(self, name: str, after: int, wait_s: float) -> Document | None:
        found = await super().changed(name, after, wait_s)
        await self.may_answer.wait()
        return found


def test_a_document_that_comes_late_changes_nothing() -> None:
    """It was asked for before the newer one was known, so no write was lost."""

    async def story(town: Town) -> None:
        registry = town.registry = Slow(town.clock)
        await town.set(maximum=10)
        node = await town.node()
        node.keeper.want(4)
        await town.until(lambda: node.granted == 4)
        await town.clock.sleep(1.0)  # until it listens again
        registry.may_answer.clear()
        await town.set(maximum=20)
        await town.clock.sleep(1.0)  # until that is under way
        await town.set(maximum=3)
        node.keeper.want(6)
        await town.until(lambda: node.keeper.limits.maximum == 3)
        registry.may_answer.set()
        seen: list[int] = []
        for _ in range(4000):
            await town.clock.sleep(0.0005)
            seen.append(node.keeper.limits.maximum)
        assert set(seen) == {3}
        assert node.told == [4, 3]

    in_town(story)
