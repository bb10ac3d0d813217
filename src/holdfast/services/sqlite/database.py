"""One SQLite file for many processes: group commit in a writer thread, reads in another.

Durability: ``full`` (the default) has the disk confirm every commit before it is answered, so that it
survives a power failure; ``normal`` leaves that to the operating system, which is several times faster,
survives any crash of processes, and may lose the last moments to a power failure or a crash of the host.

The disk confirms outside the write lock. A commit reaches SQLite's log unconfirmed (``synchronous =
NORMAL``), the lock passes on, and a third thread has the disk confirm the log and then answers: processes
don't wait for each other's disk writes, and one confirmation serves all commits before it. Other processes of
the host may see a commit that isn't confirmed yet. But no answer based on it leaves the host: their writes
are confirmed after it, and reads whose answers leave the host are confirmed too (``confirmed``).

The holder of the write lock keeps all other processes waiting, and a thread that runs SQL releases the
interpreter lock at each step of a statement. So operations of one kind that arrive together are merged into
few statements of many rows (:meth:`Database.write_many`), and the time for which a busy thread may keep the
interpreter is cut (``quick_switches``).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from holdfast.errors import ConfigError, HoldfastError, OutcomeUnknown, Unavailable, UnsupportedStore
from holdfast.ports.clock import Clock
from holdfast.services.sqlite import mounts, schema
from holdfast.services.sqlite.faults import exists, missing, named, unusable
from holdfast.services.sqlite.lock import WriteLock
from holdfast.services.sqlite.thread import WriterCall, WriterThread, answer, called
from holdfast.system.doorbell import Doorbell
from holdfast.system.files import OWNER, Access, for_writers, make_file, make_folder
from holdfast.system.interpreter import quick_switches
from holdfast.system.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")
ItemT = TypeVar("ItemT")

Durability = Literal["full", "normal"]

BATCH_MAX = 512
"""The most operations in one transaction."""

READS_MAX = 32
"""The most reads that are answered together."""

FOREIGN_LOCK_S = 5.0
"""Seconds to wait for programs that lock the file without the lock file (such as the sqlite3 shell)."""

CHECKPOINT_PAGES = 4_000
STATEMENTS_CACHED = 512

ROWS = (1, 4, 16, 64, 256)
"""The possible numbers of rows in a statement: few, so that SQLite keeps all of them prepared. Missing rows
are NULL, and the statement must ignore them."""


class Transaction:
    """The transaction in which an operation writes. It takes effect, and rings, only after the whole batch is
    committed."""

    __slots__ = ("connection", "execute", "topics")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.topics: set[str] = set()

    def change_rows(self, template: str, rows: Sequence[Sequence[Any]], *parameters: Any) -> int:
        """Run one statement for many ``{rows}``; returns how many rows it changed."""
        return sum(cursor.rowcount for cursor in _execute_rows(self.connection, template, rows, *parameters))

    def texts(self, template: str, rows: Sequence[Sequence[Any]], *parameters: Any) -> list[str]:
        """Run one query for many ``{rows}`` that answers with one text or none; returns the texts."""
        cursors = _execute_rows(self.connection, template, rows, *parameters)
        return [text for cursor in cursors for [text] in [cursor.fetchone()] if text]

    def list_rows(self, template: str, rows: Sequence[Sequence[Any]], *parameters: Any) -> list[str]:
        """Like :meth:`texts`, for texts joined by commas; returns their items."""
        return [item for text in self.texts(template, rows, *parameters) for item in text.split(",")]

    def ring(self, topic: str) -> None:
        """Wake the waiters for ``topic``, after the commit."""
        self.topics.add(topic)


class Database:
    """An open database file. Use :meth:`open`. The code that opened it closes it, after its adapters.

    Attributes:
        path: the file.
        doorbell: wakes waiters for changes, in all processes.
        write_connection, read_connection: the connections of its two threads.
    """

    _shared: ClassVar[dict[Path, Database]] = {}
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        clock: Clock,
        *,
        durability: Durability = "full",
        lock_timeout_s: float = 2.0,
        busy_timeout_s: float = 10.0,
        access: Access | None = OWNER,
        expands: bool = True,
    ) -> Self:
        """Open the database in the file ``path``. It is made if it doesn't exist, and its schema is updated.

        A process that opens the same file again shares the first one, settings included; each opening
        needs its own closing.

        Args:
            clock: the host's clock, which all processes share.
            durability: ``full`` or ``normal``, see above.
            lock_timeout_s: a process that is stopped in a transaction is killed when another has waited
                for it so long.
            busy_timeout_s: writes that have waited so long for a process that runs are Unavailable.
            expands: whether the schema is updated.
            access: the modes of the file and of folders, where they are created; None creates neither.
                The files beside it get the same mode.

        Raises ConfigError if the file can't be made or written, UnsupportedStore for a file that isn't
        a sound database of this version or lies on a network file system, Unavailable if it is locked or
        the disk is full.
        """
        place = Path(path).absolute()
        if access is None and not exists(place):
            raise missing(place)
        try:
            if access is not None:
                make_folder(place.parent, access)
        except OSError as error:
            raise unusable(place, error) from error
        place = place.resolve()
        with cls._sharing:
            database = cls._shared.get(place)
            if database is None:
                database = cls(place, clock, durability, lock_timeout_s, busy_timeout_s, access, expands)
                cls._shared[place] = database
            database._users += 1
            assert isinstance(database, cls)
            return database

    def __init__(
        self,
        path: Path,
        clock: Clock,
        durability: Durability,
        lock_timeout_s: float,
        busy_timeout_s: float,
        access: Access | None,
        expands: bool,
    ) -> None:
        self.path = path
        self._users = 0
        self._log: int | None = None
        self._failed = ""
        self._lock_timeout_s = lock_timeout_s
        self._busy_timeout_s = busy_timeout_s
        if durability not in ("full", "normal"):
            raise ConfigError(f"durability {durability!r} must be 'full' or 'normal'")
        mounts.refuse_network(path)
        with contextlib.ExitStack() as undo:
            try:
                if access is not None:
                    make_file(path, access)  # its log gets the same mode from SQLite
                writers = for_writers(path)
                self._lock = WriteLock(path.with_name(f"{path.name}.lock"), writers.file)
                undo.callback(self._lock.close)
                self.doorbell = Doorbell(path.with_name(f"{path.name}.bells"), clock.new_id(), writers)
            except OSError as error:
                raise unusable(path, error) from error
            self._completion: WriterThread[Batch] = WriterThread(
                "holdfast-db-completion", self._serve_completed, BATCH_MAX
            )
            undo.callback(self._completion.close)
            self._writer: WriterThread[WriterCall] = WriterThread(
                "holdfast-db-writer", self._serve_writes, BATCH_MAX
            )
            undo.callback(self._writer.close)
            self._reader: WriterThread[WriterCall] = WriterThread(
                "holdfast-db-reader", self._serve_reads, READS_MAX
            )
            undo.callback(self._reader.close)
            self._stop = threading.Event()
            self._watchdog = threading.Thread(target=self._watch, name="holdfast-db-watchdog", daemon=True)
            self._watchdog.start()
            undo.callback(self._watchdog.join)
            undo.callback(self._stop.set)
            try:
                self.write_connection = _connect(path, undo)
                with self._locked():
                    schema.check(self.write_connection, path)
                    _configure(self.write_connection, path)
                    if expands:
                        schema.migrate(self.write_connection)
                    schema.settle_boot(self.write_connection, clock)
                self.read_connection = _connect(path, undo)
                self.read_connection.execute("PRAGMA query_only = ON")
                if durability == "full":
                    self._log = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
            except sqlite3.Error as error:
                raise named(error, path, opening=True) from error
            except OSError as error:
                raise unusable(path, error) from error
            undo.pop_all()
        # For all of the process: with the default a busy event loop starves the writer a hundredfold.
        quick_switches.hold()

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Run ``operation`` in a transaction shared with others; returns its result once committed.

        It must not depend on others under way, and may be run again after a rollback. If it raises,
        nothing of it is written. Raises Unavailable if nothing was written, OutcomeUnknown if the commit
        failed half-way.
        """
        result: T = await self.submit(_each, operation)
        return result

    async def write_many(
        self, operation: Callable[[Transaction, Sequence[ItemT]], Sequence[T | HoldfastError]], item: ItemT
    ) -> T:
        """Like :meth:`write`, but ``operation`` is called once for all items that came together.

        It returns for each item, in order, its result, or an error for that item alone.
        """
        result: T = await self.submit(operation, item)
        return result

    def submit(
        self,
        operation: Callable[[Transaction, Sequence[Any]], Sequence[Any]],
        item: Any,
        *,
        confirmed: bool = True,
        linger_s: float = 0.0,
    ) -> asyncio.Future[Any]:
        """Like :meth:`write_many`, but returns at once. Cancelling the future doesn't show whether
        the operation ran. Without ``confirmed`` a power failure may take it back. It may wait for others
        to share their transaction, for ``linger_s``."""
        call = called(operation, item, confirmed)
        self._writer.put(call, linger_s)
        return call.future

    async def read(self, query: Callable[[sqlite3.Connection], T], *, confirmed: bool = False) -> T:
        """Run ``query`` in the reader thread; returns its result. Each statement sees what was committed
        when it began.

        ``confirmed``: the rows found are safe from power failures too."""
        call = called(query, None, confirmed)
        self._reader.put(call)
        result: T = await call.future
        return result

    async def rows(self, query: str, *parameters: Any, confirmed: bool = False) -> list[Any]:
        """Return the rows of one query, read as :meth:`read` does."""
        return await self.read(
            lambda connection: connection.execute(query, parameters).fetchall(), confirmed=confirmed
        )

    async def close(self) -> None:
        """Finish pending calls and close the file, once every opening has been closed."""
        with self._sharing:
            self._users -= 1
            if self._users:
                return
            self._shared.pop(self.path, None)
        await asyncio.to_thread(self._end)
        self.doorbell.close()

    # --- the writer thread

    def _serve_writes(self) -> None:
        if self._failed:
            self._refuse(self._failed)
            return
        topics: set[str] = set()
        try:
            with self._locked():
                calls = [call for call in self._writer.take() if not call.future.cancelled()]
                if calls and not self._transact(calls, topics):
                    for call in calls:  # one of them failed and took the rest with it
                        self._transact([call], topics)
        except OSError as error:
            self._refuse(f"{self.path} can't be locked: {error}")
            return
        self._completion.put(Batch(calls, topics))

    def _transact(self, calls: list[WriterCall], topics: set[str]) -> bool:
        """Run calls in one transaction and collect what to ring; False if each must be run alone."""
        transaction = Transaction(self.write_connection)
        for call in calls:
            call.error = None
        try:
            transaction.execute("BEGIN IMMEDIATE")
            for run, group in _by_run(calls).items():
                for call, result in zip(group, run(transaction, [c.item for c in group]), strict=True):
                    if isinstance(result, HoldfastError):
                        call.error = result
                    else:
                        call.result = result
        except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
            self._roll_back()
            if len(calls) == 1:
                calls[0].error = named(error, self.path)
            return len(calls) == 1
        try:
            transaction.execute("COMMIT")
        except sqlite3.Error as error:
            nothing_happened = self._roll_back() and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL
            for call in calls:
                call.error = (
                    named(error, self.path)
                    if nothing_happened
                    else OutcomeUnknown(f"{self.path}: a commit failed half-way ({error}); check the disk")
                )
            return True
        topics |= transaction.topics
        return True

    def _roll_back(self) -> bool:
        try:
            if self.write_connection.in_transaction:
                self.write_connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    # --- the completion thread

    def _serve_completed(self) -> None:
        batches = self._completion.take()
        answer(call for batch in batches for call in batch.calls if not call.confirmed)
        calls = [call for batch in batches for call in batch.calls if call.confirmed]
        if topics := set().union(*(batch.topics for batch in batches)):
            try:
                self.doorbell.ring(topics)
            except OSError as error:  # waiters check by themselves a second later
                log.warning("cannot ring doorbell", path=str(self.path), error=str(error))
        try:
            if calls and self._log is not None and not self._failed:
                confirm(self._log)
        except OSError as error:
            # A disk may lose a write after a failed sync, and confirm the next sync: never ask again.
            self._failed = f"{self.path}: the disk failed ({error}); see to it, then start this process again"
        if self._failed:
            for call in calls:
                call.error = call.error or OutcomeUnknown(self._failed)
        answer(calls)

    # --- the reader thread

    def _serve_reads(self) -> None:
        calls = self._reader.take()
        for call in calls:
            try:
                call.result = call.run(self.read_connection)
            except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
                call.error = named(error, self.path)
        to_confirm = [call for call in calls if call.confirmed and call.result]
        answer(call for call in calls if not (call.confirmed and call.result))
        if to_confirm:
            self._completion.put(Batch(to_confirm, set()))

    # --- the watchdog thread

    def _watch(self) -> None:
        while not self._stop.wait(min(self._lock_timeout_s, self._busy_timeout_s) / 4):
            waited_s = self._lock.waited_s()
            if waited_s > self._lock_timeout_s:
                self._lock.break_stopped()
            if waited_s > self._busy_timeout_s:
                self._refuse(
                    f"{self.path} is locked by another process ({self._lock.holder()})"
                    f" for more than {self._busy_timeout_s:g} s"
                )

    def _refuse(self, why: str) -> None:
        """Answer every write that still waits."""
        refused = self._writer.drop()
        for call in refused:
            call.error = Unavailable(why)
        answer(refused)

    # --- opening and closing

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _end(self) -> None:
        self._reader.close()
        self._writer.close()
        self._completion.close()
        self._stop.set()
        self._watchdog.join()
        self.read_connection.close()
        with self._locked():  # the last one to close folds the log into the file
            self.write_connection.close()
        if self._log is not None:
            os.close(self._log)
        self._lock.close()
        quick_switches.release()


