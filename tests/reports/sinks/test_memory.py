"""A destination in memory."""

import pytest

from holdfast.reports.sinks.memory import MemorySink
from holdfast.testing.conformance import SinkConformance


class TestMemorySink(SinkConformance):
    @pytest.fixture
    def sink(self) -> MemorySink:
        return MemorySink()

    @pytest.fixture
    def other_sink(self, sink: MemorySink) -> MemorySink:
        return MemorySink(sink.files)
