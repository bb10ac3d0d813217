"""A broker and simulated devices, each in a process of its own, for benchmarks of the outbox."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

from holdfast.cli.simulate import devices_named
from holdfast.testing.servers import MosquittoServer

__all__ = ["broker", "devices_named", "fleet"]

READY_S = 30.0


@contextlib.asynccontextmanager
async def broker() -> AsyncIterator[MosquittoServer]:
    """Mosquitto with TCP_NODELAY and without limits on what is under way."""
    async with MosquittoServer() as server:
        yield server


@contextlib.asynccontextmanager
async def fleet(url: str, count: int, *arguments: str) -> AsyncIterator[None]:
    """``holdfast devices simulate`` in another process; ``arguments`` as that takes them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "devices", "simulate", url, "--count", str(count), "--json"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        ready = await asyncio.wait_for(process.stdout.readline(), READY_S)
        if b"ready" not in ready:
            raise RuntimeError(f"the simulated devices didn't start: {ready!r}")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()
