"""A hook of pytest-asyncio, for folders to import: modules with ``VIRTUAL`` run in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from simulator.loop import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: Any
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if getattr(item.module, "VIRTUAL", False):
        return {"virtual": VirtualLoop}
    return {"asyncio": asyncio.new_event_loop}
