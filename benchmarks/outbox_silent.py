"""What devices that never answer cost the others.

1,000 devices, one command in flight each, of which 0 %, 1 %, 10 % and 50 % never answer and are asked again
and again. As many answers a second must come as when all answer: there are no rounds that a silent one could
hold up. The dispatcher knows nothing of presence here, which would only make it easier.

Run as ``python -m benchmarks.outbox_silent``.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.dispatching import DURABILITY, dispatching
from benchmarks.fleet import broker, devices_named, fleet
from benchmarks.report import Report
from holdfast.core.device_queue import Patience
from holdfast.core.presence import PresenceRules
from holdfast.devices.outbox import Outbox

SHARES = (0.0, 0.01, 0.1, 0.5)
PATIENCE = Patience(retry_s=2.0, retry_max_s=2.5, max_tries=1_000_000)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)
WARM_S = 1.0


async def rate(devices: int, silent: float, seconds: float, each: int) -> float:
    """Answers a second while the share ``silent`` of the devices never answers."""
    outbox = Outbox("faces", patience=PATIENCE, presence=NO_PRESENCE)
    names = devices_named(devices, "")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        async with (
            broker() as server,
            fleet(server.url, devices, "--silent", str(silent)),
            dispatching(
                f"sqlite:///{Path(folder) / 'outbox.db'}", server.url, outbox, names, each
            ) as running,
        ):
            await asyncio.sleep(WARM_S)
            answered = await running.rate(seconds)
            if await running.store.waiting("faces", 1) == 0:
                raise RuntimeError("the commands ran out; give each device more of them")
            return answered


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.outbox_silent", description=__doc__)
    parser.add_argument("--full", action="store_true", help="longer, and thrice")
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, help="measured of each share (default 4, with --full 15)")
    parser.add_argument("--each", type=int, help="commands that wait for each device")
    asked = parser.parse_args()
    seconds = asked.seconds or (15.0 if asked.full else 4.0)
    each = asked.each or round(15 * (seconds + WARM_S))
    report = Report("outbox_silent")
    report.say(f"outbox_silent: {asked.devices:,} devices, one command in flight each; {DURABILITY}")
    rates: dict[float, list[float]] = {share: [] for share in SHARES}
    for _ in range(3 if asked.full else 1):
        for share in SHARES:
            rates[share].append(asyncio.run(rate(asked.devices, share, seconds, each)))
            report.say(f"    {share:.0%} silent: {rates[share][-1]:,.0f} answers a second")
    best = {share: max(measured) for share, measured in rates.items()}
    report.figure("answers_per_s", best[0.0])
    report.figure("rate_half_silent_vs_none", best[0.5] / best[0.0], "≥ 0.9")
    report.end(
        ["paho-mqtt", "sqlalchemy"],
        devices=asked.devices,
        durability={"holdfast": DURABILITY},
        rates={f"{share:.0%}": [round(value) for value in measured] for share, measured in rates.items()},
    )


if __name__ == "__main__":
    main()
