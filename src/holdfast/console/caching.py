"""Values that are read once for all callers that ask at about the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.ports.clock import Clock

T = TypeVar("T")

PART_KEPT_S = 1.0
PARTS_MAX = 128


class _Read(NamedTuple, Generic[T]):
    value: T
    at: float


class SharedReads(Generic[T]):
    """Reads each value once for all that ask meanwhile, and keeps it for ``kept_s``. Keeps up to ``most``
    values, and no failures."""

    def __init__(self, now: Callable[[], float], kept_s: float, most: int) -> None:
        self._now = now
        self.kept_s = kept_s
        self._most = most
        self._reads: OrderedDict[Hashable, asyncio.Future[_Read[T]]] = OrderedDict()

    async def get(self, name: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return the value of this name; ``read`` reads a missing one."""
        future = self._reads.get(name)
        if future is None or self._is_over(future):
            future = asyncio.ensure_future(self._timed(read))
            future.add_done_callback(_failed)  # the caller may be gone by then
            self._reads[name] = future
            self._reads.move_to_end(name)
            while len(self._reads) > self._most:
                self._reads.popitem(last=False)
        return (await asyncio.shield(future)).value

    def clear(self) -> None:
        """Forget all values after a change, also values that are being read."""
        self._reads.clear()

    async def _timed(self, read: Callable[[], Awaitable[T]]) -> _Read[T]:
        value = await read()
        return _Read(value, self._now())

    def _is_over(self, future: asyncio.Future[_Read[T]]) -> bool:
        """Return True if a read has failed or its value is too old."""
        if not future.done():
            return False
        return _failed(future) or self._now() - future.result().at >= self.kept_s


class PartCache(SharedReads[str]):
    """Keeps parts of pages for a second, or until something changes."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.monotonic, PART_KEPT_S, PARTS_MAX)


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
