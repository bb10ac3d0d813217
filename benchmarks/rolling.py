"""What clients see while all nodes and gateways of a release on Kubernetes are replaced.

The chart is rendered by Helm for PostgreSQL. The pods of its manifests run as processes of this machine, with
their own commands, variables and probes, and are started and ended in Kubernetes' order: three nodes, two
gateways. Clients send the messages of sixty streams at an even pace through the gateways that are ready. All
nodes are replaced one by one, then all gateways.

- stall: the longest time from when a message was due to its answer, for each stream that the node owned, from
  when the node gets SIGTERM. Undisturbed messages take ``undisturbed_p50_ms``.
- starting: the same while the new node starts, which takes processor time from all others on this machine.
- errors: messages that were answered with anything but a result.
- silent: in another release one of three nodes is stopped without a word; how long until all its streams have
  answered again, with ``silent_errors``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from benchmarks.cluster import ROOT, workplace
from benchmarks.pacing import PacedClients, Request
from benchmarks.report import Report, percentile
from holdfast.config.settings import Config
from holdfast.wiring.services import Services
from simulator.charts import manifests, of_kind
from simulator.pods import Deployment, Pod
from simulator.servers import PostgresqlServer
from simulator.servers.server import until

STREAM = "numbers"
KEYS = 60
PER_S = 120.0
SETTLE_S = 2.0
LEAD_S = 0.2
"""Messages that were due so long before a disturbance may still be under way."""

PATIENCE_S = 60.0

EXAMPLE = ROOT / "deploy/helm/examples/postgres.yaml"
SMALL = {
    "nodes__settings": {"slots": 1},
    "gateway__noAuth": True,
    "gateway__keys": {"secret": ""},
    "migrations__enabled": False,
    "console__enabled": False,
}
"""What is changed in the example: no clients are known, and a new PostgreSQL gets its tables from the first
node."""

APP = """
from holdfast import App, StreamHandler

app = App("cameras")


@app.stream("numbers", key="key", seq="n", first_seq=0)
class Numbers(StreamHandler[dict]):
    def open(self, context, state):
        self.count = int(state or b"0")

    def process(self, message, context):
        self.count += 1
        return [message["n"], self.count]

    def snapshot(self):
        return str(self.count).encode()
"""

PEER_SECRET = "of-nodes-and-gateways-of-the-benchmark"
METRICS_TOKEN = "of-prometheus-of-the-benchmark"  # made up


class Committed(NamedTuple):
    """How many messages of each key were committed, how many of all out of order or twice, and how often the
    mean stream has moved."""

    counts: Mapping[str, int]
    out_of_order: int
    moves: float


class Clients(PacedClients):
    """The clients, each of which sends to one of the ready gateways."""

    def __init__(self, ready: Callable[[], Sequence[Pod]]) -> None:
        super().__init__([f"k{number}" for number in range(KEYS)], PER_S)
        self._ready = ready

    def request(self, stream: str, number: int) -> Request:
        gateways = self._ready()
        body = msgspec.json.encode({"key": stream, "n": number})
        url = f"{gateways[number % len(gateways)].url}/process/{stream}"
        return Request(url, body, "application/json")

    async def answered_since(self, keys: Sequence[str], since: float) -> float:
        """Wait until each of these streams has had a result of a message that was due since then; return the
        monotonic time at which the last one had."""

        async def are_answered() -> bool:
            return all(self._first_result(key, since) is not None for key in keys)

        await until(are_answered, "the streams are answered for", PATIENCE_S)
        return max(self._first_result(key, since) or since for key in keys)

    def _first_result(self, key: str, since: float) -> float | None:
        times = (each.at for each in self.answered[key] if each.due_at > since and each.status == 200)
        return min(times, default=None)


class Release:
    """The nodes and gateways of the chart, and what they work with."""

    def __init__(self, nodes: Deployment, gateways: Deployment, services: Services) -> None:
        self.nodes = nodes
        self.gateways = gateways
        self.services = services

    async def owned(self, pod: Pod) -> list[str]:
        """The keys that a node owns."""
        coordinator = self.services.coordinator()
        names = {member.id: member.name for member in await coordinator.members()}
        keys = [f"k{number}" for number in range(KEYS)]
        claims = await asyncio.gather(*(coordinator.lookup(f"{STREAM}/{key}") for key in keys))
        return [
            key
            for key, claim in zip(keys, claims, strict=True)
            if claim is not None and names.get(claim.member) == pod.name
        ]

    async def committed(self) -> Committed:
        """What nodes have committed until now."""
        counts, wrong, epochs, after = Counter[str](), 0, set[tuple[str, int]](), 0
        while page := await self.services.state().results(after, 5000):
            for logged in page:
                key = logged.key.partition("/")[2]
                wrong += msgspec.json.decode(logged.result.body) != [counts[key], counts[key] + 1]
                counts[key] += 1
                epochs.add((key, logged.epoch))
            after = page[-1].cursor
        return Committed(counts, wrong, (len(epochs) - len(counts)) / len(counts))


@contextlib.asynccontextmanager
async def released(folder: Path, **values: Any) -> AsyncIterator[Release]:
    """Run a release of the chart, with some values changed, on a PostgreSQL of its own."""
    (folder / "cameras.py").write_text(APP)
    server = PostgresqlServer()
    await server.start()
    secrets: Mapping[str, Mapping[str, str]] = {
        "cameras": {"HOLDFAST_URL": server.url, "HOLDFAST_PEER_SECRET": PEER_SECRET},
        "cameras-prometheus": {"token": METRICS_TOKEN},
    }
    try:
        found = of_kind(manifests(EXAMPLE, **SMALL | values), "Deployment")
        deployments = [
            Deployment(found[name], folder, secrets)
            for name in ("cams-holdfast-main", "cams-holdfast-gateway")
        ]
        async with Services(Config(url=server.url)) as services, contextlib.AsyncExitStack() as stack:
            for deployment in deployments:
                await stack.enter_async_context(deployment.running())
            nodes, gateways = deployments
            yield Release(nodes, gateways, services)
    finally:
        await server.stop()


async def silence(report: Report, folder: Path) -> None:
    """A node stops silently. Others notice only that it doesn't renew its membership."""
    async with released(folder) as release:
        clients = Clients(lambda: release.gateways.ready)
        sending = asyncio.create_task(clients.run())
        await asyncio.sleep(2 * SETTLE_S)
        silent, ttl_s = release.nodes.pods[0], release.services.config.ttl_s
        owned, silent_at = await release.owned(silent), time.monotonic()
        silent.stop()
        silent_s = await clients.answered_since(owned, silent_at) - silent_at
        silent.kill()
        clients.end()
        await sending
    report.figure("silent_s", silent_s, f"≤ {ttl_s + 1:g}: ttl_s and a second")
    report.figure("silent_errors", sum(clients.errors().values()), "0")
    report.detail |= {"silent_streams": len(owned), "silent_errors_by_kind": clients.errors()}


