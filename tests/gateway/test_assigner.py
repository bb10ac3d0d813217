"""The assigner: one question a key, the owner that the coordinator knows, or a node that it is given to."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from holdfast.cluster.view import View
from holdfast.errors import Unavailable
from holdfast.gateway.assigner import Assigner
from holdfast.gateway.routes import GatewayRoute, Routes
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.system.clock import SystemClock

A, B = (Member(name, name, f"http://{name}", Load(slots=2)) for name in ("a", "b"))
KEY = "s/k"


class Seen:
    """Stands for a view: the members there are, read from the coordinator when asked."""

    def __init__(self, coordinator: Any) -> None:
        self.members: dict[str, Member] = {}
        self._coordinator = coordinator

    async def refresh(self) -> None:
        self.members = {member.id: member for member in await self._coordinator.members()}


class Counting(MemoryCoordinator):
    """Notes its calls; is away where the test says, or has just given each key to the member ``quicker``."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls: list[str] = []
        self.away = False
        self.quicker = ""
        self.tell: Callable[[Claim], None] = lambda claim: None

    async def lookup(self, key: str) -> Any:
        self.calls.append("lookup")
        if self.away:
            raise Unavailable("it is away")
        return await super().lookup(key)

    async def claim(self, key: str, member: str) -> Any:
        self.calls.append("claim")
        claim = await super().claim(key, self.quicker or member)
        self.tell(claim)
        return claim


class Rig:
    """One gateway's assigner."""

    def __init__(self, coordinator: Counting) -> None:
        self.coordinator = coordinator
        self.seen = Seen(coordinator)
        self.routes = Routes()
        self.assigner = Assigner(coordinator, cast("View", self.seen), self.routes)


@pytest.fixture
async def rig() -> Rig:
    coordinator = Counting()
    await coordinator.join(A, 60)
    await coordinator.join(B, 60)
    made = Rig(coordinator)
    await made.seen.refresh()
    return made


async def test_of_many_first_requests_one_asks(rig: Rig) -> None:
    found = await asyncio.gather(*(rig.assigner.resolve(KEY) for _ in range(50)))
    assert len({member.id for member in found}) == 1
    assert rig.coordinator.calls == ["lookup", "claim"]
    assert await rig.assigner.resolve(KEY) == found[0]
    assert len(rig.coordinator.calls) == 2, "known by now"


async def test_over_many_gateways_one_claim_stands(rig: Rig) -> None:
    others = [Rig(rig.coordinator) for _ in range(5)]
    for other in others:
        await other.seen.refresh()
    found = await asyncio.gather(*(each.assigner.resolve(KEY) for each in [rig, *others]))
    assert len({member.id for member in found}) == 1
    assert len(await rig.coordinator.claims()) == 1


async def test_new_streams_go_where_the_fewest_are(rig: Rig) -> None:
    found = [await rig.assigner.resolve(f"s/{n}") for n in range(40)]
    assert [member.id for member in found].count("a") == 20


async def test_streams_that_come_at_once_are_spread_too(rig: Rig) -> None:
    """By one gateway, and by several that are asked for all of them."""
    other = Rig(rig.coordinator)
    await other.seen.refresh()
    asked = [each.assigner.resolve(f"s/{n}") for n in range(40) for each in (rig, other)]
    found = [member.id for member in await asyncio.gather(*asked)]
    assert found[::2] == found[1::2]
    assert found[::2].count("a") == 20


async def test_a_claim_that_stands_is_respected(rig: Rig) -> None:
    await rig.coordinator.claim(KEY, "b")
    rig.coordinator.calls.clear()
    assert await rig.assigner.resolve(KEY) == B
    assert rig.coordinator.calls == ["lookup"]
    assert rig.routes.get(KEY) == GatewayRoute("b")


async def test_a_member_that_is_new_is_read(rig: Rig) -> None:
    newcomer = Member("c", "c", "http://c")
    await rig.coordinator.join(newcomer, 60)
    await rig.coordinator.claim(KEY, "c")
    assert await rig.assigner.resolve(KEY) == newcomer


