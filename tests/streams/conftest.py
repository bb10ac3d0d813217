"""Whole nodes over services in memory, in virtual time where a module asks for it with ``VIRTUAL``."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from simulator.loop import SimClock
from tests.cluster.conftest import clock, tasks  # noqa: F401 (fixtures, for pytest to find)
from tests.streams.town import Town
from tests.virtual_time import pytest_asyncio_loop_factories  # noqa: F401 (for pytest to find)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    made = Town(SimClock(Random(0), "town"))
    yield made
    await made.close()
