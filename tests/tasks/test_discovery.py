"""What the registry tells of an app."""

import asyncio
from random import Random
from typing import Any

import pytest

from holdfast.adapters.memory.registry import MemoryRegistry
from holdfast.errors import ConfigError, Unavailable
from holdfast.ports.registry import Document
from holdfast.tasks import discovery as rules
from holdfast.tasks.discovery import REFRESH_S, Announcer, Directory, Entry, Listing
from holdfast.testing.simulator.loop import SimClock

VIRTUAL = True

A = Entry("node-a", "http://127.0.0.1:1", ("publish", "count"))
B = Entry("node-b", "http://127.0.0.1:2", ("publish",))


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


def test_a_type_has_nodes() -> None:
    listing = Listing(nodes={"m2": B, "m1": A})
    assert listing.types == {"count": [A], "publish": [A, B]}


def test_nodes_that_are_gone_are_dropped() -> None:
    listing = rules.announced(Listing(nodes={"old": B}), "m1", A, {"m1"})
    assert listing.nodes == {"m1": A}
    assert rules.announced(listing, "m2", B, {"m1"}).nodes == {"m1": A, "m2": B}
    assert rules.withdrawn(listing, "m1") == Listing()
    assert Listing().types == {}


def test_settings_are_shared_but_no_secrets() -> None:
    listing = rules.shared(Listing(nodes={"m1": A}), {"queue_url": "sqs://eu-west-1/"})
    assert listing == Listing({"queue_url": "sqs://eu-west-1/"}, {"m1": A})
    with pytest.raises(ConfigError, match=r"queue_url is .*password") as refusal:
        rules.shared(listing, {"queue_url": "redis://user:hunter2@host"})
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(ConfigError, match="slots can't be shared"):
        rules.shared(listing, {"slots": "3"})


async def test_nodes_come_and_go() -> None:
    clock = SimClock(Random(0), "clock")
    registry, log = Moody(clock), Quiet()
    directory = Directory(registry, "app", clock)
    living = {"m1", "m2"}
    ids = ["", "m2"]

    def announcer(entry: Entry, number: int) -> Announcer:
        return Announcer(
            directory,
            clock,
            log,
            entry=lambda: entry,
            member=lambda: ids[number],
            living=lambda: living,
        )

    first, second = announcer(A, 0), announcer(B, 1)
    runs = [asyncio.create_task(announcer.run()) for announcer in (first, second)]
    await clock.sleep(2 * REFRESH_S)
    assert (await directory.read()).nodes == {"m2": B}, "one has no membership yet"
    ids[0] = "m1"
    await clock.sleep(2 * REFRESH_S)
    assert (await directory.read()).nodes == {"m1": A, "m2": B}
    living.discard("m2")
    living.add("m3")
    ids[1] = "m3"  # it was lost, and joined again
    await clock.sleep(2 * REFRESH_S)
    assert (await directory.read()).nodes == {"m1": A, "m3": B}
    registry.there = False
    await clock.sleep(2 * REFRESH_S)
    assert log.warnings > 0
    warned = log.warnings
    await first.leave()
    assert log.warnings == warned + 1
    registry.there = True
    await second.leave()
    await asyncio.gather(*runs)
    assert (await directory.read()).nodes == {"m1": A}, "it could not say so; others will"
