"""Slots without processes: coroutines in the present event loop, for the simulator.

``before`` runs ahead of every message and simulates what a handler does to its process. It may sleep in
virtual time (a slow handler), raise an error (a failing one), wait for ever (a hung one), or call ``die`` on
the slot (a crash).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import HoldfastError, SlotDied
from holdfast.ports.clock import Clock
from holdfast.ports.slots import (
    Exit,
    MessageWork,
    QueryResult,
    RunResult,
    SlotCall,
    SlotCalls,
    SlotHost,
    SlotWorker,
)
from holdfast.services.memory.children import SimulatedPool

T = TypeVar("T")

Before = Callable[["MemorySlot", str, str, MessageWork], Awaitable[None]]


class PendingCall(NamedTuple):
    """A call that a simulated child has to answer: its number, its lane, the work, and the future of its
    answer."""

    number: int
    lane: tuple[str, str]
    work: Callable[[], Coroutine[Any, Any, Any]]
    answer: asyncio.Future[Any]


class MemorySlot:
    """One simulated child: it answers calls in turn, whether or not the caller still waits."""

    def __init__(
        self, name: str, clock: Clock, make: Callable[[SlotHost], SlotWorker], before: Before | None
    ) -> None:
        self.name = name
        self.calls = SlotCalls()
        self.models: Sequence[str] = ()
        self.loading = ""
        self._clock = clock
        self._before = before
        self._at = ""
        self._why = ""
        self._stacks = ""
        self._gone = asyncio.Event()
        self._given: deque[PendingCall] = deque()
        self._called = asyncio.Event()
        self.worker = make(self)
        self._task = asyncio.ensure_future(self._answer())

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    async def load(
        self, stream: str, key: str, models: Sequence[str], *, call: SlotCall | None = None
    ) -> None:
        await self._call((stream, key), lambda: self.worker.load(stream, key, models), call)

    async def open(
        self, stream: str, key: str, state: bytes | None, version: int, *, call: SlotCall | None = None
    ) -> None:
        await self._call((stream, key), lambda: self.worker.open(stream, key, state, version), call)

    async def run(
        self,
        stream: str,
        key: str,
        work: Sequence[MessageWork],
        limit: int,
        after_s: float,
        *,
        call: SlotCall | None = None,
    ) -> RunResult:
        return await self._call(
            (stream, key), lambda: self.worker.run(stream, key, work, limit, after_s), call
        )

    async def query(
        self,
        stream: str,
        key: str,
        state: bytes | None,
        version: int,
        request: bytes,
        *,
        call: SlotCall | None = None,
    ) -> QueryResult:
        return await self._call(
            (stream, key), lambda: self.worker.query(stream, key, state, version, request), call
        )

    async def close(self, stream: str, key: str, *, call: SlotCall | None = None) -> None:
        with contextlib.suppress(SlotDied):
            await self._call((stream, key), lambda: self.worker.close(stream, key), call)

    async def kill(self, reason: str) -> str:
        if not self._gone.is_set():
            self.die(f"was killed: {reason}", f"simulated stack: {self._at or 'idle'}")
        return self._stacks

    async def exited(self) -> Exit:
        await self._gone.wait()
        return Exit(self._why, self._stacks)

    def die(self, why: str, detail: str = "") -> None:
        """End the process at once. No handler is closed; calls in flight raise SlotDied."""
        if self._gone.is_set():
            return
        self._why, self._stacks = why, detail
        self._gone.set()
        self._task.cancel()
        for given in self._given:
            if not given.answer.done():
                given.answer.set_exception(self._death(detail))
        self._given.clear()
        self.calls.clear()

    async def stop(self, grace_s: float) -> None:
        """Close the handlers, then end; at once if that takes longer than ``grace_s``."""
        closing = asyncio.ensure_future(self._stop())
        if not await self._clock.wait(self._gone, grace_s):
            await self.kill(f"its handlers did not close within {grace_s:g} s")
        await closing

    async def _stop(self) -> None:
        with contextlib.suppress(SlotDied):
            await self._call(("", ""), self.worker.stop, None)
        self.die("was closed")

    # As the worker's host.

    def now(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall()

    def progress(self, stream: str, key: str, note: str = "") -> None:
        if (call := self._at_work(stream, key)) is not None:
            call.note = note or call.note

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        self.progress(stream, key)
        self._at = f"{stream}/{key} at {work.run}:{work.seq}"
        if self._before is not None:
            await self._before(self, stream, key, work)
            if self._gone.is_set():
                raise asyncio.CancelledError

    def failed(self, error: BaseException) -> None:
        pass

    def report_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        self.loading, self.models = loading, loaded
        if (call := self._at_work(stream, key)) is not None:
            call.loading = loading

    def _at_work(self, stream: str, key: str) -> SlotCall | None:
        """Return the call that is at work for a key, if there is one. It advances."""
        given = self._given[0] if self._given else None
        if given is None or given.lane != (stream, key):
            return None
        return self.calls.advance(given.number, self._clock.monotonic())

    async def _call(
        self, lane: tuple[str, str], work: Callable[[], Coroutine[Any, Any, T]], call: SlotCall | None
    ) -> T:
        if self._gone.is_set():
            raise self._death("")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        number = self.calls.add(call or SlotCall(), self._clock.monotonic())
        self._given.append(PendingCall(number, lane, work, answer))
        self._called.set()
        return await answer

    async def _answer(self) -> None:
        while True:
            await self._called.wait()
            given = self._given[0]
            try:
                outcome: Any = await given.work()
            except HoldfastError as error:
                outcome = error
            if self._gone.is_set():
                return
            self._given.popleft()
            self.calls.finish(given.number, self._clock.monotonic())
            self._at = ""
            if not self._given:
                self._called.clear()
            answer = given.answer
            if not answer.done():
                (answer.set_exception if isinstance(outcome, Exception) else answer.set_result)(outcome)

    def _death(self, detail: str) -> SlotDied:
        return SlotDied(f"slot {self.name} {self._why}", detail=detail)


class MemorySlots(SimulatedPool[MemorySlot]):
    """Makes simulated slots, each with a worker from ``make``.

    ``before`` runs ahead of every message; a new slot takes ``spawn_s``, and its handlers may take
    ``close_timeout_s`` to close. ``slots`` lists the living ones.
    """

    def __init__(
        self,
        make: Callable[[SlotHost], SlotWorker],
        clock: Clock,
        *,
        before: Before | None = None,
        spawn_s: float = 0.0,
        close_timeout_s: float = 5.0,
        prefix: str = "slot",
    ) -> None:
        super().__init__(clock, spawn_s, prefix)
        self._close_timeout_s = close_timeout_s
        self.make = make
        self._before = before

    async def spawn(self) -> MemorySlot:
        return await self._begin(lambda name: MemorySlot(name, self._clock, self.make, self._before))

    async def close(self) -> None:
        self._closed = True
        for slot in self.slots:
            await slot.stop(self._close_timeout_s)
