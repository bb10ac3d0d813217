"""What every slot maker must do."""

from __future__ import annotations

import pytest

from holdfast.ports.slots import Slots


@pytest.mark.asyncio
class SlotsConformance:
    """Every promise of the slot maker port. Fixture: ``slots``, a new one."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a call to be answered in."""

    @pytest.fixture
    def slots(self) -> Slots:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture slots")
