"""Objects in memory."""

import pytest

from holdfast.services.memory.objects import MemoryObjects
from holdfast.testing.conformance import ObjectsConformance


class TestMemoryObjects(ObjectsConformance):
    @pytest.fixture
    def objects(self) -> MemoryObjects:
        return MemoryObjects()
