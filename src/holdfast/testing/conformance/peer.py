"""What every peer must do."""

from __future__ import annotations

import pytest

from holdfast.ports.peer import Peer


@pytest.mark.asyncio
class PeerConformance:
    """Every promise of the peer port. Fixture: ``make_peer``, a new one."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a call to be answered in."""

    @pytest.fixture
    def make_peer(self) -> Peer:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture make_peer")
