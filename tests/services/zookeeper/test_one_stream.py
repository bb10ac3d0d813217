"""One stream's claims go by their bare ids, and come back in full."""

import pytest

from holdfast.errors import ConfigError
from holdfast.ports.coordinator import Claim, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.zookeeper.address import parse
from holdfast.services.zookeeper.one_stream import OneStream
from holdfast.system.clock import SystemClock

A, B = Member("a", "a", "http://a"), Member("b", "b", "http://b")


async def test_every_call_says_the_bare_id_below() -> None:
    below = MemoryCoordinator(SystemClock())
    coordinator = OneStream(below, "frames")
    number, _ = await coordinator.watch(-1, 0)
    for member in (A, B):
        await coordinator.join(member, 60)
        await coordinator.renew(member, 60)
    claim = await coordinator.claim("frames/cam-1", "a")
    assert claim == Claim("frames/cam-1", "a", claim.version)
    assert [c.key for c in await below.claims()] == ["cam-1"]
    assert await coordinator.lookup("frames/cam-1") == claim
    assert await coordinator.lookup("frames/cam-2") is None
    moved = await coordinator.transfer(claim, "b")
    assert (moved.key, moved.member) == ("frames/cam-1", "b")
    assert await coordinator.claims("b") == [moved]
    assert await coordinator.release(moved)
    _, changes = await coordinator.watch(number, 0)
    assert [change.claim.key for change in changes if change.claim] == ["frames/cam-1"] * 3
    assert [change.kind for change in changes if change.member] == ["joined", "joined"]
    assert await coordinator.members() == [A, B]
    assert await coordinator.evict("b")
    await coordinator.leave("a")
    assert await coordinator.members() == []
    await coordinator.close()


async def test_a_key_of_another_stream_is_refused() -> None:
    coordinator = OneStream(MemoryCoordinator(SystemClock()), "frames")
    with pytest.raises(ConfigError, match="'tracks/cam-1' is of another"):
        await coordinator.lookup("tracks/cam-1")


def test_the_stream_is_named_in_the_url() -> None:
    assert parse("zookeeper://zk1/x?stream=frames").stream == "frames"
    with pytest.raises(ConfigError, match="stream is empty"):
        parse("zookeeper://zk1/x?stream=")