async def measure(report: Report, folder: Path) -> None:
    """All figures of an update."""
    async with released(folder) as release:
        clients = Clients(lambda: release.gateways.ready)
        sending = asyncio.create_task(clients.run())
        await asyncio.sleep(2 * SETTLE_S)
        calm = time.monotonic()
        stalls, starting = list[float](), list[float]()
        for pod in release.nodes.begin_update():
            owned, begun = await release.owned(pod), time.monotonic()
            await release.nodes.add()
            drained_at = time.monotonic()
            release.nodes.end(pod)
            await release.nodes.settled()
            await asyncio.sleep(SETTLE_S)
            starting += map(max, clients.waits_ms(owned, begun, drained_at - LEAD_S))
            stalls += map(max, clients.waits_ms(owned, drained_at - LEAD_S, time.monotonic() - SETTLE_S / 2))
        since = time.monotonic()
        await release.gateways.roll()
        await release.gateways.settled()
        await asyncio.sleep(SETTLE_S)
        everybody = clients.waits_ms(list(clients.answered), since, time.monotonic() - SETTLE_S / 2)
        clients.end()
        await sending
        committed = await release.committed()
    undisturbed = [wait for waits in clients.waits_ms(list(clients.answered), 0.0, calm) for wait in waits]
    sent = sum(map(len, clients.answered.values()))
    report.figure("stall_p99_ms", percentile(stalls, 99), "< 300")
    report.figure("stall_p50_ms", median(stalls))
    report.figure("starting_p99_ms", percentile(starting, 99))
    report.figure("gateways_p99_ms", percentile([wait for waits in everybody for wait in waits], 99), "< 300")
    report.figure("undisturbed_p50_ms", median(undisturbed))
    report.figure("errors", sum(clients.errors().values()), "0")
    report.figure("lost", sent - sum(committed.counts.values()), "0")
    report.figure("out_of_order", committed.out_of_order, "0")
    report.figure("moves_per_stream", committed.moves, "≤ 1.2")
    report.detail |= {"errors_by_kind": clients.errors(), "messages": sent, "moved_streams": len(stalls)}


def main() -> None:
    """Measure and report."""
    argparse.ArgumentParser(prog="benchmarks rolling", description=__doc__).parse_args()
    report = Report("rolling")
    report.say(f"rolling: 3 nodes and 2 gateways replaced; {KEYS} streams, {PER_S:g} messages/s, PostgreSQL")
    with workplace() as place:
        asyncio.run(measure(report, place))
    with workplace() as place:
        asyncio.run(silence(report, place))
    report.end(["aiohttp", "psycopg"], streams=KEYS, per_s=PER_S, durability="full")
