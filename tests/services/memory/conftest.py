"""Services in memory are tested in virtual time, as they are used."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from holdfast.ports.clock import Clock
from simulator.loop import SimClock, VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def clock() -> Clock:
    return SimClock(Random(0), "clock")
