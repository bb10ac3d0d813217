"""The rule for what may run on a node beside a suspect, so that no other is blamed if the node ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.ports.clock import Clock


class Quarantine:
    """The turns of suspects on one node. A suspect that has a turn runs while no other does that needs one.
    In its last turn it runs while nothing else does at all: what ends the node then is that suspect.

    What runs already is waited for ``patience_s`` at most. What isn't over then makes progress for longer
    than a handler's timeout, and may do so for hours."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._running = 0
        self._still = asyncio.Event()
        self._still.set()

    @property
    def is_taken(self) -> bool:
        """True while a suspect has a turn."""
        return self._turn.locked()

    async def enter(self, *, last: bool = False) -> None:
        """Wait for a turn, and take it."""
        await self._turn.acquire()
        if last:
            self._open.clear()
            await self._clock.wait(self._still, self._patience_s)

    def leave(self) -> None:
        """End the turn."""
        self._open.set()
        self._turn.release()

    async def opened(self) -> None:
        """Wait until no suspect is in its last turn, so that others may begin to run."""
        while not self._open.is_set():
            await self._open.wait()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note that something runs that may end the node."""
        self._running += 1
        self._still.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._still.set()
