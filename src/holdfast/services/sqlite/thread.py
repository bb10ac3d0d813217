"""A thread that serves calls from any number of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from holdfast.errors import Unavailable
from holdfast.system.doorbell import call_soon

ItemT = TypeVar("ItemT")

LINGER_S = 0.01
"""Seconds for which an item that can wait is kept back, to be served with others."""


@dataclass(slots=True, eq=False)
class WriterCall:
    """One call: ``item`` for the function ``run``, and its result or error. ``confirmed``: the answer waits
    for the disk."""

    run: Callable[..., Any]
    item: Any
    future: asyncio.Future[Any]
    confirmed: bool
    result: Any = None
    error: BaseException | None = None


def called(run: Callable[..., Any], item: Any, confirmed: bool) -> WriterCall:
    """Return a new call from the running event loop."""
    return WriterCall(run, item, asyncio.get_running_loop().create_future(), confirmed)


class WriterThread(Generic[ItemT]):
    """A thread that serves items in the order of their coming.

    ``serve`` is called in the thread when there are items. It takes them itself (:meth:`take`), with all that
    arrived while it got ready.

    A signal to the thread holds the seconds that it may linger, or None to end. One signal suffices until
    items are taken, unless an urgent item follows one that can wait.
    """

    def __init__(self, name: str, serve: Callable[[], None], limit: int) -> None:
        self._serve = serve
        self._limit = limit
        self._mutex = threading.Lock()
        self._pending: list[ItemT] = []
        self._signal: SimpleQueue[float | None] = SimpleQueue()
        self._signalled_s = math.inf
        self._open = True
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def put(self, item: ItemT, linger_s: float = 0.0) -> None:
        """Have ``item`` served, within ``linger_s``. Raises Unavailable once the worker is closed."""
        with self._mutex:
            if not self._open:
                raise Unavailable("the database is closed")
            self._pending.append(item)
            self._wake(linger_s)

    def _wake(self, linger_s: float) -> None:
        if linger_s < self._signalled_s:
            self._signalled_s = linger_s
            self._signal.put(linger_s)

    def take(self) -> list[ItemT]:
        """Return the next items; the thread is woken again for the rest."""
        with self._mutex:
            taken, self._pending = self._pending[: self._limit], self._pending[self._limit :]
            self._signalled_s = math.inf
            if self._pending:
                self._wake(0.0)
        return taken

    def drop(self) -> list[ItemT]:
        """Return all items that wait; they are not served."""
        with self._mutex:
            dropped, self._pending = self._pending, []
            self._signalled_s = math.inf
        return dropped

    def close(self) -> None:
        """Serve the waiting items, refuse later ones, and end the thread."""
        with self._mutex:
            self._open = False
        self._signal.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (linger_s := self._signal.get()) is not None:
            if linger_s > 0:
                with contextlib.suppress(Empty):
                    linger_s = self._signal.get(timeout=linger_s)
                if linger_s is None:
                    break
            if self._pending:  # else they were taken with the ones before
                self._serve()
        while self._pending:
            self._serve()


def answer(calls: Iterable[WriterCall]) -> None:
    """Hand results to their callers, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriterCall]] = {}
    for call in calls:
        by_loop.setdefault(call.future.get_loop(), []).append(call)
    for loop, its_calls in by_loop.items():
        call_soon(loop, _deliver, its_calls)


def _deliver(calls: list[WriterCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)
