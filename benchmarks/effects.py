"""Streams that send one effect a message, against the same stream and a follower that sends its results.

All messages show at one instant to warm nodes; the clock stops when the target, another stream, has committed
the last one. The follower is what one writes without effects: it reads the log of results, sends what it read
to the target's queue in batches as large as they come, each with an id, and then keeps its cursor, confirmed
by the disk. It has a process for itself, and no replacement if it dies; effects need neither.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from statistics import median

from benchmarks.cluster import Cluster, cluster
from benchmarks.report import Report, percentile
from holdfast.ports.queue import Outgoing

NODES = 2
TIMEOUT_S = 120.0
CHECK_S = 0.005
PAGE = 1000
"""The most results that the follower reads in one call."""

PACE_S = 0.02


class Follower:
    """Sends the results in a stream's log to another stream, and stores its position."""

    def __init__(self, nodes: Cluster, stream: str) -> None:
        self._state = nodes.services.state()
        self._queue = nodes.services.queue("sink")
        self._stream = stream
        self._cursors = sqlite3.connect(
            nodes.database.parent / "follower.db", isolation_level=None, check_same_thread=False
        )
        self._cursors.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        self._cursors.execute("CREATE TABLE cursor (at INTEGER)")
        self._cursors.execute("INSERT INTO cursor VALUES (0)")

    async def run(self) -> None:
        """Follow for ever."""
        (after,) = self._cursors.execute("SELECT at FROM cursor").fetchone()
        size = self._queue.max_batch
        while True:
            found = await self._state.results(after, PAGE, wait_s=1.0, stream=self._stream)
            if not found:
                continue
            sent = [
                Outgoing(
                    b'{"key":"%s",%s' % (logged.key.partition("/")[2].encode(), logged.result.body[1:]),
                    {"id": f"{logged.key}:{logged.result.name}"},
                )
                for logged in found
            ]
            await asyncio.gather(*(self._queue.send(sent[i : i + size]) for i in range(0, len(sent), size)))
            after = found[-1].cursor
            await asyncio.to_thread(self._keep, after)

    def _keep(self, after: int) -> None:
        self._cursors.execute("UPDATE cursor SET at = ?", (after,))

    def close(self) -> None:
        """Close its file."""
        self._cursors.close()


@contextlib.asynccontextmanager
async def following(nodes: Cluster, stream: str, wanted: bool) -> AsyncIterator[None]:
    """A follower, where one is wanted."""
    if not wanted:
        yield
        return
    follower = Follower(nodes, stream)
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(follower.run())
            yield
            running.cancel()
    finally:
        follower.close()


async def arrived(nodes: Cluster, count: int) -> float:
    """Wait until the target has committed so many messages; returns the monotonic time of that."""
    clock = nodes.services.clock
    deadline = clock.monotonic() + TIMEOUT_S
    with contextlib.closing(
        sqlite3.connect(f"file:{nodes.database}?mode=ro", uri=True, isolation_level=None)
    ) as database:
        done = 0
        while done < count:
            row = database.execute("SELECT sum(done) FROM checkpoints WHERE key GLOB 'sink/*'").fetchone()
            done = row[0] or 0
            if clock.monotonic() > deadline:
                raise RuntimeError(f"{done} of {count} effects have arrived after {TIMEOUT_S:g} s")
            await asyncio.sleep(CHECK_S)
        return clock.monotonic()


async def rate(messages: int, keys: int, lead_s: float, follow: bool) -> float:
    """Messages a second, until the target has committed what they led to."""
    stream = "teller" if follow else "sender"
    async with cluster("benchmarks.apps:effects", slots=1) as nodes:
        await nodes.start_all(NODES)
        async with following(nodes, stream, follow):
            await nodes.send(stream, (_body(key, 0) for key in range(keys)))
            await arrived(nodes, keys)
            numbers = range(keys, keys + messages)
            with nodes.sending(lead_s) as begin_at:
                await nodes.send(stream, (_body(n % keys, n // keys) for n in numbers), begin_at)
            end_at = await arrived(nodes, keys + messages)
        await verify(nodes, messages + keys)
        return messages / (end_at - begin_at)


async def latencies_ms(messages: int, keys: int, follow: bool) -> list[float]:
    """From the commit of each of some paced messages to the target's handler."""
    stream = "teller" if follow else "both"
    async with cluster("benchmarks.apps:effects", slots=1) as nodes:
        await nodes.start_all(NODES)
        async with following(nodes, stream, follow):
            await nodes.send(stream, (_body(key, 0) for key in range(keys)))
            await arrived(nodes, keys)
            for n in range(keys, keys + messages):
                await nodes.send(stream, [_body(n % keys, n // keys)])
                await asyncio.sleep(PACE_S)
            await arrived(nodes, keys + messages)
        committed: dict[tuple[str, int], float] = {}
        came: dict[tuple[str, int], float] = {}
        async for logged in nodes.results():
            name, _, key = logged.key.partition("/")
            result = json.loads(logged.result.body)
            if name == "sink":
                came[key, int(result[0])] = result[1]
            else:
                committed[key, result["n"]] = logged.at
        return [1000 * (came[each] - at) for each, at in committed.items() if each[1] > 0]


def _body(key: int, n: int) -> bytes:
    return b'{"key":"k%d","n":%d}' % (key, n)


async def verify(nodes: Cluster, messages: int) -> None:
    """Every message came to the target once."""
    came = [
        (logged.key, int(json.loads(logged.result.body)[0])) async for logged in nodes.results(stream="sink")
    ]
    if len(came) != messages or len(set(came)) != messages:
        raise AssertionError(f"{len(came)} effects came, {len(set(came))} different ones, for {messages}")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks effects", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--paced", type=int, default=300, help="messages by which the latency is measured")
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--rounds", type=int, help="the median counts (default 3, with --full 7)")
    parser.add_argument("--lead-s", type=float, default=2.0, help="for sending, before all show")
    asked = parser.parse_args()
    rounds = asked.rounds or (7 if asked.full else 3)
    report = Report("effects")
    report.say(f"effects: {asked.messages:,} messages of {asked.keys} keys, each of which sends one effect")
    rates: dict[str, list[float]] = {"effects": [], "follower": []}
    for _ in range(rounds):
        for name, measured in rates.items():
            measured.append(asyncio.run(rate(asked.messages, asked.keys, asked.lead_s, name == "follower")))
            report.say(f"    {name} {measured[-1]:,.0f}/s")
    report.figure("messages_per_s", median(rates["effects"]))
    report.figure("vs_follower", median(rates["effects"]) / median(rates["follower"]), "≥ 1.3")
    took_ms = asyncio.run(latencies_ms(asked.paced, asked.keys, follow=False))
    report.figure("effect_p50_ms", median(took_ms), "≤ 15")
    report.figure("effect_p99_ms", percentile(took_ms, 99))
    followed_ms = asyncio.run(latencies_ms(asked.paced, asked.keys, follow=True))
    report.figure("follower_p50_ms", median(followed_ms))
    report.end(
        messages=asked.messages,
        keys=asked.keys,
        nodes=NODES,
        rates=rates,
        durability="SQLite, full: commits and the follower's cursor are confirmed by the disk",
    )
