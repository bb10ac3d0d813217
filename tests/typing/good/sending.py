"""Messages sent to streams as they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from holdfast import App, AsyncClient, Client, StreamMessage


@dataclass
class Reading:
    meter: str


def send(app: App) -> None:
    with Client(app) as client:
        readings = client.stream("readings")
        assert_type(readings.send(Reading("m"), key="m", seq=1, run=2), str)
        assert_type(readings.send_many(Reading(f"m{n}") for n in range(3)), list[str])
        readings.send_many([StreamMessage(b"raw", key="m", delay_s=1), {"meter": "m"}])
        readings.send({"meter": "m"}, message_id="7", delay_s=1.5)


async def send_async() -> None:
    async with AsyncClient("meters", queue_url="sqlite:///a.db") as client:
        assert_type(await client.stream("readings").send(Reading("m")), str)
        assert_type(await client.stream("readings").send_many([Reading("m")]), list[str])
