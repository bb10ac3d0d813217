"""Whatever happens to claims and members, and whatever a gateway misses of it: its routes come to be the
claims that stand, and every stream is found with its owner."""

import asyncio
import contextlib
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.view import View
from holdfast.errors import HoldfastError, Unavailable
from holdfast.gateway.assigner import Assigner
from holdfast.ports.coordinator import Load, Member
from holdfast.rules.cluster.gateway import GatewayPlacing, Routes
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.peer import MemoryNetwork, MemoryPeer
from simulator.limits import limits_with
from simulator.loop import SimClock, VirtualLoop
from tests.cluster.fakes import Log

KEYS = [f"s/{n}" for n in range(4)]
MEMBERS = ["a", "b", "c"]
TTL_S = 1e6
QUIET_S = 30.0

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(MEMBERS), st.none()),
        st.tuples(st.just("leave"), st.sampled_from(MEMBERS), st.none()),
        st.tuples(st.just("claim"), st.sampled_from(MEMBERS), st.sampled_from(KEYS)),
        st.tuples(st.just("transfer"), st.sampled_from(MEMBERS), st.sampled_from(KEYS)),
        st.tuples(st.just("release"), st.none(), st.sampled_from(KEYS)),
        st.tuples(st.just("resolve"), st.none(), st.sampled_from(KEYS)),
        st.tuples(st.just("cut off"), st.none(), st.none()),
        st.tuples(st.just("reach"), st.none(), st.none()),
        st.tuples(st.just("wait"), st.none(), st.none()),
    ),
    max_size=40,
)


class Wire:
    """The coordinator as the gateway reaches it, or doesn't."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self._coordinator = coordinator
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            if self.cut:
                raise Unavailable("cut off")
            return await getattr(self._coordinator, name)(*args)

        return call


class Rig:
    """One gateway's view, routes and assigner, and a coordinator that things happen to."""

    def __init__(self) -> None:
        self.clock = SimClock(Random(0), "rig")
        self.coordinator = MemoryCoordinator(self.clock)
        self.wire: Any = Wire(self.coordinator)
        self.routes = Routes()
        self.routes.news = lambda: None
        self.copy: dict[str, str] = {}
        self.tasks = Tasks(lambda error: None)
        peer = MemoryPeer(MemoryNetwork(self.clock), "sim://gateway")
        host = Host(self.wire, peer, self.clock, limits_with(), Log(), "gateway")
        host.tasks = self.tasks
        self.view = View(host)
        self.assigner = Assigner(self.wire, self.view, GatewayPlacing(self.routes, self.view.members))
        host.news.on_left.append(self.routes.left)
        host.news.on_claim.append(self.assigner.claimed)
        host.news.on_missed.append(self.routes.clear)
        self.view.start()

    def follow(self) -> None:
        """The commands to HAProxy."""
        for key, route in self.routes.changed().items():
            self.copy.pop(key, None)
            if route is not None:
                self.copy[key] = route.member

    async def do(self, deed: str, member: str, key: str) -> None:
        """Let something happen."""
        claims = {claim.key: claim for claim in await self.coordinator.claims()}
        match deed:
            case "join":
                load = Load(slots=1, serves=("s",))
                await self.coordinator.join(Member(member, member, f"sim://{member}", load), TTL_S)
            case "leave":
                await self.coordinator.leave(member)
            case "claim":
                await self.coordinator.claim(key, member)
            case "transfer" if key in claims:
                await self.coordinator.transfer(claims[key], member)
            case "release" if key in claims:
                await self.coordinator.release(claims[key])
            case "resolve":
                await self.assigner.resolve(key)
            case "cut off" | "reach":
                self.wire.cut = deed == "cut off"
            case "wait":
                await self.clock.sleep(1.0)


async def play(steps: list[tuple[str, str, str]]) -> None:
    rig = Rig()
    for step in steps:
        with contextlib.suppress(HoldfastError):  # an unknown member, or no owner
            await rig.do(*step)
        rig.follow()
    rig.wire.cut = False
    await rig.clock.sleep(QUIET_S)
    await rig.view.refresh()
    standing = {claim.key: claim.member for claim in await rig.coordinator.claims()}
    known = {key: route.member for key, route in rig.routes}
    assert known.items() <= standing.items()
    rig.follow()
    assert rig.copy == known
    for key, member in standing.items():
        assert (await rig.assigner.resolve(key)).id == member
    await rig.tasks.close()


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=60)
def test_the_routes_of_a_gateway_converge_to_the_claims(steps: list[tuple[str, str, str]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play(steps))


def test_a_claim_that_went_by_unseen_is_found() -> None:
    """The route goes to the first owner, and no notification named the second."""
    steps: list[Any] = [
        ("join", "a", None), ("join", "b", None), ("claim", "a", KEYS[0]), ("wait", None, None),
        ("resolve", None, KEYS[0]), ("cut off", None, None), ("transfer", "b", KEYS[0]), ("wait", None, None),
    ]  # fmt: skip
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play(steps))
