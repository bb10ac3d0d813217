"""``holdfast devices simulate``: devices that answer, more or less."""

from __future__ import annotations

import asyncio
import signal

import msgspec

from holdfast.adapters.system.clock import SystemClock
from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.core.topics import DEVICE, Topics
from holdfast.errors import ConfigError

DIGITS = 7


def devices_named(count: int, prefix: str) -> list[str]:
    """Ids of ``count`` devices: ``prefix`` and a number of seven digits."""
    return [f"{prefix}{number:0{DIGITS}}" for number in range(count)]


async def simulate(
    broker: str,
    /,
    *,
    count: int = 100,
    prefix: str = "",
    topic: str = f"dev/face/{DEVICE}",
    answer_topic: str = "",
    heartbeat_topic: str = "",
    latency_ms: float = 0.0,
    spread: float = 0.0,
    loss: float = 0.0,
    answer_loss: float = 0.0,
    duplicate: float = 0.0,
    late: float = 0.0,
    late_s: float = 15.0,
    garbage: float = 0.0,
    foreign: float = 0.0,
    silent: float = 0.0,
    crash: float = 0.0,
    crash_s: float = 5.0,
    heartbeat_s: float = 0.0,
    seed: str = "0",
    connections: int = 1,
    for_s: float | None = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Simulate devices at an MQTT broker: each takes one command at a time and answers it, until stopped.
    The same seed gives the same behaviour.

    ```
    holdfast devices simulate mqtt://localhost --count 10000 --latency-ms 50 --spread 0.5 --loss 0.01
    ```

    Says "ready" once all listen, and at the end what happened. Shares are from 0 to 1.

    Args:
        broker: The broker's URL.
        count: How many devices.
        prefix: Begins their ids, which end in numbers of seven digits from 0 on.
        topic: Where they listen.
        answer_topic: Where they answer; by default the topic with /Ack after it.
        heartbeat_topic: Where they give signs of life; by default the topic with /heartbeat after it.
        latency_ms: Median time from a command to its answer.
        spread: How far that varies: the sigma of a log-normal distribution.
        loss: Share of commands that are never heard.
        answer_loss: Share of commands whose answer is lost.
        duplicate: Share of answers that are given twice.
        late: Share of answers that come late.
        late_s: How late.
        garbage: Share of answers that nobody can understand.
        foreign: Share of answers that name another command.
        silent: Share of devices that never answer.
        crash: Share of commands at which a device goes away.
        crash_s: For how long.
        heartbeat_s: How often each gives a sign of life; 0 for never.
        seed: Another seed, another course of events.
        connections: How many connections to spread the devices over.
        for_s: End after so many seconds.
        json: Print JSON lines.
    """
    from holdfast.adapters.mqtt.address import parse  # noqa: PLC0415
    from holdfast.testing.fleet import Conduct, Fleet  # noqa: PLC0415

    options.load()
    if not 0 < count <= 10**DIGITS:
        raise ConfigError(f"--count is {count}; write a number from 1 to {10**DIGITS}")
    conduct = Conduct(
        latency_s=latency_ms / 1000,
        spread=spread,
        loss=loss,
        answer_loss=answer_loss,
        duplicate=duplicate,
        late=late,
        late_s=late_s,
        garbage=garbage,
        foreign=foreign,
        silent=silent,
        crash=crash,
        crash_s=crash_s,
        heartbeat_s=heartbeat_s,
    )
    topics = Topics(topic, answer_topic or f"{topic}/Ack", heartbeat_topic or f"{topic}/heartbeat")
    fleet = Fleet(
        parse(broker),
        devices_named(count, prefix),
        SystemClock(),
        topics=topics,
        conduct=conduct,
        seed=seed,
        connections=connections,
    )
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with fleet:
        output.json_line({"ready": count}) if json else output.say(f"ready: {count} devices listen")
        await SystemClock().wait(ended, for_s)
        counts = fleet.counts
    if json:
        output.json_line(counts)
        return
    rows = [(name.replace("_", " "), value) for name, value in msgspec.structs.asdict(counts).items()]
    output.console().print(output.table("devices", ["what they saw", "count"], rows))
