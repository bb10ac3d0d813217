"""Simulated devices on a real broker: thousands on one connection, as well or as badly behaved as asked."""

from holdfast.adapters.memory.terminal import Conduct
from holdfast.testing.fleet.fleet import Counts, Fleet

__all__ = ["Conduct", "Counts", "Fleet"]
