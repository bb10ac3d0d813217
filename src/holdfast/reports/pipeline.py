"""Stages that run concurrently, in order and in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

JOIN_S = 1.0
"""Seconds that the end waits for a running read; its thread ends by itself."""


def in_order(
    pool: Executor, work: Callable[[T], U], items: Iterable[T], ahead: int
) -> Generator[U, None, None]:
    """Yield ``work(item)`` of each item, in the items' order. Up to ``ahead`` items are in the pool."""
    under_way: deque[Future[U]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) >= ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()


def read_ahead(
    items: Generator[T, None, None], size_of: Callable[[T], int], bytes_max: int
) -> Generator[T, None, None]:
    """Yield the items, which a thread fetches ahead, up to ``bytes_max`` and one item."""
    buffer = _Buffer[T](bytes_max)

    def fetch() -> None:
        try:
            with closing(items):
                for item in items:
                    if not buffer.put(item, size_of(item)):
                        return
        except BaseException as error:  # noqa: BLE001  # the reader raises it
            buffer.end(error)
        else:
            buffer.end(None)

    thread = threading.Thread(target=copy_context().run, args=(fetch,), name="read-ahead", daemon=True)
    thread.start()
    try:
        yield from buffer
    finally:
        buffer.abandon()
        thread.join(JOIN_S)


class _Buffer(Iterator[T]):
    """Items on their way from one thread to another."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._abandoned = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, item: T, size: int) -> bool:
        """Wait for room and add an item. Return False if the reader is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes <= self._bytes_max or self._abandoned)
            self._items.append((item, size))
            self._bytes += size
            self._changed.notify_all()
            return not self._abandoned

    def end(self, error: BaseException | None) -> None:
        """End the items. The reader gets ``error``, if there is one."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._items.clear()
            self._changed.notify_all()

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if self._items:
                item, size = self._items.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration
