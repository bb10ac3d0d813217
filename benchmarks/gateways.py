"""Gateways as real processes, as the command line starts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

from benchmarks.cluster import ROOT, Cluster, LoggedProcess


@contextlib.asynccontextmanager
async def gateways(
    nodes: Cluster,
    count: int,
    data_plane: str = "python",
    on: set[int] | None = None,
    *,
    metrics_port: int = 0,
) -> AsyncIterator[list[str]]:
    """Run so many gateways to the nodes of a cluster, perhaps on these cores only; gives their addresses."""
    settings = nodes.config.environment() | {"HOLDFAST_METRICS_PORT": str(metrics_port)}
    command = ("holdfast", "gateway", "--port", "0", "--data-plane", data_plane)
    started = [
        LoggedProcess(
            f"gateway {number}",
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *command,
                cwd=ROOT,
                env=os.environ | settings,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                preexec_fn=None if on is None else lambda: os.sched_setaffinity(0, on),
            ),
            "gateway runs",
        )
        for number in range(count)
    ]
    try:
        await asyncio.gather(*(gateway.ready() for gateway in started))
        yield [gateway.address for gateway in started]
    finally:
        for gateway in started:
            with contextlib.suppress(ProcessLookupError):
                gateway.process.terminate()
        await asyncio.gather(*(gateway.process.wait() for gateway in started))
