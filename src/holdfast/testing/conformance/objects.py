"""What every object store must do."""

from __future__ import annotations

import pytest

from holdfast.ports.objects import Objects


@pytest.mark.asyncio
class ObjectsConformance:
    """Every promise of the object store port. Fixture: ``objects``, a new one."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a call to be answered in."""

    @pytest.fixture
    def objects(self) -> Objects:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture objects")
