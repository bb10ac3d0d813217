"""Virtual time: an event loop that never waits, and clocks that drift, pause and stop a node at a time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


TICK_S = 1e-6
"""Shortest sleep: time is a float, and less may be lost in its rounding."""

SPINS_MAX = 100_000
"""After so many turns of the loop at one moment of virtual time, some work must be waking itself for ever."""


class Deadlock(Exception):
    """Everything waits and nothing is due; or time stands still."""


class _Selector(selectors.BaseSelector):
    """Instead of waiting for files it moves the loop's time to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spins = 0
        self._files: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._files[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.spins = 0 if timeout > 0 else self.spins + 1
        if self.spins > SPINS_MAX:
            raise Deadlock(f"the loop spins at {self.now:.3f} s without an end")
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs at the speed of its callbacks; ``time`` is virtual and starts at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end in virtual time."""
    loop = VirtualLoop()
    # What a dead node waits for never comes: its tasks are forgotten as they are.
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


class Gate:
    """Whether a node moves. Everything that reaches it from outside passes here: its sleeps and the
    answers to its calls. So a closed gate is a stopped process, and a dead one never opens again."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.dead = False

    def close(self) -> None:
        """Stop the node."""
        self._open.clear()

    def open(self) -> None:
        """Let the node go on."""
        if not self.dead:
            self._open.set()

    def kill(self) -> None:
        """Stop it for ever."""
        self.dead = True
        self._open.clear()

    @property
    def closed(self) -> bool:
        """True while the node stands still."""
        return not self._open.is_set()

    async def enter(self) -> None:
        """Wait while closed."""
        while not self._open.is_set():
            await self._open.wait()


class SimClock:
    """One node's clock: ``rate`` times as fast as the world's, ahead by ``offset_s``."""

    def __init__(self, random: Random, name: str, *, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self.gate = Gate()
        self._random = random
        self._name = name
        self._rate = rate
        self._offset_s = offset_s
        self._ids = 0
        self.set_by_s = 0.0
        """By how much somebody has set the wall clock."""
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time() * self._rate + self._offset_s

    def wall(self) -> float:
        return 1_700_000_000.0 + self.monotonic() + self.set_by_s

    def random(self) -> float:
        return self._random.random()

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._name}.{self._ids}"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(self._world_s(seconds))
        await self.gate.enter()

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        if not event.is_set():
            try:
                async with asyncio.timeout(None if timeout_s is None else self._world_s(timeout_s)):
                    await event.wait()
            except TimeoutError:
                pass
        happened = event.is_set()
        await self.gate.enter()
        return happened

    def _world_s(self, seconds: float) -> float:
        """So much of this clock's time in the world's, and never too little for the world's to move."""
        return max(seconds / self._rate, TICK_S) if seconds > 0 else 0.0
