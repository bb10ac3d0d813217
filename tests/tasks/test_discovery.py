"""What the registry tells of an app."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.errors import Unavailable
from holdfast.ports.coordinator import Member
from holdfast.ports.registry import Document
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.tasks import discovery as rules
from holdfast.tasks.discovery import REFRESH_S, Announcer, DeclaredTimes, Directory, Listing, NodeEntry
from simulator.loop import SimClock
from tests.cluster.fakes import StandingMembership, make_host

VIRTUAL = True

NIGHTLY = DeclaredTimes("30 2 * * *", "Europe/Berlin")
A = NodeEntry("node-a", "http://127.0.0.1:1", ("count", "publish"), ("nightly",), {"nightly": NIGHTLY})
B = NodeEntry("node-b", "http://127.0.0.1:2", ("publish",), ("dlq-backup", "nightly"))


class Quiet:
    def __init__(self) -> None:
        self.warnings = 0

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings += 1


class Moody(MemoryRegistry):
    """Not always there."""

    there = True

    async def get(self, name: str) -> Document | None:
        if not self.there:
            raise Unavailable("gone")
        return await super().get(name)


def test_the_listing_shows_the_nodes_of_each_type() -> None:
    listing = Listing(nodes={"m2": B, "m1": A})
    assert listing.types == {"count": [A], "publish": [A, B]}
    assert listing.times == {"nightly": NIGHTLY}


def test_nodes_that_are_gone_are_dropped() -> None:
    listing = rules.announced(Listing(nodes={"old": B}), "m1", A, {"m1"}, {})
    assert listing.nodes == {"m1": A}
    assert rules.announced(listing, "m2", B, {"m1"}, {}).nodes == {"m1": A, "m2": B}
    assert rules.withdrawn(listing, "m1") == Listing()
    assert Listing().types == {}


def test_settings_are_shared_but_no_secrets_and_no_files() -> None:
    told = {
        "queue_url": "sqs://eu-west-1/",
        "tasks_url": "redis://user:hunter2@other",
        "coordinator_url": "sqlite:///holdfast.db",
        "objects_url": "s3://frames",
    }
    registry = "redis://user:hunter2@host:1/1"
    assert rules.shareable(told, registry) == {"queue_url": "sqs://eu-west-1/"}


def test_who_may_read_the_registry_knows_its_password() -> None:
    registry = "redis://user:hunter2@host:1/1"
    told = rules.shareable({"tasks_url": "redis://user:hunter2@host:1/2", "queue_url": "sqs:///"}, registry)
    assert told == {"tasks_url": "redis://host:1/2", "queue_url": "sqs:///"}
    assert rules.usable(told, "redis://:pass@host:1") == {
        "tasks_url": "redis://:pass@host:1/2",
        "queue_url": "sqs:///",
    }
    others = "rediss://user:hunter2@host:1", "redis://user:hunter2@host:2", "redis://user:other@host:1"
    for other in others:
        assert rules.shareable({"tasks_url": other}, registry) == {}
    sentinels = "redis+sentinel://:hunter2@a:1,b:2/main"
    assert rules.shareable({"tasks_url": sentinels}, sentinels) == {
        "tasks_url": "redis+sentinel://a:1,b:2/main"
    }
    listing = rules.announced(
        Listing({"queue_url": "sqs://eu-north-1/"}), "m1", A, (), {"tasks_url": "redis://h"}
    )
    assert listing.settings == {"queue_url": "sqs://eu-north-1/", "tasks_url": "redis://h"}
    assert rules.announced(listing, "m1", A, (), {"queue_url": "sqs://x/"}).settings == listing.settings


async def test_a_node_that_leaves_while_it_announces_a_new_app_ends_in_order() -> None:
    clock, members = SimClock(Random(0), "clock"), StandingMembership()
    members.view = {members.id: Member(members.id, "node-a", "")}
    directory, asked, go_on = Directory(Moody(clock), "app", clock), asyncio.Event(), asyncio.Event()
    announcer = Announcer(
        directory,
        make_host(clock, log=Quiet(), name="node-a", membership=members),
        types=A.types,
        periodics=A.periodics,
        times=A.times,
        settings={"queue_url": "sqs://eu-west-1/"},
    )
    change = directory.change

    async def slow(work: Callable[[Listing], Listing]) -> Listing:
        asked.set()
        await go_on.wait()
        return await change(work)

    directory.change = slow  # type: ignore[method-assign, assignment]
    run = asyncio.create_task(announcer.run(A.address))
    await asked.wait()
    leaving = asyncio.create_task(announcer.leave())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(run, leaving)
    assert await directory.read() == Listing()


async def test_entries_of_dead_nodes_are_removed() -> None:
    clock = SimClock(Random(0), "clock")
    registry, log = Moody(clock), Quiet()
    directory = Directory(registry, "app", clock)
    living = {name: Member(name, name, "") for name in ("m0", "m1", "m2")}  # one of another app
    members = StandingMembership(), StandingMembership()
    members[0].alive, members[1].id = False, "m2"
    for known in members:
        known.view = living

    def announcer(entry: NodeEntry, number: int) -> Announcer:
        return Announcer(
            directory,
            make_host(clock, log=log, name=entry.node, membership=members[number]),
            types=entry.types,
            periodics=entry.periodics,
            times=entry.times,
            settings={"queue_url": "sqs://eu-west-1/" if number else "sqs://eu-north-1/"},
        )

    first, second = announcer(A, 0), announcer(B, 1)
    runs = [asyncio.create_task(first.run(A.address)), asyncio.create_task(second.run(B.address))]
    await clock.sleep(2 * REFRESH_S)
    assert (await directory.read()).nodes == {"m2": B}, "one has no membership yet"
    assert log.warnings == 0
    assert [each.leads("nightly") for each in (first, second)] == [False, True]
    members[0].id, members[0].alive = "m1", True
    await clock.sleep(2 * REFRESH_S)
    assert await directory.read() == Listing({"queue_url": "sqs://eu-west-1/"}, {"m1": A, "m2": B})
    assert log.warnings == 1, "they have different queues"
    assert [each.leads("nightly") for each in (first, second)] == [True, False]
    assert [each.leads("dlq-backup") for each in (first, second)] == [False, True], "only one of them does it"
    del living["m2"]
    living["m3"] = Member("m3", "m3", "")
    members[1].id = "m3"  # it was lost, and joined again
    await clock.sleep(2 * REFRESH_S)
    assert (await directory.read()).nodes == {"m1": A, "m3": B}
    gone = living.pop("m1")
    assert second.leads("nightly"), "at once"
    living["m1"] = gone
    registry.there = False
    await clock.sleep(2 * REFRESH_S)
    assert log.warnings > 1
    warned = log.warnings
    await first.leave()
    assert log.warnings == warned + 1
    registry.there = True
    await second.leave()
    await asyncio.gather(*runs)
    assert (await directory.read()).nodes == {"m1": A}, "it could not say so; others will"
