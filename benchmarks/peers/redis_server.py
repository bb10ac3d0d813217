"""A Redis server for a peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from simulator.servers import RedisServer

AS_IT_COMES = {"save": "3600 1 300 100 60 10000"}
"""The snapshots of Redis' own defaults."""


@contextlib.contextmanager
def redis_server(settings: Mapping[str, str] = AS_IT_COMES) -> Iterator[int]:
    """Run a server; yields its port."""
    server = RedisServer(settings=settings)
    asyncio.run(server.start())
    try:
        yield server.port
    finally:
        asyncio.run(server.stop())
