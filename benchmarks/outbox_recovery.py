"""The broker is killed and comes back while all devices are busy.

10,000 devices, one command in flight each. The broker, which keeps nothing, is killed in the middle and
started again. Measured is the time from then until answers come as fast as before (or all have come); and
that in the end every command was answered, and no device ever had two at a time.

Run as ``python -m benchmarks.outbox_recovery``.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.dispatching import DURABILITY, dispatching
from benchmarks.fleet import broker, devices_named, fleet
from benchmarks.report import Report
from holdfast import App
from holdfast.devices.rules.device_queue import CommandState, Patience
from holdfast.devices.rules.presence import PresenceRules

RETRY_S = 2.0
PATIENCE = Patience(retry_s=RETRY_S, retry_max_s=RETRY_S * 2, max_tries=1_000)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)
WINDOW_S = 0.5
FULL = 0.9
DOWN_S = 1.0


async def recover(devices: int, each: int, seconds: float) -> dict[str, float]:
    """Kill the broker under load, and tell how it went."""
    outbox = App("office").outbox("faces", patience=PATIENCE, presence=NO_PRESENCE, in_flight_max=devices)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'outbox.db'}"
        async with (
            broker() as server,
            fleet(server.url, devices, "--latency-ms", "20", "--spread", "0.3") as simulated,
            dispatching(url, server.url, outbox, devices_named(devices), each) as running,
        ):
            await asyncio.sleep(seconds)
            before = await running.rate(seconds)
            server.kill()
            await asyncio.sleep(DOWN_S)
            await server.start()
            begun_at, now = running.clock.monotonic(), 0.0
            while now < FULL * before and running.dispatcher.counts.closed < devices * each:
                now = await running.rate(WINDOW_S)
            recovered_s = running.clock.monotonic() - begun_at
            await running.closed(devices * each)
            counts = await running.store.counts(outbox.spec.name)
            seen = await simulated.stop()
            return {
                "before_per_s": before,
                "recovery_s": recovered_s,
                "lost": devices * each - counts.get(CommandState.ACKNOWLEDGED, 0),
                "max_in_flight": seen.at_once,
                "repeated": running.dispatcher.counts.repeated,
                "strays": running.dispatcher.counts.strays,
            }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.outbox_recovery", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more commands")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--each", type=int, help="commands for each device (default 6, with --full 30)")
    parser.add_argument("--seconds", type=float, default=2.0, help="to warm up, and to measure what is full")
    asked = parser.parse_args()
    each = asked.each or (30 if asked.full else 6)
    report = Report("outbox_recovery")
    report.say(
        f"outbox_recovery: {asked.devices:,} devices busy, broker killed for {DOWN_S:g} s; {DURABILITY}"
    )
    told = asyncio.run(recover(asked.devices, each, asked.seconds))
    report.figure("recovery_s", told["recovery_s"])
    report.figure("lost", told["lost"], "0")
    report.figure("max_in_flight", told["max_in_flight"], "1")
    report.end(
        ["paho-mqtt", "sqlalchemy"],
        devices=asked.devices,
        each=each,
        retry_s=RETRY_S,
        durability={"holdfast": DURABILITY},
        before_per_s=round(told["before_per_s"]),
        repeated=told["repeated"],
        strays=told["strays"],
    )


if __name__ == "__main__":
    main()
