"""A broker and simulated devices, each in a process of its own, for benchmarks of the outbox.

As a program it is those devices: ``python -m benchmarks.fleet URL COUNT``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import msgspec

from holdfast.devices.fleet import Behaviour, FleetCounts
from holdfast.devices.fleet import Fleet as Simulated
from holdfast.devices.services.mqtt.address import parse
from holdfast.system.clock import SystemClock

READY_S = 30.0


def devices_named(count: int) -> list[str]:
    """Ids of so many devices."""
    return [f"{number:07}" for number in range(count)]


class Fleet:
    """Simulated devices in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def stop(self) -> FleetCounts:
        """Switch it off; returns what it saw."""
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGTERM)
        lines = (await self._process.stdout.read()).splitlines()
        await self._process.wait()
        return msgspec.json.decode(lines[-1], type=FleetCounts)


@contextlib.asynccontextmanager
async def fleet(url: str, count: int, *arguments: str) -> AsyncIterator[Fleet]:
    """Simulated devices that listen; ``arguments`` are further ones of this program."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.fleet", url, str(count)),
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


async def simulate(url: str, count: int, behaviour: Behaviour) -> None:
    """Devices that answer until the process gets SIGTERM.

    Prints "ready" once all listen, and in the end what they saw.
    """
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with Simulated(parse(url), devices_named(count), SystemClock(), behaviour=behaviour) as devices:
        print("ready", flush=True)
        await ended.wait()
        print(msgspec.json.encode(devices.counts).decode())


def main() -> None:
    """Simulate."""
    parser = argparse.ArgumentParser(prog="benchmarks.fleet", description=__doc__)
    parser.add_argument("url", help="of the broker")
    parser.add_argument("count", type=int, help="how many devices")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="median time to an answer")
    parser.add_argument("--spread", type=float, default=0.0, help="how far that varies (sigma, log-normal)")
    parser.add_argument("--silent", type=float, default=0.0, help="share of the devices that never answer")
    asked = parser.parse_args()
    behaviour = Behaviour(latency_s=asked.latency_ms / 1000, spread=asked.spread, silent=asked.silent)
    asyncio.run(simulate(asked.url, asked.count, behaviour))


if __name__ == "__main__":
    main()
