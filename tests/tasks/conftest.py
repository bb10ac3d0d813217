"""Tasks over services in memory, in virtual time where a module asks for it with ``VIRTUAL``."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.fleet import Fleet

from holdfast.testing.simulator.loop import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: Any
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if getattr(item.module, "VIRTUAL", False):
        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop}


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
