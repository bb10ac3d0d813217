"""Virtual time: an event loop that never waits, and clocks that drift, pause and stop a node at a time."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


TICK_S = 1e-6
"""Shortest sleep: time is a float, and less may be lost in its rounding."""

SPINS_MAX = 100_000
"""After so many turns of the loop at one moment of virtual time, some work must be waking itself for ever."""


RESOLUTION_S = 1e-9
"""Timers that are due within so short a time are due together."""

CANCELLED_MIN = 100
"""With more timers than that, and half of them cancelled, the cancelled ones are taken away."""


class Deadlock(Exception):
    """Everything waits and nothing is due; or time stands still."""


class _Handle(asyncio.TimerHandle):
    """A callback that the loop runs. It checks and records less than asyncio's own, which makes simulations
    faster."""

    __slots__ = ("_virtual",)

    _args: Any
    _callback: Any
    _context: Context

    def __init__(
        self, loop: VirtualLoop, when: float, callback: Any, args: Sequence[Any], context: Context | None
    ) -> None:
        self._virtual = loop
        self._when = when
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = self._scheduled = False

    def __lt__(self, other: object) -> bool:
        return False  # the heap compares handles only if both are due at one moment

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None
            self._virtual.cancelled += self._scheduled


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs at the speed of its callbacks. ``time`` is virtual, starts at 0, and moves on to the next timer
    instead of waiting for it."""

    _ready: deque[_Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._spins = 0
        self._timers: list[tuple[float, _Handle]] = []
        self.cancelled = 0
        """How many of the timers are cancelled."""

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Handle:
        return self._call_soon(callback, args, context)

    def _call_soon(self, callback: Any, args: Sequence[Any], context: Context | None) -> _Handle:
        handle = _Handle(self, 0.0, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> _Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> _Handle:
        handle = _Handle(self, when, callback, args, context)
        heapq.heappush(self._timers, (when, handle))
        handle._scheduled = True
        return handle

    def _run_once(self) -> None:
        self._forget_cancelled()
        timers, soon = self._timers, self._ready
        if soon or self._stopping:
            self._spins += 1
            if self._spins > SPINS_MAX:
                raise Deadlock(f"the loop spins at {self._now:.3f} s without an end")
        elif timers:
            if (wait_s := timers[0][0] - self._now) > 0:
                self._spins = 0
                self._now += wait_s
        else:
            raise Deadlock("every task waits and no timer is set")
        end_at = self._now + RESOLUTION_S
        while timers and timers[0][0] < end_at:
            _, handle = heapq.heappop(timers)
            handle._scheduled = False
            soon.append(handle)
        for _ in range(len(soon)):
            handle = soon.popleft()
            if not handle._cancelled:
                self._call(handle)

    def _call(self, handle: _Handle) -> None:
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does
            self.call_exception_handler({"message": "a callback failed", "exception": error})

    def _forget_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > CANCELLED_MIN and self.cancelled > len(timers) / 2:
            timers[:] = [timer for timer in timers if not timer[1]._cancelled]
            heapq.heapify(timers)
            self.cancelled = 0
        while timers and timers[0][1]._cancelled:
            heapq.heappop(timers)
            self.cancelled -= 1

    def _write_to_self(self) -> None:
        pass  # nothing waits that would have to be woken


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
        self.offset_s = offset_s
        self._ids = 0
        self.set_by_s = 0.0
        """By how much somebody has set the wall clock."""
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time() * self._rate + self.offset_s

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