@dataclass(slots=True)
class Batch:
    """Calls that only wait for the disk to confirm them, and the topics to ring."""

    calls: list[WriterCall]
    topics: set[str]


def confirm(log: int) -> None:
    """Return once the disk has the written log."""
    if sys.platform == "darwin":
        fcntl.fcntl(log, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(log)


def _each(transaction: Transaction, operations: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
    """Run single operations, so that one that refuses to write leaves the others alone."""
    results: list[Any] = []
    connection = transaction.connection
    for operation in operations:
        before = connection.total_changes
        try:
            results.append(operation(transaction))
        except HoldfastError as error:
            if connection.total_changes != before:
                raise  # it had written already: the transaction must go
            results.append(error)
    return results


def _by_run(calls: list[WriterCall]) -> dict[Callable[..., Any], list[WriterCall]]:
    groups: dict[Callable[..., Any], list[WriterCall]] = {}
    for call in calls:
        groups.setdefault(call.run, []).append(call)
    return groups


def _connect(path: Path, undo: contextlib.ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=FOREIGN_LOCK_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
    )
    undo.callback(connection.close)
    return connection


def _configure(connection: sqlite3.Connection, path: Path) -> None:
    [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise UnsupportedStore(f"{path}: SQLite can't keep a write-ahead log there; use a disk of this host")
    for setting in (
        "synchronous = NORMAL",
        "fullfsync = ON",  # on macOS the disk confirms only then
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        "journal_size_limit = 67108864",
        "cache_size = -16000",
        "temp_store = MEMORY",
        "secure_delete = OFF",
    ):
        connection.execute(f"PRAGMA {setting}")


def last_number(connection: sqlite3.Connection, table: str) -> int:
    """Return the last number that a table has given, also of a row that is deleted; 0 for none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return row[0] if row else 0


def number_above(connection: sqlite3.Connection, table: str, number: int) -> None:
    """Have a table give higher numbers than this one from now on."""
    changed = connection.execute(
        "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (number, table)
    )
    if not changed.rowcount and number > 0:
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number))


def _execute_rows(
    connection: sqlite3.Connection, template: str, rows: Sequence[Sequence[Any]], *parameters: Any
) -> list[sqlite3.Cursor]:
    """Run ``template`` with ``rows`` in the place of ``{rows}``, in as many statements as it takes.

    ``parameters`` are for the template's own ``?``, all of which stand after ``{rows}``."""
    cursors = []
    for begin in range(0, len(rows), ROWS[-1]):
        some = rows[begin : begin + ROWS[-1]]
        size, width = next(size for size in ROWS if size >= len(some)), len(some[0])
        values = [value for row in some for value in row]
        values += [None] * (width * (size - len(some)))
        values += parameters
        cursors.append(connection.execute(_statement(template, size, width), values))
    return cursors


@lru_cache(maxsize=256)
def _statement(template: str, size: int, width: int) -> str:
    row = f"({','.join('?' * width)})"
    return template.replace("{rows}", ",".join([row] * size))
