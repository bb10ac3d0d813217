"""Slots as real child processes, forked from a server that has the app imported already."""

from holdfast.adapters.forkserver.slots import ForkserverSlots
from holdfast.adapters.forkserver.task_slots import ForkserverTaskSlots

__all__ = ["ForkserverSlots", "ForkserverTaskSlots"]
