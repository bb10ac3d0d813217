"""Streams that act, on nodes that die: every effect reaches its target, in order, and no timer is lost."""

import asyncio
import json
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.tasks.names import task_queue
from holdfast.tasks.rules.task import State
from tests.nodes.chaos_app import SITES
from tests.nodes.cluster import STREAM, Cluster, Process, until
from tests.nodes.conftest import MakeCluster

TTL_S = 3.0
KILLS = 3
SOAK_S = 120.0
SOAK_KILL_S = 2.0

NOTE_HAND_OVERS = """
CREATE TABLE handed_over (number INTEGER PRIMARY KEY, queue TEXT, body BLOB);
CREATE TRIGGER note_hand_overs AFTER INSERT ON bodies BEGIN
    INSERT INTO handed_over (queue, body)
    SELECT queues.name, NEW.body FROM messages JOIN queues ON queues.id = messages.queue
    WHERE messages.id = NEW.message;
END;
"""
"""Every message that was ever sent to a queue: the queue itself keeps no order after a failure."""


class Site:
    """The streams of a test, their targets, and what came there."""

    def __init__(self, cluster: Cluster, keys: Iterable[str]) -> None:
        self.cluster = cluster
        self.keys = list(keys)
        self.sites = cluster.services.queue("sites")
        self.notes = cluster.services.queue(task_queue("acting", "note"))
        self.tasks = cluster.services.task_store("acting")

    @property
    def arrived(self) -> list[dict[str, Any]]:
        """The results of all sites: each is an effect that was handled."""
        return [body for n in range(SITES) for body in self.cluster.bodies(f"site-{n}")]

    async def note_hand_overs(self) -> None:
        """Have the database tell, in the end, what was sent to queues in which order."""
        await self.cluster.state.peek("chain/none")  # makes the tables
        with closing(self._database()) as database:
            database.executescript(NOTE_HAND_OVERS)

    def handed_over(self, queue: str) -> Iterator[dict[str, Any]]:
        """What was sent to a queue, in order, with all repeats."""
        with closing(self._database()) as database:
            sent = database.execute("SELECT body FROM handed_over WHERE queue = ? ORDER BY number", (queue,))
            yield from (json.loads(body) for (body,) in sent)

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(Path(self.cluster.place) / "holdfast.db", timeout=30)

    async def until_more(self, count: int) -> None:
        """Wait until sites have handled so many more effects."""
        before = len(self.arrived)
        await self.cluster.until(lambda: len(self.arrived) >= before + count)

    async def check(self) -> None:
        """Every effect is at its target, once and in order, and nothing is left to be done."""
        await self.cluster.until_all()
        await until(self._all_rests, "no effects are pending, no timers stand")
        await until(self._is_delivered, "targets have handled all")
        self._check_sites()
        await self._check_tasks()
        for queue in (self.cluster.queue, self.sites, self.notes):
            assert not await queue.dead_letters(1000)
        assert not await self.cluster.state.due(time.time() + 1e6, 1000, 1.0)

    async def _all_rests(self) -> bool:
        for key in self.keys:
            checkpoint = await self.cluster.state.peek(f"{STREAM}/{key}")
            if checkpoint is None or checkpoint.acts:
                return False
        return True

    async def _is_delivered(self) -> bool:
        depths = [await self.sites.depth(), await self.notes.depth()]
        return all(depth.ready == depth.in_flight == depth.delayed == 0 for depth in depths)

    def _check_sites(self) -> None:
        numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        n: dict[str, list[int]] = defaultdict(list)
        waited: dict[str, list[int]] = defaultdict(list)
        seen: set[tuple[str, str, int]] = set()
        for effect in self.handed_over("sites"):
            source, site, number = effect["source"], effect["site"], effect["number"]
            if (source, site, number) in seen:
                continue  # at least once: the owner died before it knew that the target had it
            seen.add((source, site, number))
            numbers[source, site].append(number)
            n[source] += [effect["n"]] if "n" in effect else []
            waited[source] += effect.get("waited", [])
        for lane, found in numbers.items():
            assert found == list(range(1, len(found) + 1)), f"{lane}: out of order"
        for key in self.keys:
            count = self.cluster.sent[key]
            assert sorted(n[key]) == list(range(count)), f"{key}: lost, or of a failed run"
            assert sorted(waited[key]) == list(range(count)), f"{key}: a timer was lost, or fired twice"
        times = Counter((body["source"], body["site"], body["number"]) for body in self.arrived)
        assert set(times) == seen
        twice = [effect for effect, count in times.items() if count > 1]
        assert not twice, f"handled twice: {twice}, of {len(self.arrived)}"

    async def _check_tasks(self) -> None:
        expected = {(key, n) for key in self.keys for n in range(self.cluster.sent[key])}
        found: list[tuple[str, int]] = []
        after = ""
        while page := await self.tasks.list(1000, after):
            after = page[-1].trace
            assert {task.state for task in page} == {State.SUCCEED}
            found += [(told["source"], told["n"]) for told in (json.loads(task.result) for task in page)]
        assert len(found) == len(expected), "a task is known twice, or not at all"
        assert set(found) == expected


async def acting(make_cluster: MakeCluster, keys: Iterable[str], **settings: Any) -> Site:
    cluster = make_cluster(app="acting", ttl_s=TTL_S, **settings)
    site = Site(cluster, keys)
    await site.note_hand_overs()
    return site


async def busiest(cluster: Cluster) -> Process:
    """The node that owns the most streams: one that owns none proves nothing."""
    living = [node for node in cluster.nodes.values() if node.child.poll() is None]
    owned = {node.name: len(await cluster.claims(node.name)) for node in living}
    assert any(owned.values())
    return max(living, key=lambda node: owned[node.name])


async def kill_one(cluster: Cluster) -> None:
    """Kill the busiest node, and start another one."""
    node = await busiest(cluster)
    node.signal(signal.SIGKILL)
    await node.ended()
    await cluster.start(f"n{len(cluster.nodes)}")


async def test_no_effect_or_timer_of_nodes_that_die_or_stop_is_lost(make_cluster: MakeCluster) -> None:
    site = await acting(make_cluster, [f"cam-{i}" for i in range(20)])
    cluster = site.cluster
    await cluster.start("n0", "n1", "n2")
    for _ in range(KILLS):
        async with cluster.load(site.keys, 20):
            await site.until_more(50)
            await kill_one(cluster)
    async with cluster.load(site.keys, 20):
        await site.until_more(50)
        stopped = await busiest(cluster)
        stopped.order("stop-before-commit")
        await cluster.send_each(site.keys)
        assert await stopped.stopped_before_commit(), "it had commits on their way"
        living = [node.name for node in cluster.nodes.values() if node.child.poll() is None]
        await cluster.until_members(*(name for name in living if name != stopped.name))
        stopped.signal(signal.SIGCONT)
        await stopped.until_said("joined", times=2)
    await site.check()


@pytest.mark.soak
async def test_no_effect_or_timer_is_lost_in_minutes_of_deaths(make_cluster: MakeCluster) -> None:
    site = await acting(make_cluster, [f"cam-{i}" for i in range(60)], slots=2)
    cluster = site.cluster
    await cluster.start("n0", "n1", "n2", "n3")
    end_at = time.monotonic() + SOAK_S

    async def feed() -> None:
        while time.monotonic() < end_at:
            async with cluster.load(site.keys, 50):
                pass

    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed())
        await site.until_more(len(site.keys))
        while not feeding.done():
            await kill_one(cluster)
            await asyncio.wait((feeding,), timeout=SOAK_KILL_S)
    await site.check()
