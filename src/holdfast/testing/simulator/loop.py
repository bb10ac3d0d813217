"""Virtual time: an event loop that never waits, and clocks that drift, pause and stop a node at a time."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


TICK_S = 1e-6
"""Shortest sleep: time is a float, and less may be lost in its rounding."""

RESOLUTION_S = 1e-9
"""What is due within so much is due now."""

SPINS_MAX = 100_000
"""Turns of the loop at one moment of virtual time that can't be anything but a circle."""


class Deadlock(Exception):
    """Everything waits and nothing is due; or time stands still."""


class _Selector(selectors.BaseSelector):
    """There are no files to wait for."""

    def __init__(self) -> None:
        self._files: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._files[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs at the speed of its callbacks; ``time`` is virtual and starts at 0.

    A simulation consists of little but turns of its loop. So the turn is its own: as that of asyncio,
    without files, threads, slow callbacks and exceptions to look after."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__(_Selector())
        self._now = 0.0
        self._spins = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if ready or self._stopping:
            self._spins += 1
            if self._spins > SPINS_MAX:
                raise Deadlock(f"the loop spins at {self._now:.3f} s without an end")
        elif not timers:
            raise Deadlock("every task waits and no timer is set")
        elif timers[0][0] > self._now:
            self._now, self._spins = timers[0][0], 0
        due = self._now + RESOLUTION_S
        while timers and timers[0][0] < due:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


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
