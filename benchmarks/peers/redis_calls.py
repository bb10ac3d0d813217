"""What calls of Redis cost with one client.

Arguments: ``holdfast`` or ``redis-py``; the kind (``single``, ``cluster`` or ``sentinel``); the server's
URL as Holdfast writes it; how many calls. A call is a script that writes 1 kB under its key and counts,
as a commit does. Prints a line of JSON with processor time and rate; of ``sentinel``, first "ready", and
after a fail-over how long no call was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvloop
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import RedisError

from holdfast.errors import HoldfastError
from holdfast.ports.meter import Meter
from holdfast.services.redis.address import RedisAddress, parse
from holdfast.services.redis.connection import RedisConnection
from holdfast.services.redis.script import Script

CALLERS = 64
WARM_UP = 2_000
BODY = bytes(1024)
TEXT = "redis.call('HSET', KEYS[1], 'body', ARGV[1]) return redis.call('HINCRBY', KEYS[1], 'count', 1)"
SCRIPT = Script("benchmark", TEXT, hashlib.sha1(TEXT.encode(), usedforsecurity=False).hexdigest())
TIMEOUT_S = 2.0
PAUSE_S = 0.02
CALM_S = 1.0

Call = Callable[[str], Awaitable[object]]


@contextlib.asynccontextmanager
async def with_holdfast(address: RedisAddress) -> AsyncIterator[Call]:
    """With the connection that nodes have."""
    connection = RedisConnection(address, Meter())
    try:
        yield lambda key: connection.script(SCRIPT, [key], BODY)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def with_redis_py(address: RedisAddress) -> AsyncIterator[Call]:
    """With the library's own clients, as they come; as many connections as callers."""
    settings: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    (host, port), *_ = address.hosts
    client: Any
    if address.kind == "cluster":
        nodes = [ClusterNode(*known) for known in address.hosts]
        client = RedisCluster(startup_nodes=nodes, max_connections=CALLERS, **settings)
    elif address.kind == "sentinel":
        sentinels: Any = Sentinel  # untyped
        client = sentinels(list(address.hosts), sentinel_kwargs=settings, **settings).master_for(
            address.service
        )
    else:
        client = Redis(host=host, port=port, max_connections=CALLERS, **settings)
    try:
        script = client.register_script(TEXT)
        yield lambda key: script(keys=[key], args=[BODY])
    finally:
        await client.aclose()


CONTENDERS = {"holdfast": with_holdfast, "redis-py": with_redis_py}


async def call_all(call: Call, calls: int, *, errors: bool = False) -> None:
    """So many calls, ``CALLERS`` at once, each of them on its own keys. With ``errors`` they may fail."""
    remaining = iter(range(calls))

    async def call_some(caller: int) -> None:
        for number in remaining:
            await call(f"{caller}-{number % 8}")

    await asyncio.gather(*map(call_some, range(CALLERS)), return_exceptions=errors)


async def rate(call: Call, calls: int) -> dict[str, float]:
    """Processor time and rate of calls."""
    await call_all(call, WARM_UP, errors=True)  # the library's client of a Cluster may break as it connects
    begin_s, cpu_s = time.monotonic(), time.process_time()
    await call_all(call, calls)
    cpu_s, took_s = time.process_time() - cpu_s, time.monotonic() - begin_s
    return {"cpu_us": 1e6 * cpu_s / calls, "per_s": calls / took_s}


async def stall(call: Call) -> dict[str, float]:
    """The longest time without an answer, from when this is told to go on until calls are answered again."""
    answered_at = time.monotonic()
    longest_s, failed = 0.0, 0
    over_at = float("inf")
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    failover = loop.run_in_executor(None, sys.stdin.readline)  # the line comes once there is another master
    while (now := time.monotonic()) < over_at:
        try:
            await call("key")
            longest_s = max(longest_s, time.monotonic() - answered_at)
            answered_at = time.monotonic()
        except (HoldfastError, RedisError, OSError, TimeoutError):
            failed += 1
        if failover.done() and over_at == float("inf") and answered_at >= now:
            over_at = time.monotonic() + CALM_S
        await asyncio.sleep(PAUSE_S)
    return {"stall_s": longest_s, "failed": float(failed)}


async def told(contender: str, kind: str, url: str, calls: int) -> dict[str, float]:
    """The figures of one client."""
    async with CONTENDERS[contender](parse(url)) as call:
        return await (stall(call) if kind == "sentinel" else rate(call, calls))


def main() -> None:
    """Measure one client."""
    contender, kind, url, calls = sys.argv[1:]
    print(json.dumps(uvloop.run(told(contender, kind, url, int(calls)))), flush=True)


if __name__ == "__main__":
    main()
