"""What a console costs: how soon it answers, how large its first page is, and what it spends while idle.

One console on SQLite, a process of its own, with 20 nodes that tell what waits there, a claim and a
checkpoint for each stream, and dead letters in one queue. Once it has read all of them, the overview and a
page of the list of streams are asked for while a stream of events is open, so that the console keeps itself
fresh. The time is that until the first byte of an answer. Then nobody looks any more, and its processor time
is watched.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
import psutil

from benchmarks.cluster import program, until, workplace
from benchmarks.idle import cpu_s
from benchmarks.report import Report, percentile
from holdfast.common.protocol import Done, Reply, Request
from holdfast.config.settings import Config
from holdfast.console.attention import LOOKS_S
from holdfast.operate.survey import NodeReport
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import Checkpoint, RunLog
from holdfast.streams.waiting_streams import StreamWait
from holdfast.wiring.services import Services

STREAM = "cameras"
NODES = 20
TTL_S = 3600.0
WAITING = 50
"""Streams that wait on each node."""

AT_ONCE = 1000
PAUSE_S = 0.02
READ_TIMEOUT_S = 600.0


def key(number: int) -> str:
    """The full key of a stream."""
    return f"{STREAM}/camera-{number:06}"


def answered(request: Request) -> Reply:
    """What a node answers that is asked what waits there."""
    node = getattr(request, "to", "0").partition("-")[2] or "0"
    waits = [
        StreamWait(key(int(node) * WAITING + each), "gap", "seq 7 of run 0", 90.0, 3510.0, 12)
        for each in range(WAITING)
    ]
    return Done(text=msgspec.json.encode(NodeReport(waits=waits)).decode())


async def fill(services: Services, streams: int, letters: int, address: str) -> None:
    """Have nodes join, streams claimed and committed, and messages set aside."""
    members = [
        Member(f"m-{number}", f"node-{number}", address, Load(streams // NODES, 4, handled=number * 1000))
        for number in range(NODES)
    ]
    coordinator, state, queue = services.coordinator(), services.state(), services.queue(STREAM)
    for member in members:
        await coordinator.join(member, TTL_S)
    for first in range(0, streams, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, streams))
        await asyncio.gather(
            *(coordinator.claim(key(number), members[number % NODES].id) for number in numbers)
        )
        await state.restore(  # type: ignore[attr-defined]
            [
                Checkpoint(key(number), 1, 1, log=RunLog(0, 0, number), done=number, at=1e9)
                for number in numbers
            ]
        )
    for first in range(0, letters, queue.max_batch):
        await queue.bury(
            [
                DeadLetter(
                    f"{key(number)}:0:{number}", b'{"frame": 1}', "ValueError: a bad frame", stream=STREAM
                )
                for number in range(first, min(first + queue.max_batch, letters))
            ]
        )


async def first_bytes_ms(
    session: aiohttp.ClientSession, path: str, count: int
) -> tuple[Sequence[float], int]:
    """The times until the first byte of so many answers, and the size of the last one."""
    times, size = [], 0
    loop = asyncio.get_running_loop()
    for _ in range(count):
        begun_at = loop.time()
        async with session.get(path) as answer:
            await answer.content.readany()
            times.append(1000 * (loop.time() - begun_at))
        async with session.get(path) as answer:
            size = len(await answer.read())
            answer.raise_for_status()
        await asyncio.sleep(PAUSE_S)
    return times, size


async def measure(report: Report, place: Path, streams: int, letters: int, count: int, idle_s: float) -> None:
    """All figures."""
    url = f"sqlite:///{place / 'holdfast.db'}"
    async with Services(Config(url=url, durability="normal")) as services:
        peer = services.peer()

        async def answer(request: Request) -> Reply:
            return answered(request)

        address = await peer.serve(answer)
        await fill(services, streams, letters, address)
        async with program("holdfast", "console", "--port", "0", "--url", url) as console:
            line = (await console.output.readline()).decode()
            base = line.removeprefix("console: ").partition("/enter")[0]
            async with aiohttp.ClientSession(base) as session:
                shown = f"{streams:,} streams".replace(",", "\u202f")

                async def has_read() -> bool:
                    async with session.get("/streams") as page:
                        text = await page.text()
                    await asyncio.sleep(0.5)
                    return shown in text and "for the first time" not in text

                await until(has_read, READ_TIMEOUT_S)
                async with session.get("/events"):
                    times, size = await first_bytes_ms(session, "/", count)
                    report.figure("first_byte_p99_ms", percentile(times, 99), "< 150")
                    report.figure("page_kb", size / 1000, "< 150")
                    path = "/streams?sort=done&down=1&text=camera-0&from=1000"
                    times, _ = await first_bytes_ms(session, path, count)
                    report.figure("streams_p99_ms", percentile(times, 99))
            await asyncio.sleep(LOOKS_S + 2.0)
            processes = [psutil.Process(console.pid)]
            before, begun_at = cpu_s(processes), services.clock.monotonic()
            await asyncio.sleep(idle_s)
            spent_s = cpu_s(processes) - before
            report.figure("cpu_percent", 100 * spent_s / (services.clock.monotonic() - begun_at), "< 1")
            report.figure("memory_mb", processes[0].memory_info().rss / 1e6)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks console", description=__doc__)
    parser.add_argument("--full", action="store_true", help="100,000 streams and 10,000 dead letters")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--letters", type=int)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--idle-s", type=float)
    asked = parser.parse_args()
    streams = asked.streams or (100_000 if asked.full else 10_000)
    letters = asked.letters or (10_000 if asked.full else 1_000)
    count = asked.requests or (1000 if asked.full else 200)
    idle_s = asked.idle_s or (60.0 if asked.full else 8.0)
    report = Report("console")
    report.say(f"console: {NODES} nodes, {streams:,} streams, {letters:,} dead letters")
    with workplace() as place:
        asyncio.run(measure(report, place, streams, letters, count, idle_s))
    report.end(
        ["aiohttp", "jinja2"],
        streams=streams,
        letters=letters,
        nodes=NODES,
        durability="normal",
        requests=count,
        idle_s=idle_s,
    )
