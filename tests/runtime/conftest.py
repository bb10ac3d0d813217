"""The runtime's parts are tested in virtual time, where a module asks for it with ``VIRTUAL``."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from holdfast.ports.clock import Clock
from holdfast.runtime.service import Tasks
from holdfast.testing.simulator.loop import SimClock, VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: Any
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if getattr(item.module, "VIRTUAL", False):
        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def clock() -> Clock:
    return SimClock(Random(0), "clock")


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Background tasks, none of which may fail."""
    crashes: list[BaseException] = []
    made = Tasks(crashes.append)
    yield made
    await made.close()
    assert crashes == []
