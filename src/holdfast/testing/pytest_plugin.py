"""The pytest plugin. It is active wherever Holdfast is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.config.settings import NodeSettings
    from holdfast.testing.node import NodeForTests


class StartNode(Protocol):
    """Starts a node that runs an app until the test ends. It takes the settings of
    :func:`holdfast.testing.node_for_tests`."""

    def __call__(self, app: App, *, settings: NodeSettings | None = None) -> NodeForTests: ...


@pytest.fixture
def holdfast_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNode]:
    """Run apps in the test's process, each on a temporary database: ``node = holdfast_node(app)``."""
    from holdfast.testing.node import node_for_tests  # noqa: PLC0415 - only for tests that ask for it

    with contextlib.ExitStack() as stack:

        def start(app: App, *, settings: NodeSettings | None = None) -> NodeForTests:
            folder = tmp_path_factory.mktemp("holdfast")
            return stack.enter_context(node_for_tests(app, folder=folder, settings=settings))

        yield start
