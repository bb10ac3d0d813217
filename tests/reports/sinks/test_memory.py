"""A destination in memory."""

import pytest

from holdfast.reports.conformance import SinkConformance
from holdfast.reports.sinks.memory import MemorySink


class TestMemorySink(SinkConformance):
    @pytest.fixture
    def sink(self) -> MemorySink:
        return MemorySink()

    @pytest.fixture
    def other_sink(self, sink: MemorySink) -> MemorySink:
        return MemorySink(sink.files)