async def test_known_streams_go_on_while_the_coordinator_is_away(rig: Rig) -> None:
    known = await rig.assigner.resolve(KEY)
    rig.coordinator.away = True
    assert await rig.assigner.resolve(KEY) == known
    with pytest.raises(Unavailable, match=r"the coordinator does not answer$"):
        await rig.assigner.resolve("s/new")


STRANGER = Member("/services/w", "w", "http://stranger:90", Load(room=0), foreign=True)


async def test_a_stream_of_another_program_is_refused_unless_told_otherwise(rig: Rig) -> None:
    await rig.coordinator.join(STRANGER, 60)
    await rig.coordinator.claim(KEY, STRANGER.id)
    with pytest.raises(Unavailable, match="another program, w, and foreign_streams is 'refuse'"):
        await rig.assigner.resolve(KEY)
    forwarding = Assigner(rig.coordinator, cast("View", rig.seen), rig.routes, foreign=True)
    assert await forwarding.resolve(KEY) == STRANGER


async def test_a_program_that_tells_no_address_gets_nothing(rig: Rig) -> None:
    nowhere = msgspec.structs.replace(STRANGER, address="")
    await rig.coordinator.join(nowhere, 60)
    await rig.coordinator.claim(KEY, nowhere.id)
    forwarding = Assigner(rig.coordinator, cast("View", rig.seen), rig.routes, foreign=True)
    with pytest.raises(Unavailable, match="gives no host and port"):
        await forwarding.resolve(KEY)


async def test_a_key_that_no_node_has_room_for_is_not_claimed(rig: Rig) -> None:
    rig.seen.members = {"a": Member("a", "a", "", Load(room=0))}
    with pytest.raises(Unavailable, match="no node has room"):
        await rig.assigner.resolve(KEY)
    assert rig.coordinator.calls == ["lookup"]


async def test_a_route_to_a_member_that_left_is_asked_anew(rig: Rig) -> None:
    first = await rig.assigner.resolve(KEY)
    await rig.coordinator.leave(first.id)
    await rig.seen.refresh()
    rig.routes.left(first.id)
    assert (await rig.assigner.resolve(KEY)).id != first.id


async def test_who_gives_up_does_not_spoil_it_for_others(rig: Rig) -> None:
    first = asyncio.create_task(rig.assigner.resolve(KEY))
    await asyncio.sleep(0)
    second = asyncio.create_task(rig.assigner.resolve(KEY))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).id in ("a", "b")


async def test_another_than_one_is_found_where_there_is_any(rig: Rig) -> None:
    assert rig.assigner.beside(KEY, "a") == B
    rig.seen.members.pop("b")
    assert rig.assigner.beside(KEY, "a") is None


async def test_what_others_place_counts_before_loads_tell(rig: Rig) -> None:
    for n in range(12):
        rig.assigner.claimed(Claim(f"other/{n}", "a", n))
    found = [await rig.assigner.resolve(f"s/{n}") for n in range(20)]
    assert [member.id for member in found].count("a") == 4
    assert rig.routes.get("other/0") == GatewayRoute("a")


async def test_a_member_that_was_chosen_in_vain_is_no_fuller_for_that(rig: Rig) -> None:
    rig.coordinator.quicker = "b"
    for n in range(10):
        assert await rig.assigner.resolve(f"s/{n}") == B
    rig.coordinator.quicker = ""
    assert [await rig.assigner.resolve(f"s/{n}") for n in range(10, 20)] == [A] * 10


async def test_a_gateway_counts_its_own_claim_once_that_it_hears_of_before_the_answer(rig: Rig) -> None:
    """Others' claims are news, each of which counts."""
    for n in range(4):
        rig.assigner.claimed(Claim(f"other/{n}", "a", n))
    rig.coordinator.tell = rig.assigner.claimed
    found = [await rig.assigner.resolve(f"s/{n}") for n in range(4)]
    assert found == [B] * 4, "then both have four"


async def test_a_gateway_counts_its_own_claims_once(rig: Rig) -> None:
    """The coordinator tells of them as of any other."""
    for n in range(20):
        await rig.assigner.resolve(f"s/{n}")
        for claim in await rig.coordinator.claims():
            rig.assigner.claimed(claim)
    owners = [claim.member for claim in await rig.coordinator.claims()]
    assert owners.count("a") == 10
