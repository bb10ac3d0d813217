"""A lane: one connection to one server, shared by all calls made at the same time.

Calls made while others are under way form the next batch, which is written and answered as one. The
number of connections doesn't grow with the calls, and under load a call costs a fraction of a round trip.
(The library's own pipelines don't say whether a failed call was sent, and the caller must know that.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import hiredis
from redis.asyncio.connection import Connection
from redis.exceptions import RedisError

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.services.redis.refusals import RedisRefused

BATCH_MAX = 500
BATCH_BYTES_MAX = 1 << 20
"""The largest batch: calls, and bytes unless a single call is larger. In a larger one the first call would
wait for its answer."""

Word = str | bytes | int

_ASKING: bytes = hiredis.pack_command(("ASKING",))


class _Call(NamedTuple):
    packed: bytes
    answer: asyncio.Future[Any]
    replies: int
    """The number of replies to read. The last one is the answer, unless ``all`` is set."""
    all: bool


class Lane:
    """The connection to ``name``, made when needed and again after it broke.

    ``timeout_s`` bounds each step of a batch: connecting, and writing until the last answer. A call waits
    for at most the batch before it, then takes both steps.
    """

    def __init__(self, name: str, connect: Callable[[], Awaitable[Connection]], timeout_s: float) -> None:
        self.name = name
        self._connect = connect
        self.timeout_s = timeout_s
        self._connection: Connection | None = None
        self._waiting: deque[_Call] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._leave = False
        self._closed = False

    def call(self, *words: Word, asking: bool = False) -> asyncio.Future[Any]:
        """Send a command; the future has its reply. It raises Unavailable if the command wasn't sent, or
        OutcomeUnknown if it was but no answer came, or RedisRefused with the server's error.

        ``asking``: put ASKING in front, as a Cluster wants while it moves keys."""
        packed = hiredis.pack_command(words)  # type: ignore[arg-type]
        return self._send(_ASKING + packed if asking else packed, 2 if asking else 1, False)

    def together(self, *commands: Sequence[Word]) -> asyncio.Future[Any]:
        """Send commands one after the other over one connection; the future has all their replies, errors of
        the server among them. Raises as ``call`` does."""
        packed = b"".join(hiredis.pack_command(tuple(words)) for words in commands)  # type: ignore[arg-type]
        return self._send(packed, len(commands), True)

    def _send(self, packed: bytes, replies: int, all_: bool) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.set_exception(Unavailable(f"{self.name}: this connection is closed"))
            return answer
        self._waiting.append(_Call(packed, answer, replies, all_))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return answer

    def leave(self) -> None:
        """Drop the connection after the batch under way, because it leads to the wrong server."""
        self._leave = True

    async def close(self) -> None:
        """Disconnect. Calls under way fail."""
        self._closed = True
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        await self._drop()

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                if batch:
                    await self._exchange(batch)
        finally:
            self._worker = None
            if self._waiting:
                _fail(self._waiting, self._unsent())
                self._waiting.clear()

    def _take(self) -> list[_Call]:
        """Return the next batch, without calls whose callers were cancelled."""
        batch: list[_Call] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MAX:
            size += len(self._waiting[0].packed)
            if batch and size > BATCH_BYTES_MAX:
                break
            call = self._waiting.popleft()
            if not call.answer.done():
                batch.append(call)
        return batch

    async def _exchange(self, batch: Sequence[_Call]) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                connection = await self._ready()
        except TimeoutError:
            _fail(batch, Unavailable(f"{self.name}: no connection within {self.timeout_s:g} s"))
            return
        except HoldfastError as error:
            _fail(batch, error)
            return
        except BaseException:
            _fail(batch, self._unsent())
            raise
        answered = 0
        try:
            async with asyncio.timeout(self.timeout_s):
                await connection.send_packed_command([call.packed for call in batch], check_health=False)
                for call in batch:
                    replies = [await _reply(connection) for _ in range(call.replies)]
                    answered += 1
                    _settle(call.answer, replies if call.all else replies[-1])
        except TimeoutError:
            await self._lose(batch[answered:], f"no answer within {self.timeout_s:g} s")
        except (RedisError, OSError) as error:
            await self._lose(batch[answered:], f"the connection broke: {error}")
        except BaseException:
            await self._lose(batch[answered:], "the connection was closed before the answer")
            raise

    async def _ready(self) -> Connection:
        """Return the connection if it isn't known to be broken, or make a new one: a call on a broken one
        would have an unknown outcome."""
        while self._connection is None or self._leave or is_broken(self._connection):
            await self._drop()
            self._leave = False  # before connecting: ``leave`` may be called of the new connection
            self._connection = await self._connect()
        return self._connection

    def _unsent(self) -> Unavailable:
        return Unavailable(f"{self.name}: the connection was closed before the call was sent")

    async def _lose(self, unanswered: Sequence[_Call], why: str) -> None:
        """Drop the connection, because later answers would be taken for answers to other calls."""
        await self._drop()
        _fail(unanswered, OutcomeUnknown(f"{self.name}: {why}"))

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await discard(connection)


def is_broken(connection: Connection) -> bool:
    """True if the other side hung up while nothing was under way."""
    reader, writer = connection._reader, connection._writer
    return reader is None or writer is None or reader.at_eof() or writer.is_closing()


async def discard(connection: Connection) -> None:
    """Close a connection, whatever its state, without waiting for the other side."""
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


async def _reply(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except RedisRefused as refused:
        return refused


def _settle(answer: asyncio.Future[Any], reply: Any) -> None:
    if answer.done():
        return  # its caller was cancelled
    if isinstance(reply, RedisRefused):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def _fail(batch: Iterable[_Call], error: HoldfastError) -> None:
    for call in batch:
        if not call.answer.done():
            call.answer.set_exception(type(error)(str(error)))  # each caller's own: it gets its traceback
