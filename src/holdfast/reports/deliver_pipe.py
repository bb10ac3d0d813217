"""A bounded pipe from a thread that makes bytes to the event loop that sends them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from contextvars import copy_context

from holdfast.reports.ports.sink import Data

AHEAD_BYTES = 4 << 20
"""Bytes that may wait in a pipe."""

PIECE_BYTES = 2 << 20
"""Bytes of a piece: passing a piece between threads takes longer than sending 1 MiB."""

STOP_S = 0.5


class Stopped(Exception):
    """The reader of a pipe is gone."""


class Pipe:
    """Bytes in order. One thread calls ``put`` and ``end``, the pipe's event loop the rest."""

    def __init__(self, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._ahead_bytes = ahead_bytes
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._changed = threading.Condition()
        self._data: deque[Data] = deque()
        self._size = 0
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None

    def put(self, data: Data) -> None:
        """Wait for room, and add bytes. Raises Stopped."""
        if not data:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._size < self._ahead_bytes or self._stopped)
            if self._stopped:
                raise Stopped
            self._data.append(data)
            self._size += len(data)
            if len(self._data) == 1:
                self._loop.call_soon_threadsafe(self._ready.set)

    def end(self, error: BaseException | None = None) -> None:
        """End the bytes. The reader gets ``error``, if there is one."""
        with self._changed:
            self._ended, self._error = True, error
            if not self._stopped:
                self._loop.call_soon_threadsafe(self._ready.set)

    def stop(self) -> None:
        """Have ``put`` raise Stopped from now on."""
        with self._changed:
            self._stopped = True
            self._data.clear()
            self._changed.notify_all()

    async def __aiter__(self) -> AsyncIterator[Data]:
        """Yield pieces of up to PIECE_BYTES: all that waits, if that is less."""
        while True:
            await self._ready.wait()
            with self._changed:
                if self._data:
                    piece = self._take()
                    self._size -= len(piece)
                    self._changed.notify_all()
                elif self._error is not None:
                    raise self._error
                elif self._ended:
                    return
                else:
                    self._ready.clear()
                    continue
            yield piece

    def _take(self) -> Data:
        first = self._data.popleft()
        if len(first) > PIECE_BYTES:
            self._data.appendleft(memoryview(first)[PIECE_BYTES:])
            return memoryview(first)[:PIECE_BYTES]
        parts, size = [first], len(first)
        while self._data and size + len(self._data[0]) <= PIECE_BYTES:
            parts.append(self._data.popleft())
            size += len(parts[-1])
        return first if len(parts) == 1 else b"".join(parts)


@asynccontextmanager
async def pieces(chunks: Callable[[], Iterator[Data]], ahead_bytes: int = AHEAD_BYTES) -> AsyncIterator[Pipe]:
    """Run ``chunks()`` in a thread of its own, and hand out its bytes by a pipe. At the exit the thread stops
    at its next chunk. The exit waits a moment for it, so that two threads seldom run at once."""
    pipe = Pipe(ahead_bytes)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def make() -> None:
        made: Iterator[Data] = iter(())
        try:
            made = chunks()
            for chunk in made:
                pipe.put(chunk)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 (the reader raises it)
            pipe.end(error)
        else:
            pipe.end()
        finally:
            if isinstance(made, Generator):
                made.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=copy_context().run, args=(make,), name="format", daemon=True).start()
    try:
        yield pipe
    finally:
        pipe.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await ended.wait()
