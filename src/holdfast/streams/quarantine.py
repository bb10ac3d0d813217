"""The rule for what may run on a node beside a suspect, so that no other is blamed if the node ends."""

from __future__ import annotations

import asyncio

from holdfast.ports.clock import Clock


class RunningCalls:
    """The calls under way that may end the node. Each enters this when it begins, and leaves it when it
    ends."""

    __slots__ = ("_count", "_still")

    def __init__(self) -> None:
        self._count = 0
        self._still = asyncio.Event()

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._still.set()

    async def ended(self, clock: Clock, patience_s: float) -> None:
        """Wait until none is under way, but not longer than this."""
        if self._count:
            self._still.clear()
            await clock.wait(self._still, patience_s)


class Quarantine:
    """The turns of suspects on one node. A suspect that has a turn runs while no other does that needs one.
    In its last turn it runs while nothing else does at all: what ends the node then is that suspect.

    What runs already is waited for ``patience_s`` at most. What isn't over then makes progress for longer
    than a handler's timeout, and may do so for hours."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._opened = asyncio.Event()
        self._opened.set()
        self.is_open = True
        """True unless a suspect is in its last turn, or waits for it to begin."""
        self.running = RunningCalls()

    @property
    def is_taken(self) -> bool:
        """True while a suspect has a turn."""
        return self._turn.locked()

    async def enter(self, *, last: bool = False) -> None:
        """Wait for a turn, and take it."""
        await self._turn.acquire()
        if last:
            self.is_open = False
            self._opened.clear()
            await self.running.ended(self._clock, self._patience_s)

    def leave(self) -> None:
        """End the turn."""
        self.is_open = True
        self._opened.set()
        self._turn.release()

    async def opened(self) -> None:
        """Wait until no suspect is in its last turn, so that others may begin to run."""
        while not self.is_open:
            await self._opened.wait()
