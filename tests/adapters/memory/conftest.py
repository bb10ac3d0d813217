"""What tests of services in memory share."""

import pytest
from tests.adapters.memory.clock import LoopClock

from holdfast.ports.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return LoopClock()
