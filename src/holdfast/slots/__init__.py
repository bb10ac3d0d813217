"""Slots as real child processes, forked from a server that has the app imported already."""

from holdfast.slots.slots import ForkserverSlots
from holdfast.slots.task_slots import ForkserverTaskSlots

__all__ = ["ForkserverSlots", "ForkserverTaskSlots"]
