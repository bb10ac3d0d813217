"""Slots for tasks without processes: coroutines in the present event loop, for the simulator.

What a handler does to its process is left to ``before``, which runs ahead of every attempt and may sleep in
virtual time (a slow handler), raise (a failing one), wait for ever (a hung one that can be cancelled), call
``deafen`` on the slot first (one that can't), or call ``die`` on it (a crash).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.ports.clock import Clock
from holdfast.ports.slots import Attempt, Exit, Listener, Progress, TaskHost, TaskWorker
from holdfast.services.memory.children import SimulatedPool

Before = Callable[["MemoryTaskSlot", Attempt], Awaitable[None]]


class MemoryTaskSlot:
    """One simulated child: it runs the attempts of its buffer one after another."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        make: Callable[[TaskHost], TaskWorker],
        before: Before | None,
        listener: Listener,
    ) -> None:
        self.name = name
        self._clock = clock
        self._before = before
        self._listener = listener
        self._prefetched: deque[tuple[int, Attempt]] = deque()
        self._filled = asyncio.Event()
        self._at_hand: tuple[int, Attempt] | None = None
        self._work: asyncio.Task[Any] | None = None
        self._deaf = False
        self._finishing = False
        self._why = ""
        self._stacks = ""
        self._gone = asyncio.Event()
        self._lease: asyncio.Task[None] | None = None
        self._worker = make(self)
        self.task = asyncio.ensure_future(self._serve())

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    @property
    def number(self) -> int:
        """The number of the running attempt, 0 for none."""
        return self._at_hand[0] if self._at_hand is not None else 0

    def offer(self, number: int, attempt: Attempt) -> bool:
        if self.alive:
            self._prefetched.append((number, attempt))
            self._filled.set()
        return self.alive

    def withdraw(self) -> list[int]:
        if not self.alive:
            return []
        numbers = [number for number, _ in self._prefetched]
        self._prefetched.clear()
        return numbers

    def cancel(self, number: int, reason: str) -> None:
        if self.alive and not self._deaf and self._at_hand is not None and self._at_hand[0] == number:
            self._worker.cancel(reason)

    def lease(self, seconds: float | None) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        if seconds is not None and self.alive:
            self._lease = asyncio.ensure_future(self._lapse(seconds))

    async def dump(self) -> str:
        return f"simulated stack: {self._doing()}" if self.alive else ""

    async def stacks_of(self, number: int) -> str | None:
        return await self.dump() if number == self.number else ""

    def terminate(self) -> None:
        pass

    async def kill(self, reason: str) -> str:
        self.die(f"was killed: {reason}")
        return self._stacks

    async def stop(self, grace_s: float) -> None:
        self._finishing = True
        self._filled.set()
        if not await self._clock.wait(self._gone, grace_s):
            await self.kill(f"its handlers did not close within {grace_s:g} s")

    async def exited(self) -> Exit:
        await self._gone.wait()
        return Exit(self._why, self._stacks, [number for number, _ in self._prefetched])

    def die(self, why: str, stacks: str = "") -> None:
        """End the process at once."""
        if self.alive:
            self._why, self._stacks = why, stacks
            self._gone.set()
            self.lease(None)
            for task in (self._work, self.task):
                if task is not None:
                    task.cancel()

    def deafen(self) -> None:
        """Make it ignore cancellation, like a process that hangs in C code."""
        self._deaf = True

    # As the worker's host.

    def now(self) -> float:
        return self._clock.monotonic()

    def progress(self, number: int, progress: Progress) -> None:
        if self.alive:
            self._listener.on_progress(self, number, progress)

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        if self.alive:
            self._listener.on_log(self, number, level, event, values)

    async def begin(self, attempt: Attempt) -> None:
        if self._before is not None:
            await self._before(self, attempt)

    def failed(self, error: BaseException) -> None:
        pass

    def interrupt(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def _serve(self) -> None:
        while True:
            while not self._prefetched:
                if self._finishing:
                    return self.die("was closed")
                self._filled.clear()
                await self._filled.wait()
            number, attempt = self._at_hand = self._prefetched.popleft()
            self._work = asyncio.ensure_future(self._worker.attempt(number, attempt))
            await asyncio.wait([self._work])
            if self._work.cancelled():
                return self.die("was cancelled")
            self._at_hand = None
            self._listener.on_ended(self, number, self._work.result())

    async def _lapse(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._lease = None
        self.die("died of SIGKILL")

    def _doing(self) -> str:
        return f"{self._at_hand[1].type} {self._at_hand[1].task_id}" if self._at_hand else "idle"


class MemoryTaskSlots(SimulatedPool[MemoryTaskSlot]):
    """Makes simulated slots, each with a worker from ``make``.

    ``before`` runs ahead of every attempt; a new slot takes ``spawn_s``. ``slots`` lists the living ones.
    """

    def __init__(
        self,
        make: Callable[[TaskHost], TaskWorker],
        clock: Clock,
        *,
        before: Before | None = None,
        spawn_s: float = 0.0,
        prefix: str = "task-slot",
    ) -> None:
        super().__init__(clock, spawn_s, prefix)
        self._make = make
        self._before = before

    async def spawn(self, listener: Listener) -> MemoryTaskSlot:
        return await self._begin(
            lambda name: MemoryTaskSlot(name, self._clock, self._make, self._before, listener)
        )

    async def close(self) -> None:
        self._closed = True
        for slot in self.slots:
            await slot.stop(0.0)
