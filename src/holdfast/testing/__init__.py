"""For tests of what is built on Holdfast: kits for handlers, a node in the test's process, conformance
suites."""

from typing import TYPE_CHECKING, Any

from holdfast.testing.stream_test import StreamTest
from holdfast.testing.task_test import TaskTest

if TYPE_CHECKING:
    from holdfast.testing.node import NodeForTests, StreamResult, node_for_tests
    from holdfast.testing.pytest_plugin import StartNode

__all__ = ["NodeForTests", "StartNode", "StreamResult", "StreamTest", "TaskTest", "node_for_tests"]


_PLACES = {
    "NodeForTests": "node",
    "StartNode": "pytest_plugin",
    "StreamResult": "node",
    "node_for_tests": "node",
}


def __getattr__(name: str) -> Any:
    """What needs all services, or pytest: only where it is wanted."""
    if name in _PLACES:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
