"""Slots as real child processes, forked from a server that has the app imported already."""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.slots.slots import ForkserverSlots
    from holdfast.slots.task_slots import ForkserverTaskSlots
else:  # The node's side. The fork server, which imports this package too, needs none of it.
    __getattr__ = exports(
        __name__,
        {
            "ForkserverSlots": "holdfast.slots.slots",
            "ForkserverTaskSlots": "holdfast.slots.task_slots",
        },
    )

__all__ = ["ForkserverSlots", "ForkserverTaskSlots"]
