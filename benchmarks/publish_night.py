"""A night of reports: orders of very different sizes, for many customers, whose connections are cut.

Sizes are log-normal: as from 5 KB to 2 GB, scaled to the machine. All are ordered at once; one node with
four slots reads them from Parquet, writes CSV, and delivers it to an S3 through a proxy, which resets all
connections that stand, once for each hundred orders. The limit, measured in the same run, is the time that
four threads take to put as many bytes in files of the same sizes straight to the same server, with boto3: so
it is that of the bare path, without reading, formatting, checking or recording anything, and no night can be
that short. What a night takes beyond is told as CPU time: of the slots, which do the work, and of the node,
which hands it out.

Run as ``python -m benchmarks.publish_night``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import math
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist
from typing import Any

import boto3
import psutil
from boto3.s3.transfer import TransferConfig

from benchmarks import tables
from benchmarks.cluster import Cluster, cluster, until
from benchmarks.report import Report, percentile
from holdfast.reports.audit import TASK_TYPE
from holdfast.rules.tasks.task import State, Task
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from simulator.proxies import TcpFaults
from simulator.servers import FauxqsServer

APP, BUCKET = "night", "reports"
SLOTS = 4
CUSTOMERS = 200
MEDIAN_ROWS = 600
SIGMA = 2.0
"""Of the logarithm of rows: of 1,200 reports the largest has 500 times the rows of the median."""

ROWS_MIN = 20
STEPS = 40
"""Reports of nearly the same size share a source: so many sizes there are."""

ORDERS_A_CUT = 100
SMALL_BYTES = 1_000_000
TIMEOUT_S = 1800.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.publish_night", description=__doc__)
    parser.add_argument("--full", action="store_true", help="1,200 orders, of 2.5 times the rows")
    parser.add_argument("--orders", type=int, help="default 300, with --full 1,200")
    asked = parser.parse_args()
    orders = asked.orders or (1200 if asked.full else 300)
    asyncio.run(_measure(orders, MEDIAN_ROWS * 5 // 2 if asked.full else MEDIAN_ROWS))


async def _measure(orders: int, median_rows: int) -> None:
    report = Report("publish_night")
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        # Quantiles of the distribution, so that its tail is there whatever the chance.
        rows = [max(ROWS_MIN, round(median_rows * math.exp(SIGMA * z))) for z in _quantiles(orders)]
        sizes_of = {count: _rounded(count, rows) for count in rows}
        files = {count: tables.make(Path(folder) / f"{count}.parquet", count) for count in sizes_of.values()}
        sources = [files[sizes_of[count]] for count in rows]
        chance.shuffle(sources)
        async with FauxqsServer() as server, TcpFaults(server.port) as proxy:
            told = server.environment()
            s3 = boto3.client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{server.port}",
                region_name=told["AWS_REGION"],
                aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=told["AWS_SECRET_ACCESS_KEY"],
            )
            where = {"LocationConstraint": told["AWS_REGION"]}
            await asyncio.to_thread(s3.create_bucket, Bucket=BUCKET, CreateBucketConfiguration=where)
            credential = {
                "endpoint_url": f"http://127.0.0.1:{proxy.port}",
                "region": told["AWS_REGION"],
                "access_key_id": told["AWS_ACCESS_KEY_ID"],
                "secret_access_key": told["AWS_SECRET_ACCESS_KEY"],
            }
            environment = {"HOLDFAST_CREDENTIAL_SERVER": json.dumps(credential)}
            wanted = [_order(n, source) for n, source in enumerate(sources)]
            async with cluster(
                "benchmarks.publish_app:app", environment, task_slots=SLOTS, durability="normal"
            ) as nodes:
                tasks, makespan_s, cuts = await _night(nodes, proxy, wanted)
                node_cpu_s, slots_cpu_s = _cpu_s(nodes.nodes[0].pid)
            sizes = [file["size"] for task in tasks for file in _files(task)]
            limit_s = await asyncio.to_thread(_limit, s3, sizes)
    failed = sum(task.state is not State.SUCCEED for task in tasks)
    small = sorted(
        task.ended_at - task.started_at
        for task in tasks
        if sum(file["size"] for file in _files(task)) < SMALL_BYTES
    )
    report.say(
        f"publish_night: {orders} orders of {min(sizes):,} to {max(sizes):,} bytes for {CUSTOMERS} customers,"
        f" {SLOTS} slots; all connections were cut {cuts} times"
    )
    report.figure("makespan_vs_limit", makespan_s / limit_s)
    report.figure("failed", failed, "0")
    report.figure("small_p99_s", percentile(small, 99))
    report.end(
        durability="SQLite (WAL), durability=normal; S3 in memory",
        makespan_s=makespan_s,
        limit_s=limit_s,
        slots_cpu_ms_an_order=1000 * slots_cpu_s / orders,
        node_cpu_ms_an_order=1000 * node_cpu_s / orders,
        bytes=sum(sizes),
        cuts=cuts,
        retried=sum(task.attempts > 1 for task in tasks),
    )


async def _night(
    nodes: Cluster, proxy: TcpFaults, wanted: Sequence[dict[str, Any]]
) -> tuple[list[Task], float, int]:
    """Order all, and wait for their ends; returns those, the time it took in seconds, and how many cuts."""
    await nodes.start_all(1)
    store = nodes.services.task_store(APP)
    producer = make_producer(nodes.services, APP)
    begun_at = time.monotonic()
    async with _cuts(proxy, len(wanted) // ORDERS_A_CUT, store, len(wanted)) as cuts:
        await producer.send(
            [Order(task_type=TASK_TYPE, body=body, group=body["customer"]) for body in wanted]
        )

        async def all_ended() -> bool:
            return await _ended(store) == len(wanted)

        await until(all_ended, TIMEOUT_S)
    took_s = time.monotonic() - begun_at
    return await store.list(len(wanted)), took_s, len(cuts)


@contextlib.asynccontextmanager
async def _cuts(proxy: TcpFaults, count: int, store: Any, orders: int) -> AsyncIterator[list[int]]:
    """Reset all connections so many times, evenly over the orders."""
    done: list[int] = []

    async def cut() -> None:
        for at in range(count):
            due = orders * (at + 0.5) / count

            async def is_due(due: float = due) -> bool:
                return bool(await _ended(store) >= due and proxy.connections)

            await until(is_due, TIMEOUT_S)
            done.append(proxy.cut())

    cutting = asyncio.create_task(cut())
    try:
        yield done
    finally:
        cutting.cancel()
        await asyncio.wait([cutting])


async def _ended(store: Any) -> int:
    counts = await store.counts()
    return sum(count for (_, state), count in counts.items() if state not in (State.QUEUED, State.RUNNING))


def _order(number: int, source: Path) -> dict[str, Any]:
    return {
        "customer": f"customer-{number % CUSTOMERS}",
        "report": f"report-{number}",
        "tables": [{"sources": [str(source)]}],
        "name": "{report}-{date}.csv",
        "delivery": {"destination": f"s3://{BUCKET}/{number % CUSTOMERS}", "credentials": "server"},
    }


def _files(task: Task) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(task.result)["files"] if task.result else []
    return found


def _limit(s3: Any, sizes: Sequence[int]) -> float:
    """How long it takes to put as many bytes, in files of these sizes, on four threads, in seconds."""
    data = memoryview(bytes(max(sizes)))

    def put(numbered: tuple[int, int]) -> None:
        number, size = numbered
        body = io.BytesIO(data[:size])
        s3.upload_fileobj(body, BUCKET, f"limit/{number % SLOTS}", Config=TransferConfig(use_threads=False))

    begun_at = time.monotonic()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(put, enumerate(sizes)))
    return time.monotonic() - begun_at


def _cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a node since it began, and of its slots."""
    node = psutil.Process(pid)

    def spent(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    return spent(node), sum(spent(child) for child in node.children(recursive=True))


def _rounded(count: int, counts: Sequence[int]) -> int:
    """One of STEPS sizes, in even steps of their logarithm, to which ``count`` is nearest."""
    least, most = math.log(min(counts)), math.log(max(counts))
    step = (most - least) / (STEPS - 1) or 1.0
    return round(math.exp(least + step * round((math.log(count) - least) / step)))


def _quantiles(count: int) -> list[float]:
    """So many values of the normal distribution, equally likely."""
    return [NormalDist().inv_cdf((at + 0.5) / count) for at in range(count)]


if __name__ == "__main__":
    main()
