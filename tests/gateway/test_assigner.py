"""The assigner: one question for each key; the coordinator's owner, or a node that gets the key."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.cluster.view import View
from holdfast.errors import Unavailable
from holdfast.gateway.assigner import Assigner
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.rules.cluster.gateway import GatewayPlacing, GatewayRoute, Routes
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.system.clock import SystemClock

A, B = (Member(name, name, f"http://{name}", Load(slots=2)) for name in ("a", "b"))
KEY = "s/k"


class FakeView:
    """A view whose members are read from the coordinator only on request."""

    def __init__(self, coordinator: Any) -> None:
        self.members: dict[str, Member] = {}
        self._coordinator = coordinator

    async def refresh(self) -> None:
        self.members.clear()
        self.members.update({member.id: member for member in await self._coordinator.members()})


class Coordinator(MemoryCoordinator):
    """Notes its calls. It is away on demand, and reports claims before it answers."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls: list[str] = []
        self.away = False
        self.report: Callable[[Claim], None] = lambda claim: None

    async def lookup(self, key: str) -> Any:
        self.calls.append("lookup")
        if self.away:
            raise Unavailable("it is away")
        return await super().lookup(key)

    async def claim(self, key: str, member: str) -> Any:
        self.calls.append("claim")
        claim = await super().claim(key, member)
        self.report(claim)
        return claim


class Rig:
    """One gateway's assigner."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.view = FakeView(coordinator)
        self.routes = Routes()
        placing = GatewayPlacing(self.routes, self.view.members)
        self.assigner = Assigner(coordinator, cast("View", self.view), placing)


@pytest.fixture
async def rig() -> Rig:
    coordinator = Coordinator()
    await coordinator.join(A, 60)
    await coordinator.join(B, 60)
    made = Rig(coordinator)
    await made.view.refresh()
    return made


async def test_many_first_requests_ask_the_coordinator_once(rig: Rig) -> None:
    found = await asyncio.gather(*(rig.assigner.resolve(KEY) for _ in range(50)))
    assert len({member.id for member in found}) == 1
    assert rig.coordinator.calls == ["lookup", "claim"]
    assert await rig.assigner.resolve(KEY) == found[0]
    assert len(rig.coordinator.calls) == 2, "known by now"


async def test_many_gateways_agree_and_spread_concurrent_keys(rig: Rig) -> None:
    others = [Rig(rig.coordinator) for _ in range(2)]
    for other in others:
        await other.view.refresh()
    asked = [each.assigner.resolve(f"s/{n}") for n in range(40) for each in (rig, *others)]
    found = [member.id for member in await asyncio.gather(*asked)]
    assert found[::3] == found[1::3] == found[2::3]
    assert found[::3].count("a") == 20
    assert len(await rig.coordinator.claims()) == 40


async def test_an_existing_claim_is_respected(rig: Rig) -> None:
    await rig.coordinator.claim(KEY, "b")
    rig.coordinator.calls.clear()
    assert await rig.assigner.resolve(KEY) == B
    assert rig.coordinator.calls == ["lookup"]
    assert rig.routes.get(KEY) == GatewayRoute("b")


async def test_a_new_owner_is_read_from_the_coordinator(rig: Rig) -> None:
    newcomer = Member("c", "c", "http://c")
    await rig.coordinator.join(newcomer, 60)
    await rig.coordinator.claim(KEY, "c")
    assert await rig.assigner.resolve(KEY) == newcomer


async def test_known_keys_are_served_while_the_coordinator_is_away(rig: Rig) -> None:
    known = await rig.assigner.resolve(KEY)
    rig.coordinator.away = True
    assert await rig.assigner.resolve(KEY) == known
    with pytest.raises(Unavailable, match=r"the coordinator does not answer$"):
        await rig.assigner.resolve("s/new")


async def test_a_foreign_owner_that_the_coordinator_names_is_refused(rig: Rig) -> None:
    await rig.coordinator.join(Member("/services/w", "w", "http://other:90", foreign=True), 60)
    await rig.coordinator.claim(KEY, "/services/w")
    with pytest.raises(Unavailable, match="another program, w"):
        await rig.assigner.resolve(KEY)


async def test_a_key_without_room_is_not_claimed(rig: Rig) -> None:
    for name in ("a", "b"):
        await rig.coordinator.renew(Member(name, name, "", Load(room=0)), 60)
    await rig.view.refresh()
    with pytest.raises(Unavailable, match="no node has room"):
        await rig.assigner.resolve(KEY)
    assert rig.coordinator.calls == ["lookup"]


async def test_a_route_to_a_member_that_left_is_looked_up_again(rig: Rig) -> None:
    first = await rig.assigner.resolve(KEY)
    await rig.coordinator.leave(first.id)
    await rig.view.refresh()
    rig.routes.left(first.id)
    assert (await rig.assigner.resolve(KEY)).id != first.id


async def test_a_client_that_gives_up_does_not_cancel_the_question_of_others(rig: Rig) -> None:
    first = asyncio.create_task(rig.assigner.resolve(KEY))
    await asyncio.sleep(0)
    second = asyncio.create_task(rig.assigner.resolve(KEY))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).id in ("a", "b")


async def test_an_own_claim_that_is_reported_before_the_answer_counts_once(rig: Rig) -> None:
    for n in range(4):
        rig.assigner.claimed(Claim(f"other/{n}", "a", n))
    rig.coordinator.report = rig.assigner.claimed
    assert [await rig.assigner.resolve(f"s/{n}") for n in range(4)] == [B] * 4, "then both have four"
