"""The pages of a console in a real browser, on a cluster of processes with faults."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from holdfast.console.service import Console, ConsoleSettings
from tests.cluster.fakes import Log
from tests.console.chromium import PATIENCE_MS, Tab, chromium, opened
from tests.nodes.cluster import STREAM, Cluster
from tests.nodes.conftest import MakeCluster

__all__ = ["chromium"]

KEYS = [f"key-{number}" for number in range(12)]
SEEN_S = 2.0
"""Within so long after a node's death all of its streams are seen elsewhere."""

ALL_AT = """name => {
    const rows = [...document.querySelectorAll("#streams tbody tr")]
    return rows.length && rows.every(row => row.cells[1].textContent.trim() === name)
}"""
"""Whether an open list shows all streams at one node."""


@contextlib.asynccontextmanager
async def looked_at(chromium: Browser, cluster: Cluster) -> AsyncIterator[Tab]:
    """Open a tab of this cluster's console, as a user who may change something."""
    console = Console(cluster.services, ConsoleSettings(port=0), Log())
    await console.start()
    try:
        async with opened(chromium, console) as tab:
            yield tab
    finally:
        await console.stop()


@contextlib.asynccontextmanager
async def fed(cluster: Cluster, keys: list[str]) -> AsyncIterator[None]:
    """Send each stream its next message as soon as all results are there, until the end of the block."""
    over = False

    async def feed() -> None:
        while not over:
            await cluster.send_each(keys, 1)
            await cluster.until(lambda: all(len(cluster.results[key]) >= cluster.sent[key] for key in keys))

    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        yield
        over = True


@pytest.mark.slow
async def test_streams_of_a_killed_node_are_seen_to_move_within_two_seconds(
    chromium: Browser, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster()
    await cluster.start("a", "b")
    async with looked_at(chromium, cluster) as tab, fed(cluster, KEYS):
        await cluster.until(lambda: all(cluster.results[key] for key in KEYS))
        await tab.open("/streams")
        dead = await cluster.busiest()
        (alive,) = {"a", "b"} - {dead.name}
        await expect(tab.page.locator("#streams")).to_contain_text(dead.name, timeout=PATIENCE_MS)
        dead.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        await tab.page.wait_for_function(ALL_AT, arg=alive, timeout=PATIENCE_MS)
        took_s = time.monotonic() - killed_at
    assert took_s < SEEN_S
    await cluster.check(alive=[alive])


@pytest.mark.nightly
async def test_a_stream_goes_on_at_the_node_that_was_chosen_on_its_page(
    chromium: Browser, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster()
    await cluster.start("a", "b")
    async with looked_at(chromium, cluster) as tab, fed(cluster, KEYS[:1]):
        await cluster.until_count(KEYS[0], 10)
        owner = (await cluster.busiest()).name
        (other,) = {"a", "b"} - {owner}
        await tab.open(f"/stream?key={STREAM}%2F{KEYS[0]}")
        await expect(tab.page.get_by_label("Move to")).to_have_value(other)
        await tab.page.get_by_role("button", name="Move", exact=True).click()
        await expect(tab.page.get_by_role("status")).to_contain_text([f"moves from {owner} to {other}"])
        await expect(tab.page.locator("#stream .figures dd").first).to_contain_text(
            f"{other} for", timeout=PATIENCE_MS
        )
        await expect(tab.page.locator(".life")).to_contain_text(f"moved from {owner} to {other}")
    await cluster.check(alive=["a", "b"])
