"""For tests of code that uses Holdfast: tests of handlers, a node in the test's process, conformance
suites."""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports
from holdfast.testing.sent import SentEffect
from holdfast.testing.stream_test import SetTimer, StreamTest
from holdfast.testing.task_test import TaskTest

if TYPE_CHECKING:
    from holdfast.config.settings import NodeSettings
    from holdfast.streams.results import StreamResult
    from holdfast.testing.node import NodeForTests, node_for_tests
    from holdfast.testing.pytest_plugin import StartNode
else:  # These import all services or pytest, so they are imported only when they are first used.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.config.settings": "NodeSettings",
            "holdfast.streams.results": "StreamResult",
            "holdfast.testing.node": "NodeForTests node_for_tests",
            "holdfast.testing.pytest_plugin": "StartNode",
        },
    )

__all__ = [
    "NodeForTests",
    "NodeSettings",
    "SentEffect",
    "SetTimer",
    "StartNode",
    "StreamResult",
    "StreamTest",
    "TaskTest",
    "node_for_tests",
]
