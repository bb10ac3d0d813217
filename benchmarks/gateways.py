"""Gateways as real processes, as the command line starts them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator

from benchmarks.cluster import ROOT, Cluster

READY_TIMEOUT_S = 60.0


class GatewayProcess:
    """One ``holdfast gateway``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = ""
        self.log: list[str] = []
        self._runs = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def runs(self) -> None:
        """Return when it takes requests. Raises RuntimeError with its log if it doesn't in time."""
        waits = asyncio.create_task(self._runs.wait())
        await asyncio.wait((waits, self._reading), timeout=READY_TIMEOUT_S, return_when="FIRST_COMPLETED")
        waits.cancel()
        if not self._runs.is_set():
            raise RuntimeError("a gateway did not start:\n" + "\n".join(self.log))

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            with contextlib.suppress(ValueError):
                event = json.loads(text)
                if event.get("event") == "gateway runs":
                    self.address = event["address"]
                    self._runs.set()


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
        GatewayProcess(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *command,
                cwd=ROOT,
                env=os.environ | settings,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                preexec_fn=None if on is None else lambda: os.sched_setaffinity(0, on),
            )
        )
        for _ in range(count)
    ]
    try:
        await asyncio.gather(*(gateway.runs() for gateway in started))
        yield [gateway.address for gateway in started]
    finally:
        for gateway in started:
            with contextlib.suppress(ProcessLookupError):
                gateway.process.terminate()
        await asyncio.gather(*(gateway.process.wait() for gateway in started))
