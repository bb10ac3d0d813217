"""An outbox's shards: which node serves which, as nodes come, drain and fail."""

import asyncio
from typing import Any

import pytest

from holdfast import App
from holdfast.devices.services.memory.device import MemoryDevices
from holdfast.devices.spec import Page
from holdfast.devices.work import DeviceWork
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from tests.cluster.fakes import StandingMembership, make_host
from tests.devices.simulated.conftest import Site

ALL = {0, 1, 2, 3}
TTL_S = 1e6
LONG_S = 60.0
"""Several times as long as shards take to be looked for."""


def neighbour(*, draining: bool) -> Member:
    return Member("neighbour", "neighbour", "sim://neighbour", Load(offers=("doors",), draining=draining))


class Node:
    """One node that serves an outbox of four shards, and what it sees of others."""

    def __init__(self, site: Site, *others: Member) -> None:
        self.site = site
        self.coordinator = MemoryCoordinator(site.clock)
        self.outbox = App("office").outbox("doors", shards=len(ALL))
        self.membership = StandingMembership(*others)
        host = make_host(
            site.clock,
            site.tasks,
            coordinator=self.coordinator,
            log=site.log,
            name="node",
            membership=self.membership,
        )
        self.host = host
        self.work = DeviceWork(
            host, self.outbox, site.store, lambda identity, _: MemoryDevices(site.broker, identity)
        )

    async def start(self) -> None:
        await self.coordinator.join(self.membership.view["me"], TTL_S)
        await self.work.prepare()
        self.work.begin("sim://me")

    async def drain(self) -> None:
        self.host.draining = True
        await self.work.drain()

    @property
    def served(self) -> set[int]:
        return {*self.work.dispatcher.shards}

    async def until_served(self, shards: int, within_s: float = LONG_S) -> None:
        async with asyncio.timeout(within_s):
            while len(self.served) != shards:
                await self.site.clock.sleep(0.1)


async def test_shards_are_shared_with_a_neighbour_that_serves_the_outbox(site: Site) -> None:
    node = Node(site, neighbour(draining=False))
    await node.start()
    await site.clock.sleep(LONG_S)
    assert len(node.served) == 2


async def test_shards_of_a_draining_neighbour_are_served_at_once(site: Site) -> None:
    node = Node(site, neighbour(draining=False))
    await node.start()
    await node.until_served(2)
    node.membership.view["neighbour"] = neighbour(draining=True)
    await node.until_served(4)


async def test_a_shard_whose_devices_the_store_did_not_tell_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, failures = site.store.known_devices, [Unavailable("the database is away")] * 3

    async def failing(outbox: str, shard: int) -> Any:
        if failures:
            raise failures.pop()
        return await known(outbox, shard)

    monkeypatch.setattr(site.store, "known_devices", failing)
    node = Node(site)
    await node.start()
    await node.until_served(4)
    assert failures == []
    assert {claim.key for claim in await node.coordinator.claims("me")} == {
        node.outbox.spec.key(number) for number in ALL
    }


@pytest.mark.parametrize("drains", [True, False])
async def test_a_node_that_drains_or_loses_the_first_shard_fetches_no_more(site: Site, drains: bool) -> None:
    asked: list[str | None] = []

    async def next_page(cursor: str | None) -> Page:
        asked.append(cursor)
        return Page([], "end", more=False)

    node = Node(site)
    node.outbox.source("api", pause_s=1.0)(next_page)
    await node.start()
    await node.until_served(4)
    await site.clock.sleep(LONG_S)
    assert len(asked) > 10
    if drains:
        await node.drain()
        assert await node.coordinator.claims("me") == []
    else:
        node.membership.alive = False
        node.work.shards.vanished()
    await node.until_served(0)
    before = len(asked)
    await site.clock.sleep(LONG_S)
    assert len(asked) == before
    if not drains:
        node.membership.alive = True
        await node.until_served(4)
        await site.clock.sleep(LONG_S)
        assert len(asked) > before + 10


async def test_a_node_that_begins_to_drain_while_it_opens_a_shard_takes_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, opening, go_on = site.store.open, asyncio.Event(), asyncio.Event()
    opened: list[int] = []

    async def slow(outbox: str, shard: int, expect: int, member: str) -> int:
        opened.append(shard)
        opening.set()
        await go_on.wait()
        return await opens(outbox, shard, expect, member)

    monkeypatch.setattr(site.store, "open", slow)
    node = Node(site)
    await node.start()
    await opening.wait()
    await node.drain()
    go_on.set()
    await site.clock.sleep(LONG_S)
    assert len(opened) == 1
    assert node.served == set()
    assert await node.coordinator.claims("me") == []


async def test_shards_that_are_given_up_together_all_come_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(site)
    await node.start()
    await node.until_served(4)
    release, failed = node.coordinator.release, [False]

    async def release_once_unanswered(claim: Claim) -> None:
        if not failed[0]:
            failed[0] = True
            raise OutcomeUnknown("no answer")
        await release(claim)

    monkeypatch.setattr(node.coordinator, "release", release_once_unanswered)
    for number, epoch in (await site.store.epochs("doors")).items():
        await site.store.open("doors", number, epoch, "another")
    await node.until_served(0)
    await node.until_served(4)
    assert failed == [True]


async def test_a_shard_that_another_took_while_it_was_opened_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = site.store.open
    taken: list[int] = []
    node = Node(site)
    stranger = Member("stranger", "stranger", "")
    await node.coordinator.join(stranger, TTL_S)

    async def slow(outbox: str, shard: int, expect: int, member: str) -> int:
        if not taken:
            taken.append(shard)
            ours = await node.coordinator.lookup(node.outbox.spec.key(shard))
            assert ours is not None
            node.host.news.claimed(await node.coordinator.transfer(ours, stranger.id))
        return await opens(outbox, shard, expect, member)

    monkeypatch.setattr(site.store, "open", slow)
    await node.start()
    await node.until_served(4)
    await node.until_served(3)
    assert node.served == ALL - {*taken}
    assert {claim.key for claim in await node.coordinator.claims("me")} == {
        node.outbox.spec.key(number) for number in node.served
    }
