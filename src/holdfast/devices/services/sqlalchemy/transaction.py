"""A transaction of the dispatcher, and its statements' way to the database.

PostgreSQL may be far away, and planning a statement takes as long as executing it. So statements are
prepared, reads of one step share a round trip, and writes wait for the next read or the commit and go in its
message. It is one message and no pipeline: a process that is stopped between two messages would keep its
locks, because the server waits for the rest without a limit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from holdfast.errors import OutcomeUnknown


class Statement(msgspec.Struct, frozen=True):
    """A statement as the driver takes it. On PostgreSQL it calls the statement that ``prepare`` prepares."""

    text: str
    prepare: str = ""


Query = tuple[Statement, Mapping[str, Any]]
"""A statement and its parameters."""

Rows = Sequence[Sequence[Any]]


class SqliteTransaction:
    """A transaction of SQLite, which begins with the write lock. Errors are the driver's, or
    SQLAlchemy's where its connection was used; after one the connection must not be used again.

    Args:
        full: commits wait for the disk.
        relaxed: this one doesn't, unless ``harden`` is called.
    """

    def __init__(self, connection: Connection, *, full: bool, relaxed: bool) -> None:
        self.connection = connection
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._may_harden = full and relaxed
        self._hardened = False
        self._driver.execute(f"PRAGMA synchronous = {'FULL' if full and not relaxed else 'NORMAL'}")
        self._driver.execute("BEGIN IMMEDIATE")

    def read(self, *queries: Query) -> list[Rows]:
        """Return the rows of each query."""
        return [self._driver.execute(statement.text, values).fetchall() for statement, values in queries]

    def write(self, statement: Statement, *rows: Mapping[str, Any]) -> None:
        """Execute the statement for each of ``rows``."""
        self._driver.executemany(statement.text, rows)

    def harden(self) -> None:
        """Have the commit wait for the disk, although the transaction is relaxed."""
        self._hardened = self._may_harden

    def commit(self) -> None:
        """Commit all. Raises OutcomeUnknown if the disk doesn't confirm it."""
        self.connection.commit()
        if self._hardened:
            self._sync()

    def _sync(self) -> None:
        """Write SQLite's log to disk. The mode of a commit can't be changed within its transaction."""
        [(_, _, database), *_] = self._driver.execute("PRAGMA database_list").fetchall()
        try:
            log = os.open(f"{database}-wal", os.O_RDONLY)
            try:
                os.fsync(log)
            finally:
                os.close(log)
        except FileNotFoundError:
            return  # on file systems without a log of SQLite, NORMAL waits as FULL does
        except OSError as error:
            raise OutcomeUnknown(
                f"{database}: the disk didn't confirm a commit ({error.strerror}); see to the disk"
            ) from error


BEGIN = Statement("BEGIN")
RELAX = Statement("SET LOCAL synchronous_commit = off")
COMMIT = Statement("COMMIT")


class PostgresqlTransaction:
    """A transaction of PostgreSQL, with the interface of ``SqliteTransaction``. It begins with the first
    message, and an error of ``write`` comes with the next one."""

    def __init__(self, connection: Connection, *, relaxed: bool) -> None:
        from psycopg import ClientCursor  # noqa: PLC0415 (an extra)

        self._connection = connection
        driver: Any = connection.connection.driver_connection
        self._cursor = ClientCursor(driver)
        self._prepared: set[Statement] = connection.info.setdefault("holdfast_prepared", set())
        self._unsent: list[Query] = [(BEGIN, {})]
        self._relaxed = relaxed

    @property
    def connection(self) -> Connection:
        """The connection, for statements of SQLAlchemy after all that was written."""
        if self._unsent:
            self.send()
        return self._connection

    def read(self, *queries: Query) -> list[Rows]:
        self.send(*queries)
        found: list[Rows] = []
        for _ in queries:
            found.append(self._cursor.fetchall())
            self._cursor.nextset()
        return found

    def write(self, statement: Statement, *rows: Mapping[str, Any]) -> None:
        self._unsent += [(statement, row) for row in rows]

    def harden(self) -> None:
        self._relaxed = False

    def commit(self) -> None:
        if self._relaxed:
            self.write(RELAX, {})
        self.send((COMMIT, {}))
        self._connection.commit()

    def send(self, *queries: Query) -> None:
        """Send ``queries`` after all waiting writes. The caller fetches their results next."""
        sent, self._unsent = [*self._unsent, *queries], []
        fresh = list(dict.fromkeys(each for each, _ in sent if each.prepare and each not in self._prepared))
        calls = [self._cursor.mogrify(statement.text, values) for statement, values in sent]
        self._cursor.execute("; ".join([*(statement.prepare for statement in fresh), *calls]))
        self._prepared.update(fresh)
        for _ in range(len(fresh) + len(sent) - len(queries)):
            self._cursor.nextset()


OutboxTransaction = SqliteTransaction | PostgresqlTransaction
