"""What every state store must do."""

from __future__ import annotations

import pytest

from holdfast.ports.state import StateStore


@pytest.mark.asyncio
class StateConformance:
    """Every promise of the state store port. Fixture: ``state``, a new one."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a call to be answered in."""

    @pytest.fixture
    def state(self) -> StateStore:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture state")
