"""The services of a node for tests, as another process reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.config.settings import Config
from holdfast.testing import NodeForTests
from holdfast.wiring.services import Services

T = TypeVar("T")


def on(node: NodeForTests, act: Callable[[Services], Awaitable[T]], **settings: Any) -> T:
    """Do something with the services of a node, and with more that these settings name."""

    async def run() -> T:
        async with Services(Config(url=node.url, **settings)) as services:
            return await act(services)

    return asyncio.run(run())
