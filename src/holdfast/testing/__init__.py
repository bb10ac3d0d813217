"""For tests of what is built on Holdfast: conformance suites, simulation, and kits for handlers."""

from holdfast.testing.stream_test import StreamTest
from holdfast.testing.task_test import TaskTest

__all__ = ["StreamTest", "TaskTest"]
