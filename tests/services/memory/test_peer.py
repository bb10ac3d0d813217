"""Peers in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.common.protocol import Done, Probe, Reply, Request
from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.peer import Peer
from holdfast.services.memory.peer import MemoryNetwork, MemoryPeer
from holdfast.testing.conformance import PeerConformance
from holdfast.testing.conformance.peer import MakePeer


class TestMemoryPeer(PeerConformance):
    @pytest.fixture
    async def make_peer(self, clock: Clock) -> AsyncIterator[MakePeer]:
        network = MemoryNetwork(clock)
        made: list[MemoryPeer] = []

        async def make() -> Peer:
            made.append(MemoryPeer(network, f"memory://{len(made)}"))
            return made[-1]

        yield make
        for peer in made:
            await peer.close()


async def done(request: Request) -> Reply:
    return Done()


async def test_a_cut_node_is_gone_and_answers_nothing(clock: Clock) -> None:
    network = MemoryNetwork(clock)
    a, b = MemoryPeer(network, "a"), MemoryPeer(network, "b")
    cancelled, asked = asyncio.Event(), asyncio.Event()

    async def hang(request: Request) -> Reply:
        if request == Probe("alive"):
            return Done()
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Done()

    await b.serve(hang)
    call = asyncio.create_task(a.call("b", Probe("member-b"), 60))
    going = asyncio.create_task(a.gone("b", "alive"))
    await asked.wait()
    network.cut("b")
    with pytest.raises(OutcomeUnknown):
        await call
    await asyncio.wait_for(going, 10)
    await asyncio.wait_for(cancelled.wait(), 10)
    with pytest.raises(Unavailable):
        await a.call("b", Probe("member-b"), 60)


async def test_faults_delay_or_replace_a_call(clock: Clock) -> None:
    network = MemoryNetwork(clock)
    a, b = MemoryPeer(network, "a"), MemoryPeer(network, "b")
    await b.serve(done)
    seen: list[tuple[str, str, Request]] = []

    async def fault(source: str, destination: str, request: Request) -> None:
        seen.append((source, destination, request))
        if request.to == "lost":
            raise OutcomeUnknown("lost")

    network.fault = fault
    assert await a.call("b", Probe("x"), 60) == Done()
    with pytest.raises(OutcomeUnknown):
        await a.call("b", Probe("lost"), 60)
    assert seen == [("a", "b", Probe("x")), ("a", "b", Probe("lost"))]


async def test_an_address_is_served_once_and_not_closed_by_an_old_peer(clock: Clock) -> None:
    network = MemoryNetwork(clock)
    old, new, caller = (MemoryPeer(network, address) for address in ("b", "b", "a"))
    await old.serve(done)
    with pytest.raises(ConfigError):
        await new.serve(done)
    network.cut("b")
    await new.serve(done)
    await old.close()
    assert await caller.call("b", Probe("x"), 60) == Done()
