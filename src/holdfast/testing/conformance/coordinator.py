"""What every coordinator must do."""

from __future__ import annotations

import pytest

from holdfast.ports.coordinator import Coordinator


@pytest.mark.asyncio
class CoordinatorConformance:
    """Every promise of the coordinator port. Fixture: ``coordinator``, a new one."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a call to be answered in."""

    @pytest.fixture
    def coordinator(self) -> Coordinator:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture coordinator")
