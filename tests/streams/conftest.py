"""Whole nodes over services in memory, in virtual time where a module asks for it with ``VIRTUAL``."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from tests.streams.town import Town

from holdfast.testing.simulator.loop import SimClock, VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: Any
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if getattr(item.module, "VIRTUAL", False):
        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    made = Town(SimClock(Random(0), "town"))
    yield made
    await made.close()
