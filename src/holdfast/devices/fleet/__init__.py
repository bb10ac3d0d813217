"""Simulated devices on a real broker: thousands on one connection, as well or as badly behaved as asked."""

from holdfast.devices.fleet.fleet import Fleet, FleetCounts
from holdfast.devices.services.memory.terminal import Behaviour

__all__ = ["Behaviour", "Fleet", "FleetCounts"]
