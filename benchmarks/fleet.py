"""A broker and simulated devices, each in a process of its own, for benchmarks of the outbox."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import msgspec

from holdfast.cli.simulate import devices_named
from holdfast.testing.fleet import Counts
from holdfast.testing.servers import MosquittoServer

__all__ = ["Fleet", "broker", "devices_named", "fleet"]

READY_S = 30.0


@contextlib.asynccontextmanager
async def broker() -> AsyncIterator[MosquittoServer]:
    """Mosquitto with TCP_NODELAY and without limits on what is under way."""
    async with MosquittoServer() as server:
        yield server


class Fleet:
    """``holdfast devices simulate`` in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def stop(self) -> Counts:
        """Switch it off; returns what it saw."""
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGTERM)
        lines = (await self._process.stdout.read()).splitlines()
        await self._process.wait()
        return msgspec.json.decode(lines[-1], type=Counts)


@contextlib.asynccontextmanager
async def fleet(url: str, count: int, *arguments: str) -> AsyncIterator[Fleet]:
    """Simulated devices that listen; ``arguments`` are those of ``holdfast devices simulate``."""
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
        yield Fleet(process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.wait()
