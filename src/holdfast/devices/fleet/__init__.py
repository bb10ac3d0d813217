"""Simulated devices on a real broker: thousands on one connection, with a configured behaviour."""

from holdfast.devices.fleet.fleet import Fleet, FleetCounts
from holdfast.devices.services.memory.terminal import Behaviour

__all__ = ["Behaviour", "Fleet", "FleetCounts"]
