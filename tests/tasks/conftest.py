"""Tasks over services in memory, in virtual time where a module asks for it with ``VIRTUAL``."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.fleet import Fleet
from tests.virtual_time import pytest_asyncio_loop_factories  # noqa: F401 (for pytest to find)

MakeFleet = Callable[..., Fleet]


@pytest.fixture
async def make_fleet(tmp_path: Path) -> AsyncIterator[MakeFleet]:
    """Make the services of a fleet; its nodes end with the test."""
    made: list[Fleet] = []

    def make(**settings: Any) -> Fleet:
        made.append(Fleet(tmp_path, **settings))
        return made[-1]

    yield make
    for fleet in made:
        await fleet.close()
