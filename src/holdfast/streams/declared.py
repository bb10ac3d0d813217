"""Looks for streams that no node runs, for those who send: the name of such a one is most likely misspelt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator

LOOK_S = 60.0
"""The shortest pause between two looks at the nodes while nobody can tell what they run."""

LOOK_TIMEOUT_S = 2.0
"""How long a message waits at most for a look at the nodes."""


async def run_by_nodes(coordinator: Coordinator) -> list[str]:
    """Return the names of all streams that living nodes run. Raises as the coordinator does."""
    return sorted({name for member in await coordinator.members() for name in member.load.queues})


class Undeclared:
    """Warns once of each stream that is sent to and that no node runs while nodes run others.
    ``coordinator`` opens the one that tells."""

    def __init__(self, coordinator: Callable[[], Coordinator], clock: Clock, log: Any) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._log = log
        self._known = set[str]()
        self._look_at = -math.inf
        self._looking = asyncio.Lock()

    async def look_for(self, stream: str) -> None:
        """Warn if it is due. What is sent waits in its queue in any case, so this raises nothing."""
        if stream in self._known:
            return
        async with self._looking:
            now = self._clock.monotonic()
            if stream in self._known or now < self._look_at:
                return
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    told = await run_by_nodes(self._coordinator())
            except (HoldfastError, TimeoutError) as error:
                self._log.debug("which streams nodes run is not known", stream=stream, error=str(error))
                told = []
            if not told:
                self._look_at = now + LOOK_S
                return
            self._known.add(stream)
            if stream not in told:
                self._log.warning(
                    "no node runs this stream; what is sent waits until one does", stream=stream, run=told
                )
