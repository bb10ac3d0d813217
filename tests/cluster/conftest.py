"""The parts of a node are tested in virtual time, where a module asks for it with ``VIRTUAL``."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.ports.clock import Clock
from simulator.loop import SimClock
from tests.virtual_time import pytest_asyncio_loop_factories  # noqa: F401 (for pytest to find)


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
