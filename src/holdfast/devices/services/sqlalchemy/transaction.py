"""A transaction of the dispatcher's own, and how its statements get to the database.

PostgreSQL may be far away, and plans a statement for as long as it executes it. So statements are prepared,
what is read together comes back together, and what is written waits for the next read or for the commit and
leaves before it in the same message. It is one message and not a pipeline of many: a process that is stopped
between two of them would keep its locks, for the server waits for the rest without a limit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection

from holdfast.errors import OutcomeUnknown


class Statement(msgspec.Struct, frozen=True):
    """A statement in the words of a driver; on PostgreSQL the call of one that ``prepare`` makes."""

    text: str
    prepare: str = ""


Query = tuple[Statement, Mapping[str, Any]]
"""A statement and its parameters."""

Rows = Sequence[Sequence[Any]]


class OutboxTransaction(Protocol):
    """Errors are the driver's own, or SQLAlchemy's where its connection was used. After one the connection
    must not be used again."""

    @property
    def connection(self) -> Connection:
        """For statements of SQLAlchemy, which come after all that was written."""

    def read(self, *queries: Query) -> list[Rows]:
        """The rows of each."""

    def write(self, statement: Statement, *rows: Mapping[str, Any]) -> None:
        """Execute for each of ``rows``; an error may come later."""

    def harden(self) -> None:
        """Its commit has to be on disk after all."""

    def commit(self) -> None:
        """Commit all. Raises OutcomeUnknown where the disk doesn't confirm it."""


class SqliteTransaction:
    """Begins with the write lock. Its commit waits for the disk if it is ``certain``; or, if it ``hardens``,
    once it was hardened."""

    def __init__(self, connection: Connection, *, certain: bool, hardens: bool) -> None:
        self.connection = connection
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._hardens = hardens and not certain
        self._hardened = False
        self._driver.execute(f"PRAGMA synchronous = {'FULL' if certain else 'NORMAL'}")
        self._driver.execute("BEGIN IMMEDIATE")

    def read(self, *queries: Query) -> list[Rows]:
        return [self._driver.execute(statement.text, values).fetchall() for statement, values in queries]

    def write(self, statement: Statement, *rows: Mapping[str, Any]) -> None:
        self._driver.executemany(statement.text, rows)

    def harden(self) -> None:
        self._hardened = self._hardens

    def commit(self) -> None:
        self.connection.commit()
        if self._hardened:
            self._confirm()

    def _confirm(self) -> None:
        """Have its log on disk: what a commit waits for can't be changed within its transaction."""
        [(_, _, database), *_] = self._driver.execute("PRAGMA database_list").fetchall()
        try:
            log = os.open(f"{database}-wal", os.O_RDONLY)
            try:
                os.fsync(log)
            finally:
                os.close(log)
        except FileNotFoundError:
            return  # on file systems where SQLite can't keep one, NORMAL waits as FULL does
        except OSError as error:
            raise OutcomeUnknown(
                f"{database}: the disk didn't confirm a commit ({error.strerror}); see to the disk"
            ) from error


BEGIN = Statement("BEGIN")
RELAX = Statement("SET LOCAL synchronous_commit = off")
COMMIT = Statement("COMMIT")


class PostgresqlTransaction:
    """Begins with what is sent first. Its commit waits for the disk if it is ``certain``."""

    def __init__(self, connection: Connection, *, certain: bool) -> None:
        from psycopg import ClientCursor  # noqa: PLC0415 (an extra)

        self._connection = connection
        driver: Any = connection.connection.driver_connection
        self._cursor = ClientCursor(driver)
        self._prepared: set[Statement] = connection.info.setdefault("holdfast_prepared", set())
        self._unsent: list[Query] = [(BEGIN, {})]
        self._certain = certain

    @property
    def connection(self) -> Connection:
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
        self._certain = True

    def commit(self) -> None:
        if not self._certain:
            self.write(RELAX, {})
        self.send((COMMIT, {}))
        self._connection.commit()

    def send(self, *queries: Query) -> None:
        """Send it with all that waits; the results of ``queries`` are to be fetched next."""
        sent, self._unsent = [*self._unsent, *queries], []
        fresh = list(dict.fromkeys(each for each, _ in sent if each.prepare and each not in self._prepared))
        calls = [self._cursor.mogrify(statement.text, values) for statement, values in sent]
        self._cursor.execute("; ".join([*(statement.prepare for statement in fresh), *calls]))
        self._prepared.update(fresh)
        for _ in range(len(fresh) + len(sent) - len(queries)):
            self._cursor.nextset()
