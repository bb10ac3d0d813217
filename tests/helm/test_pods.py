"""The chart's pods, as processes of this machine under traffic: updated, scaled, killed, fallen silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchmarks.rolling import SETTLE_S, Clients, Release, released

TTL_S = 5.0
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


async def under_traffic(release: Release, disturb: Callable[[Clients], Awaitable[None]]) -> Clients:
    """Disturb a release while clients send. All messages are answered with results, and committed once and in
    order."""
    clients = Clients(lambda: release.gateways.ready)
    sending = asyncio.create_task(clients.run())
    await asyncio.sleep(SETTLE_S)
    await disturb(clients)
    await asyncio.sleep(SETTLE_S)
    clients.end()
    await sending
    committed = await release.committed()
    assert clients.errors() == {}
    assert committed.out_of_order == 0
    assert committed.counts == {key: len(answered) for key, answered in clients.answered.items()}
    return clients


async def test_an_update_of_all_pods_fails_no_request_and_moves_each_stream_about_once(
    tmp_path: Path,
) -> None:
    async with released(tmp_path) as release:

        async def disturb(_: Clients) -> None:
            await release.nodes.roll()
            await release.gateways.roll()
            await release.nodes.settled()

        await under_traffic(release, disturb)
        assert (await release.committed()).moves <= 1.2


async def test_an_update_that_is_taken_back_moves_each_stream_about_once(tmp_path: Path) -> None:
    """The first of three nodes is of the new template when it is replaced by one of the old template."""
    async with released(tmp_path) as release:

        async def disturb(_: Clients) -> None:
            await release.nodes.replace(release.nodes.begin_update()[0])
            release.nodes.take_back_update()
            await release.nodes.replace(release.nodes.pods[-1])
            await release.nodes.settled()

        await under_traffic(release, disturb)
        assert (await release.committed()).moves <= 1.2


async def test_scaling_up_and_down_fails_no_request(tmp_path: Path) -> None:
    async with released(tmp_path, nodes__replicas=2) as release:

        async def disturb(_: Clients) -> None:
            await release.nodes.scale(6)
            await release.nodes.scale(2)
            await release.nodes.settled()
            await release.gateways.settled()

        await under_traffic(release, disturb)
        assert all([await pod.live() for pod in release.nodes.ready])
        assert len(release.nodes.ready) == 2


async def test_nodes_that_are_killed_or_fall_silent_fail_no_request(tmp_path: Path) -> None:
    """The silent one stays so until others answer for all its streams: only its `ttl_s` shows them."""
    async with released(tmp_path, settings={"ttl_s": TTL_S}) as release:
        killed, silent, _ = release.nodes.pods

        async def disturb(clients: Clients) -> None:
            await release.nodes.kill(killed)
            owned = await release.owned(silent)
            assert owned
            silent_at = time.monotonic()
            silent.stop()
            await clients.answered_since(owned, silent_at)
            silent.kill()

        await under_traffic(release, disturb)
