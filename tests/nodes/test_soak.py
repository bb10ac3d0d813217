"""Minutes of all faults together. A failing run prints its seed: with CHAOS_SEED, a run starts with the same
faults."""

import asyncio
import os
import signal
import time
from random import Random

import psutil
import pytest

from tests.nodes.cluster import Cluster, until
from tests.nodes.conftest import MakeCluster

KEYS = [f"cam-{i:02}" for i in range(24)]
NODES = 4
MINUTES = float(os.environ.get("CHAOS_MINUTES", "2.5"))
SEED = int(os.environ.get("CHAOS_SEED", str(time.time_ns() % 10_000)))
TTL_S = 2.0
PAUSE_S = 1.2
BAD_DEEDS = ("crash", "leave", "hang", "fail", "hoard", "junk")


class Chaos:
    """Does one bad thing after another, and remembers which messages can't have survived it."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.set_aside: set[tuple[str, int]] = set()
        self.done: dict[str, int] = {}
        self.names = 0

    @property
    def alive(self) -> list[str]:
        """Nodes that run."""
        return [name for name, node in self.cluster.nodes.items() if node.child.poll() is None]

    async def start_node(self) -> None:
        """One more."""
        self.names += 1
        await self.cluster.start(f"n{self.names}")

    async def strike(self) -> None:
        """One bad thing."""
        deeds = [self.kill, self.kill, self.stop, self.stop_in_transaction, self.drain, self.kill_slot]
        deeds += [self.poison] * 3 + [self.kill_all] * (self.random.random() < 0.2)
        deed = self.random.choice(deeds)
        self.done[deed.__name__] = self.done.get(deed.__name__, 0) + 1
        await deed()
        while len(self.alive) < NODES:
            await self.start_node()

    def any_node(self) -> str:
        """One that runs."""
        return self.random.choice(self.alive)

    async def kill(self) -> None:
        node = self.cluster.nodes[self.any_node()]
        node.signal(signal.SIGKILL)
        await node.ended()

    async def kill_all(self) -> None:
        for name in self.alive:
            self.cluster.nodes[name].signal(signal.SIGKILL)
            await self.cluster.nodes[name].ended()

    async def stop(self) -> None:
        """For less than the TTL or for more. Who stops inside a transaction is killed by the others."""
        node = self.cluster.nodes[self.any_node()]
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.uniform(0.1, 2 * TTL_S))
        node.signal(signal.SIGCONT)

    async def stop_in_transaction(self) -> None:
        node = self.cluster.nodes[self.any_node()]
        node.order("stop-in-transaction")
        await self.cluster.send(self.random.choice(KEYS))

    async def drain(self) -> None:
        node = self.cluster.nodes[self.any_node()]
        node.signal(signal.SIGTERM)
        if self.random.random() < 0.5:
            await node.ended()

    async def kill_slot(self) -> None:
        process = psutil.Process(self.cluster.nodes[self.any_node()].child.pid)
        for child in process.children(recursive=True)[-1:]:
            child.kill()

    async def poison(self) -> None:
        key, deed = self.random.choice(KEYS), self.random.choice(BAD_DEEDS)
        self.set_aside.add((key, await self.cluster.send(key, deed)))


@pytest.mark.nightly
@pytest.mark.timeout(0)  # CHAOS_MINUTES
async def test_streams_survive_random_faults_of_nodes(make_cluster: MakeCluster) -> None:
    random = Random(SEED)
    cluster = make_cluster(ttl_s=TTL_S, slots=2)
    chaos = Chaos(cluster, random)
    print(f"seed {SEED}")  # noqa: T201
    for _ in range(NODES):
        await chaos.start_node()
    end_at = time.monotonic() + MINUTES * 60
    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed(cluster, end_at))
        while not feeding.done():
            await chaos.strike()
            await asyncio.wait((feeding,), timeout=random.expovariate(1 / PAUSE_S))
    await cluster.until_all()
    for name in chaos.alive:  # a drain or a stop may still be on its way
        if not cluster.nodes[name].said("node drains"):
            continue
        await cluster.nodes[name].ended()
    print(f"{sum(cluster.sent.values())} messages; {chaos.done}; {len(chaos.set_aside)} set aside")  # noqa: T201
    living = set(chaos.alive)

    async def only_the_living() -> bool:
        return {member.name for member in await cluster.coordinator.members()} == living

    await until(only_the_living, f"no members but {living}")
    await cluster.check(chaos.set_aside, alive=living)


async def feed(cluster: Cluster, end_at: float) -> None:
    """Keep all streams busy until then."""
    while time.monotonic() < end_at:
        async with cluster.load(KEYS, 50):
            pass
