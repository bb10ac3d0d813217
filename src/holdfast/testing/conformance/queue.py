"""What every queue must do."""

from __future__ import annotations

import pytest

from holdfast.ports.queue import Queue


@pytest.mark.asyncio
class QueueConformance:
    """Every promise of the queue port. Fixture: ``queue``, a new one."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a call to be answered in."""

    @pytest.fixture
    def queue(self) -> Queue:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture queue")
