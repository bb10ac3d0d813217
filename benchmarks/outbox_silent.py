"""What devices that never answer cost the others.

1,000 devices, one command in flight each, that take half a second for a command. 0 %, 1 %, 10 % and 50 %
of them never answer, and are asked again and again. The others must get as many commands a second, each, as
when all answer: there are no rounds that a silent one could hold up. The dispatcher knows nothing of presence
here, which would only make it easier.

With ``--full`` also with devices that answer at once, so that the dispatcher is what limits: then half as
many that answer must get nearly as many commands together.

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
from holdfast import App
from holdfast.devices.rules.device_queue import Patience
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.services.memory.terminal import Conduct, Terminal

SHARES = (0.0, 0.01, 0.1, 0.5)
LATENCY_MS = 500
PATIENCE = Patience(retry_s=2.0, retry_max_s=2.5, max_tries=1_000_000)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)
WARM_S = 1.5
SATURATED_EACH = 100
ROUNDS = 3
SEED = "0"
"""That simulated devices have unless told otherwise."""


async def rate(devices: int, silent: float, seconds: float, latency_ms: float, each: int) -> float:
    """Answers a second while the share ``silent`` of the devices never answers."""
    outbox = App("office").outbox("faces", patience=PATIENCE, presence=NO_PRESENCE)
    names = devices_named(devices)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'outbox.db'}"
        async with (
            broker() as server,
            fleet(
                server.url,
                devices,
                *("--silent", f"{silent}", "--latency-ms", f"{latency_ms}", "--spread", "0.3"),
            ),
            dispatching(url, server.url, outbox, names, each) as running,
        ):
            await asyncio.sleep(WARM_S)
            answered = await running.rate(seconds)
            if await running.store.waiting("faces", 1) == 0:
                raise RuntimeError("the commands ran out; measure for a shorter time")
            return answered


def answering(devices: int, silent: float) -> int:
    """How many of them do answer: who is silent is drawn by the seed."""
    drawn = (Terminal(name, Conduct(silent=silent), SEED) for name in devices_named(devices))
    return sum(not terminal.silent for terminal in drawn)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.outbox_silent", description=__doc__)
    parser.add_argument("--full", action="store_true", help="longer, and with devices that answer at once")
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, help="measured of each share (default 4, with --full 15)")
    asked = parser.parse_args()
    seconds = asked.seconds or (15.0 if asked.full else 4.0)
    each = 5 + round(2 * (seconds + WARM_S) * 1000 / LATENCY_MS)
    report = Report("outbox_silent")
    report.say(
        f"outbox_silent: {asked.devices:,} devices, one command in flight each, {LATENCY_MS} ms for an"
        f" answer; {DURABILITY}"
    )
    each_gets = {}
    for share in SHARES:
        answered = asyncio.run(rate(asked.devices, share, seconds, LATENCY_MS, each))
        each_gets[share] = answered / answering(asked.devices, share)
        report.say(
            f"    {share:.0%} silent: {answered:,.0f} answers a second, {each_gets[share]:.2f} of each other"
        )
    report.figure("commands_per_s_each", each_gets[0.0])
    report.figure("rate_half_silent_vs_none", each_gets[0.5] / each_gets[0.0], "≥ 0.9")
    saturated: dict[float, list[float]] = {0.0: [], 0.5: []}
    for _ in range(ROUNDS if asked.full else 0):
        for share, rates in saturated.items():
            rates.append(asyncio.run(rate(asked.devices, share, 4.0, 0.0, SATURATED_EACH)))
            report.say(f"    at once, {share:.0%} silent: {rates[-1]:,.0f} answers a second")
    if asked.full:
        report.figure("at_once_half_silent_vs_none", max(saturated[0.5]) / max(saturated[0.0]), "≥ 0.9")
    report.end(
        ["paho-mqtt", "sqlalchemy"],
        devices=asked.devices,
        latency_ms=LATENCY_MS,
        durability={"holdfast": DURABILITY},
        commands_per_s_each={f"{share:.0%}": round(value, 3) for share, value in each_gets.items()},
        at_once={f"{share:.0%}": [round(value) for value in rates] for share, rates in saturated.items()},
    )


if __name__ == "__main__":
    main()
