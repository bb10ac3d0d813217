"""How often a costly model is loaded when many first requests come at once, and how long they wait.

Three nodes with six slots each, behind three gateways: gateways that place streams at the same instant don't
know of one another, and a slot that gets two such streams would load one model after the other. For each of
ten new streams twenty clients send a frame at the same instant, through all gateways: 200 requests for
streams that nobody has heard of. A model takes 2 s to load.

- loads, latency_vs_one_load: each stream has a model of its own; the longest wait of any request, against
  that of one request alone for a stream with such a model.
- shared_loads, shared_latency_vs_one_load: all streams use the same model, which a slot loads once.

Run as ``python -m benchmarks.cold_load``.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.apps import COLD_LOAD_S
from benchmarks.cluster import cluster, workplace
from benchmarks.gateways import gateways
from benchmarks.report import Report

NODES, SLOTS, GATEWAYS = 3, 6, 3
STREAMS, REQUESTS = 10, 200


class Clients:
    """Send requests and measure how long each waits."""

    def __init__(self, session: aiohttp.ClientSession, addresses: list[str]) -> None:
        self._session = session
        self._addresses = addresses
        self.errors = 0

    async def one(self, stream: str, key: str, n: int, gateway: int) -> float:
        """Seconds that one request waits."""
        begun_at = time.monotonic()
        async with self._session.post(
            f"{self._addresses[gateway]}/process/{key}",
            json={"key": key, "n": n},
            headers={"X-Stream": stream, "X-Seq": str(n)},
        ) as response:
            self.errors += response.status != 200
            await response.read()
        return time.monotonic() - begun_at

    async def burst(self, stream: str, prefix: str) -> list[float]:
        """All requests at once: seconds that each waits."""
        return await asyncio.gather(
            *(
                self.one(stream, f"{prefix}-{number % STREAMS}", number // STREAMS, number % GATEWAYS)
                for number in range(REQUESTS)
            )
        )


async def measure(report: Report, rounds: int, place: Path) -> None:
    """One request alone, then bursts."""
    noted = place / "loads"
    errors = 0
    ratios: dict[str, list[float]] = {"own": [], "shared": []}
    loads: dict[str, list[int]] = {"own": [], "shared": []}
    async with (
        cluster("benchmarks.apps:cold", {"COLD_LOADS": str(noted)}, slots=SLOTS, balance_s=0) as nodes,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        for number in range(rounds):
            await nodes.start_all(NODES)  # slots that have loaded nothing
            async with gateways(nodes, GATEWAYS) as addresses:
                clients = Clients(session, addresses)
                alone_s = await clients.one("own", f"alone-{number}", 0, 0)
                for stream, compared in ratios.items():
                    noted.write_text("")
                    waits = await clients.burst(stream, f"{stream}-{number}")
                    loads[stream].append(len(noted.read_text().splitlines()))
                    compared.append(max(waits) / alone_s)
                    report.say(
                        f"  {stream}: {loads[stream][-1]} loads; one alone {1000 * alone_s:,.0f} ms, of"
                        f" {REQUESTS} the median {1000 * median(waits):,.0f} ms,"
                        f" the longest {1000 * max(waits):,.0f} ms"
                    )
                errors += clients.errors
            nodes.kill()
            await asyncio.gather(*(node.process.wait() for node in nodes.nodes))
            nodes.nodes.clear()
    report.figure("loads", max(loads["own"]), f"{STREAMS}")
    report.figure("latency_vs_one_load", max(ratios["own"]), "≤ 1.10")
    report.figure("shared_loads", max(loads["shared"]), f"≤ {STREAMS}")
    report.figure("shared_latency_vs_one_load", max(ratios["shared"]), "≤ 1.10")
    report.figure("errors", errors, "0")
    report.detail |= {"ratios": ratios, "loads": loads}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.cold_load", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--rounds", type=int, help="default 2, with --full 10")
    asked = parser.parse_args()
    rounds = asked.rounds or (10 if asked.full else 2)
    report = Report("cold-load")
    report.say(
        f"cold-load: {REQUESTS} first requests at once, {STREAMS} new streams, {GATEWAYS} gateways, {NODES}"
        f" nodes with {SLOTS} slots; a model loads for {COLD_LOAD_S:g} s; {rounds} rounds"
    )
    with workplace() as place:
        asyncio.run(measure(report, rounds, place))
    report.end(["aiohttp"], rounds=rounds, data_plane="python", durability="full")


if __name__ == "__main__":
    main()
