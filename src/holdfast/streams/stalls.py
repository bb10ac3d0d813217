"""The times for which streams stand still when they change nodes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

from holdfast.common.held import Held

LEFT_MAX = 1000
"""How many memberships that have ended are remembered."""


class Stalls:
    """The times at which owners were lost, as this node has learned it, in monotonic seconds."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, float] = OrderedDict()

    def left(self, member: str, now: float) -> None:
        """Note that a membership has ended."""
        self._left[member] = now
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)

    def since(self, member: str) -> float | None:
        """Return since when the streams of a membership have no owner; None if it didn't end lately."""
        return self._left.get(member)


def waited_since(messages: Iterable[Held], owned_since: float) -> float:
    """Return since when the first of some messages waits to be handled, as far as this node knows: one that
    was delivered before, since long ago; what no queue has delivered, since its stream is owned here."""
    first = math.inf
    for held in messages:
        if held.receives > 1:
            return -math.inf
        first = min([first, *(receipt.received_at for receipt in held.receipts)])
    return owned_since if first == math.inf else first
