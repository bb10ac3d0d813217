"""Slots as real child processes, forked from a server that has the app imported already."""

from holdfast.adapters.forkserver.slots import ForkserverSlots

__all__ = ["ForkserverSlots"]
