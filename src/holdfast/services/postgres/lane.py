"""A lane: one connection, whose transactions are shared by calls of one kind that come at the same time.

While one transaction is under way, calls gather; the next takes all calls of one kind. So the number of round
trips and of writes to the server's disk doesn't grow with the number of calls. Calls of several kinds never
share a transaction: each kind takes its locks in its own order, and different orders end in a deadlock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncPipeline
from psycopg.pq import PipelineStatus

from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.services.postgres import refusals

T = TypeVar("T")
ItemT = TypeVar("ItemT")

Row = tuple[Any, ...]
Connection = AsyncConnection[Row]
Connect = Callable[[], Awaitable[Connection]]
Many = Callable[[Connection, Sequence[Any]], Awaitable[Sequence[Any]]]

BATCH_MAX = 500
"""The largest total weight of the calls in one transaction."""

TRIES = 5
"""Tries of a transaction that conflicts with others."""

TIMEOUT_S = 10.0
"""Seconds after which a transaction is given up, and its connection is cut."""

PAUSES = Backoff(first_s=1.0, max_s=60.0, floor=1.0)
"""Pauses before a new connection after one was cut for its time. The server may continue the cut session, for
example while it waits for a standby, and each such session takes one of the server's connections."""


_pipelines: WeakKeyDictionary[Connection, AsyncPipeline] = WeakKeyDictionary()


class LaneCursor(AsyncCursor[Row]):
    """A cursor that, in a pipeline, ends the request at each fetch. Otherwise the server doesn't count the
    time until the next statement, and ends no transaction that a process has left open."""

    async def fetchone(self) -> Row | None:
        await self._answered()
        return await super().fetchone()

    async def fetchall(self) -> list[Row]:
        await self._answered()
        return await super().fetchall()

    async def _answered(self) -> None:
        if self.pgresult is None and self.connection.pgconn.pipeline_status != PipelineStatus.OFF:
            await _pipelines[self.connection].sync()


