"""Claims, renewals and commits in Redis, against locks that are acquired and renewed one a key.

Ten nodes claim 10,000 streams each. What has to be renewed from then on is ten memberships; a lock a stream
would be 100,000 renewals in the same while. Claims are compared with python-redis-lock and redis-py's asyncio
Lock on the same keys: each contender takes every key and keeps all of them once, with its best number of
threads or tasks, in one process.

Commits are those of the state store: state, place and result of one message in one atomic write.

Run as ``python -m benchmarks.redis_coordinator``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import uvloop

from benchmarks.cluster import program
from benchmarks.report import Report
from holdfast.config.settings import Config
from holdfast.config.sources import load
from holdfast.ports.coordinator import Coordinator, Member
from holdfast.rules.streams.ledger import Commit, Result
from holdfast.wiring.services import Services
from simulator.servers import RedisServer

PEERS = {"python-redis-lock": (4, 1, 16), "redis-py": (16, 4, 64)}
"""Threads or tasks that are tried, the best first."""

IN_FLIGHT = 64
"""Calls of one node under way at once."""

TTL_MARGIN = 20
"""How much longer than by default memberships live while claims are measured: nothing renews them then."""

STATE = bytes(1024)


async def at_once(call: Callable[[str], Awaitable[object]], keys: Iterable[str]) -> None:
    """Make a call for every key, ``IN_FLIGHT`` at a time."""
    remaining = iter(keys)

    async def work() -> None:
        for key in remaining:
            await call(key)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


class Nodes:
    """So many members of one coordinator, each with its own connection."""

    def __init__(self, config: Config, services: Sequence[Services]) -> None:
        self.config = config
        self.services = services
        self.coordinators: list[Coordinator] = [each.coordinator() for each in services]
        self.members = [Member(f"member-{n}", f"n{n}", "127.0.0.1:1") for n in range(len(services))]

    async def join(self) -> None:
        """All join."""
        for coordinator, member in zip(self.coordinators, self.members, strict=True):
            await coordinator.join(member, TTL_MARGIN * self.config.ttl_s)

    async def claim(self, streams: int) -> None:
        """Each claims so many streams, one node after another."""
        for coordinator, member in zip(self.coordinators, self.members, strict=True):
            keys = (f"stream/{member.id}-{n}" for n in range(streams))
            await at_once(lambda key, c=coordinator, m=member: c.claim(key, m.id), keys)  # type: ignore[misc]

    async def renew(self) -> None:
        """Each renews once, and thereby all that it claims."""
        pairs = zip(self.coordinators, self.members, strict=True)
        await asyncio.gather(*(one.renew(member, TTL_MARGIN * self.config.ttl_s) for one, member in pairs))

    async def commit(self, keys: int, commits: int) -> float:
        """Commits a second of one node: each key's in order, ``IN_FLIGHT`` keys at once."""
        state = self.services[0].state()

        async def run(key: str) -> None:
            opened = await state.open(key, 0, self.members[0].id)
            for number in range(opened.number + 1, opened.number + 1 + commits // keys):
                result = Result(f"0:{number}", b"[1,2]")
                await state.commit(
                    Commit(
                        key=key,
                        epoch=opened.epoch,
                        number=number,
                        id=f"{key}-{number}",
                        log=None,
                        state=STATE,
                        results=(result,),
                        done=1,
                    )
                )

        begin_at = time.monotonic()
        await at_once(run, (f"stream/commits-{n}" for n in range(keys)))
        return commits // keys * keys / (time.monotonic() - begin_at)


@contextlib.asynccontextmanager
async def open_nodes(url: str, count: int) -> AsyncIterator[Nodes]:
    """Members on the Redis at ``url``."""
    config = load({"coordinator_url": url, "state_url": url})
    async with contextlib.AsyncExitStack() as stack:
        services = [await stack.enter_async_context(Services(config)) for _ in range(count)]
        yield Nodes(config, services)


async def commands(server: RedisServer) -> int:
    """Commands that clients sent so far, these questions not counted."""
    async with server.client() as client:
        stats: dict[str, dict[str, int]] = await client.info("commandstats")
    asked = ("info", "hello", "client", "ping", "command", "script")
    return sum(
        told["calls"] for name, told in stats.items() if not name.removeprefix("cmdstat_").startswith(asked)
    )


async def holdfast(nodes: int, streams: int, commits: int, report: Report) -> float:
    """Claims and one renewal of everything; returns streams a second."""
    async with RedisServer() as server, open_nodes(server.url, nodes) as members:
        await members.join()
        begin_at = time.monotonic()
        await members.claim(streams)
        claimed_at = time.monotonic()
        await members.renew()
        rate = nodes * streams / (time.monotonic() - begin_at)
        report.figure("claims_per_s", nodes * streams / (claimed_at - begin_at))
        if len(await members.coordinators[0].claims()) != nodes * streams:
            raise AssertionError("not every stream is claimed")
        before, begin_at, renew_s = await commands(server), time.monotonic(), members.config.renew_s
        for turn in range(2):
            await members.renew()
            await asyncio.sleep(max(0.0, begin_at + (turn + 1) * renew_s - time.monotonic()))
        sent = await commands(server) - before
        report.figure("renewals_per_s", sent / (2 * renew_s), f"≤ {nodes / renew_s:.3g}: one a node")
        report.figure("lock_renewals_per_s", nodes * streams / renew_s)
        report.figure("commits_per_s", await members.commit(IN_FLIGHT, commits))
        return rate


async def lock(name: str, keys: int, workers: int) -> float:
    """Keys a second that are locked and renewed once."""
    async with RedisServer() as server:
        arguments = (name, str(server.port), str(keys), str(workers))
        async with program("benchmarks.peers.redis_locks", *arguments) as started:
            return keys / float(await started.output.readline())


async def measure(nodes: int, streams: int, locks: int, full: bool, report: Report) -> None:
    """All contenders, then the ratio."""
    ours = await holdfast(nodes, streams, locks, report)
    rates = {
        f"{name}, {workers}": await lock(name, locks, workers)
        for name, many in PEERS.items()
        for workers in (many if full else many[:2])
    }
    for name, rate in rates.items():
        report.say(f"    {name}: {rate:,.0f} keys/s")
    report.figure("claims_vs_redis_lock", ours / max(rates.values()))
    report.detail["keys_per_s"] = {name: round(rate) for name, rate in {"holdfast": ours, **rates}.items()}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.redis_coordinator", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="as many locks as streams, more threads and tasks"
    )
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--streams", type=int, default=10_000, help="of each node")
    parser.add_argument("--locks", type=int, help="keys to lock, and commits (default 10,000)")
    asked = parser.parse_args()
    locks = asked.locks or (asked.nodes * asked.streams if asked.full else 10_000)
    report = Report("redis_coordinator")
    report.say(
        f"redis-coordinator: {asked.nodes} nodes claim {asked.streams:,} streams each;"
        f" {locks:,} keys are locked"
    )
    uvloop.run(measure(asked.nodes, asked.streams, locks, asked.full, report))
    report.end(
        ["redis", "python-redis-lock"],
        nodes=asked.nodes,
        streams_per_node=asked.streams,
        locks=locks,
        in_flight=IN_FLIGHT,
        durability="Redis in memory, for all",
    )


if __name__ == "__main__":
    main()
