"""Simulated devices on a real broker: thousands on one connection, as well or as badly behaved as asked."""

from holdfast.adapters.memory.terminal import Conduct
from holdfast.testing.fleet.fleet import Fleet, FleetCounts

__all__ = ["Conduct", "Fleet", "FleetCounts"]