@dataclass(slots=True, eq=False)
class _LaneCall:
    """A call. ``durable``: its answer waits for the disk. ``alone``: it runs outside of a transaction of the
    lane. ``writes``: a lost answer leaves its outcome unknown. ``weight``: the number of small calls that
    take as long."""

    run: Many
    item: Any
    weight: int
    durable: bool
    alone: bool
    writes: bool
    future: asyncio.Future[Any]

    def answer(self, result: Any) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class PostgresLane:
    """Calls over one connection, which is made at the first call, and again after a failure.

    Calls raise Unavailable if they had no effect and may be made again, OutcomeUnknown if they may have had
    one, ConfigError if the server refuses this user, and OperationRefused for any other refusal. After a
    transaction that took too long they raise Unavailable at once, for the time in ``PAUSES``.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        gone: Callable[[], None],
        *,
        timeout_s: float = TIMEOUT_S,
        begin: Sequence[str] = ("BEGIN",),
        end_stopped: bytes,
    ) -> None:
        self._name = name
        self._connect = connect
        self._gone = gone
        self.timeout_s = timeout_s
        self._begin = [statement.encode() for statement in begin]
        self._end_stopped_by = end_stopped
        self._connection: Connection | None = None
        self._connected_at = -math.inf
        self._cuts = 0
        self._again_at = -math.inf
        self._calls: list[_LaneCall] = []
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    async def write_many(
        self,
        operation: Callable[[Connection, Sequence[ItemT]], Awaitable[Sequence[T | HoldfastError]]],
        item: ItemT,
        *,
        durable: bool = True,
        weight: int = 1,
    ) -> T:
        """Run ``operation`` once for all items that came together, in one transaction; returns this item's
        result once committed.

        It returns for each item, in order, its result, or an error for that item alone; these are looked at
        only once committed. It may be run again after a rollback, with fewer items. It runs in pipeline mode:
        a statement whose result isn't fetched costs no round trip. An item that isn't ``durable`` is answered
        before the disk has it, so that a crash of the server may take it back. ``weight`` is the number of
        small items that take as long as this one.
        """
        result: T = await self._submit(operation, item, durable=durable, weight=weight)
        return result

    async def write(self, operation: Callable[[Connection], Awaitable[T]], *, durable: bool = True) -> T:
        """Run ``operation`` in a transaction of its own. If it raises, nothing of it is written."""
        result: T = await self._submit(_each, operation, durable=durable)
        return result

    async def read(self, query: Callable[[Connection], Awaitable[T]]) -> T:
        """Run ``query``, which changes nothing, outside of a transaction; returns its result. Each statement
        of it sees what was committed when it began."""
        result: T = await self._submit(_each, query, alone=True, writes=False)
        return result

    async def rows(self, query: bytes, parameters: Any = None, *, binary: bool = True) -> list[Row]:
        """Return the rows of one query, which changes nothing, as :meth:`read` does."""

        async def read(connection: Connection) -> list[Row]:
            return await (await connection.execute(query, parameters, binary=binary)).fetchall()

        return await self.read(read)

    async def run_once(
        self,
        statement: Callable[[Connection, Sequence[ItemT]], Awaitable[Sequence[T | HoldfastError]]],
        item: ItemT,
        *,
        writes: bool,
        weight: int = 1,
    ) -> T:
        """Run ``statement`` once for all items that came together; returns this item's result.

        It executes one statement, which is a transaction of its own: its locks are never held while the
        server waits for this process. It returns for each item, in order, its result, or an error for that
        item alone.
        """
        result: T = await self._submit(statement, item, alone=True, writes=writes, weight=weight)
        return result

    async def close(self) -> None:
        """Disconnect. Calls under way end first; later calls fail."""
        self._closed = True
        if self._worker is not None:
            await asyncio.wait([self._worker])
        await self._disconnect()

    def _submit(
        self,
        run: Many,
        item: Any,
        *,
        durable: bool = True,
        alone: bool = False,
        writes: bool = True,
        weight: int = 1,
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Unavailable(f"{self._name}: this connection is closed"))
            return future
        self._calls.append(_LaneCall(run, item, weight, durable, alone, writes, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return future

    # --- the worker

    async def _work(self) -> None:
        batch: list[_LaneCall] = []
        try:
            while self._calls:
                batch = _together(self._calls)
                chosen = set(map(id, batch))
                self._calls = [c for c in self._calls if id(c) not in chosen]
                batch = [c for c in batch if not c.future.cancelled()]
                if batch:
                    await self._serve(batch)
        except BaseException:  # the calls need an answer, and the connection is in an unknown state
            ended = f"{self._name}: the connection was closed before the answer"
            for call in batch:
                call.answer((OutcomeUnknown if call.writes else Unavailable)(ended))
            for call in self._calls:
                call.answer(Unavailable(f"{self._name}: the connection was closed before the call was sent"))
            self._calls.clear()
            await self._disconnect()
            raise
        finally:
            self._worker = None

    async def _serve(self, batch: list[_LaneCall]) -> None:
        try:
            connection = await self._connected()
        except HoldfastError as error:
            for call in batch:
                call.answer(error)
            return
        results = await self._run(connection, batch)
        if isinstance(results, Exception) and len(batch) > 1 and self._connection is not None:
            for call in batch:  # one of them failed and took the rest with it
                await self._serve([call])
            return
        for place, call in enumerate(batch):
            call.answer(results if isinstance(results, Exception) else results[place])

    async def _run(
        self, connection: Connection, batch: list[_LaneCall], tries: int = TRIES
    ) -> list[Any] | Exception:
        """Run calls in one transaction; returns their results, or the error of them all."""
        committing = False
        try:
            with limited(connection, self.timeout_s, self._give_up):
                if batch[0].alone:
                    committing = batch[0].writes
                    return list(await batch[0].run(connection, [call.item for call in batch]))
                async with connection.pipeline() as pipeline:
                    _pipelines[connection] = pipeline
                    for statement in self._begin:
                        await connection.execute(statement)
                    if not batch[0].durable:
                        await connection.execute("SET LOCAL synchronous_commit = off")
                    results = await batch[0].run(connection, [call.item for call in batch])
                    committing = True
                    await connection.execute("COMMIT")
                return list(results)
        except psycopg.Error as error:
            if error.sqlstate in refusals.GONE:
                self._gone()
            if error.sqlstate in (*refusals.GONE, "25006") or refusals.is_broken(error):
                await self._disconnect()
            else:
                await self._roll_back(connection)
            if error.sqlstate in refusals.OVERTAKEN and tries > 1:
                return await self._run(connection, batch, tries - 1)
            if error.sqlstate == refusals.LOCKED and tries > 1 and await self._end_stopped(connection):
                return await self._run(connection, batch, tries - 1)
            return (refusals.unknown if committing else refusals.explain)(self._name, error)
        except HoldfastError as error:
            await self._roll_back(connection)
            return error
        except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
            await self._roll_back(connection)
            return error

    async def _end_stopped(self, connection: Connection) -> bool:
        """End sessions of stopped processes that hold locks in the middle of a request; return True if there
        were any. The server counts no idle time for them, because it waits for the rest of the request."""
        try:
            with limited(connection, self.timeout_s, self._give_up):
                row = await (await connection.execute(self._end_stopped_by)).fetchone()
        except psycopg.Error:
            await self._disconnect()
            return False
        return row is not None and row[0] > 0

    async def _roll_back(self, connection: Connection) -> None:
        try:
            with limited(connection, self.timeout_s, self._give_up):
                await connection.rollback()
        except psycopg.Error:
            await self._disconnect()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            pause_s = self._again_at - loop_time()
            if pause_s > 0:
                raise Unavailable(
                    f"{self._name}: a call took longer than {self.timeout_s:g} s; none is made for"
                    f" {pause_s:.1f} s more"
                )
            try:
                self._connection = await self._connect()
                self._connected_at = loop_time()
            except psycopg.Error as error:
                raise refusals.explain(self._name, error) from error
            except HoldfastError:
                raise
            except Exception as error:  # such as that no thread can be started, to look up the host
                raise Unavailable(f"{self._name}: no connection can be made: {error}") from error
        return self._connection

    def _give_up(self, connection: Connection) -> None:
        """Cut a connection whose time is over. The pause after it is twice as long as the last one, unless
        the connection stood for longer than any pause."""
        cut(connection)
        now = loop_time()
        self._cuts = 1 if now - self._connected_at > self.timeout_s + PAUSES.max_s else self._cuts + 1
        self._again_at = now + PAUSES.delay_s(self._cuts, 0.0)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


@contextlib.contextmanager
def limited(
    connection: Connection, timeout_s: float, give_up: Callable[[Connection], None] | None = None
) -> Iterator[None]:
    """Cut the connection, or call ``give_up``, after ``timeout_s``: a stopped server doesn't answer a cancel
    request either."""
    timer = asyncio.get_running_loop().call_later(timeout_s, give_up or cut, connection)
    try:
        yield
    finally:
        timer.cancel()


def cut(connection: Connection) -> None:
    """End a connection at once, so that callers that wait for its answer get an error."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)


def loop_time() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


def weight_of(rows: int, size: int = 0) -> int:
    """Return the number of small calls that take as long as one with these rows and bytes."""
    return 1 + rows // 40 + size // (1 << 17)


def _together(calls: Sequence[_LaneCall]) -> list[_LaneCall]:
    """Return the calls that run together with the first one."""
    first = calls[0]
    if first.run is _each:
        return [first]
    kind = (first.run, first.alone, first.durable)
    same = [c for c in calls if (c.run, c.alone, c.durable) == kind]
    weights = itertools.accumulate(call.weight for call in same)
    return [call for call, upto in zip(same, weights, strict=True) if call is first or upto <= BATCH_MAX]


async def _each(
    connection: Connection, operations: Sequence[Callable[[Connection], Awaitable[Any]]]
) -> list[Any]:
    return [await operation(connection) for operation in operations]
