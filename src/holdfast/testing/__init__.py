"""For tests of what is built on Holdfast: kits for handlers, a node in the test's process, conformance
suites."""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports
from holdfast.testing.stream_test import StreamTest
from holdfast.testing.task_test import TaskTest

if TYPE_CHECKING:
    from holdfast.testing.node import NodeForTests, StreamResult, node_for_tests
    from holdfast.testing.pytest_plugin import StartNode
else:  # What needs all services, or pytest: only where it is wanted.
    __getattr__ = exports(
        __name__,
        {
            "NodeForTests": "holdfast.testing.node",
            "StartNode": "holdfast.testing.pytest_plugin",
            "StreamResult": "holdfast.testing.node",
            "node_for_tests": "holdfast.testing.node",
        },
    )

__all__ = ["NodeForTests", "StartNode", "StreamResult", "StreamTest", "TaskTest", "node_for_tests"]
