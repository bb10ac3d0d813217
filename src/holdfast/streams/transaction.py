"""A transaction of the caller's, in which messages are sent.

None of the libraries is imported: a connection is known by the module of its class.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.errors import ConfigError
from holdfast.ports.queue import Addition, CallerStatement

_NAMES = re.compile(r":([a-z_]+)")

_KINDS = "a Session or Connection of SQLAlchemy, a connection of psycopg or Django, or a sqlite3.Connection"

_NO_TRANSACTION = (
    "connection is in autocommit mode and has no transaction; begin one, so that the message commits together"
    " with what else you change"
)


def add(connection: Any, addition: Addition) -> list[str]:
    """Add messages in the transaction that stands at ``connection``, or that it begins by itself; returns
    their ids. The caller commits. Raises ConfigError for an object of another kind, for one without a
    transaction, and for a connection to another database; and what the connection's library raises."""
    caller = _caller(connection)
    caller.begin()
    steps, found = addition.steps(), None
    while True:
        try:
            statement = steps.send(found)
        except StopIteration as end:
            caller.after_commit(addition.committed)
            return list(end.value)
        found = caller.execute(statement)


async def add_async(connection: Any, addition: Addition) -> list[str]:
    """Like :func:`add`, for asynchronous connections too."""
    if hasattr(connection, "run_sync"):  # SQLAlchemy's
        ids: list[str] = await connection.run_sync(add, addition)
        return ids
    if not _is_of(connection, "psycopg") or not hasattr(connection, "__aenter__"):
        return add(connection, addition)
    caller = _Psycopg(connection)
    caller.begin()
    steps, found = addition.steps(), None
    while True:
        try:
            statement = steps.send(found)
        except StopIteration as end:
            return list(end.value)
        found = await caller.execute_async(statement)


def is_async(connection: Any) -> bool:
    """Return True for a connection that only :func:`add_async` can use."""
    return hasattr(connection, "run_sync") or (
        _is_of(connection, "psycopg") and hasattr(connection, "__aenter__")
    )


def _is_of(connection: Any, library: str) -> bool:
    return any(each.__module__.partition(".")[0] == library for each in type(connection).__mro__)


def _caller(connection: Any) -> _Caller:
    if _is_of(connection, "sqlalchemy"):
        return _SqlAlchemy(connection)
    if _is_of(connection, "django"):
        return _Django(connection)
    if _is_of(connection, "psycopg"):
        return _Psycopg(connection)
    if _is_of(connection, "sqlite3"):
        return _Sqlite(connection)
    raise ConfigError(f"connection is a {type(connection).__qualname__}; give {_KINDS}")


class _Caller:
    """Executes statements at a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self) -> None:
        """Begin a transaction if the library would have done so. Raises ConfigError if it would not."""

    def execute(self, statement: CallerStatement) -> Any:
        """Return the first column of the first row; None without rows."""
        raise NotImplementedError

    def after_commit(self, call: Callable[[], None]) -> None:
        """Make this call after the commit, if the library can do that."""


class _SqlAlchemy(_Caller):
    def __init__(self, connection: Any) -> None:
        if hasattr(connection, "registry"):  # a scoped session
            connection = connection()
        super().__init__(connection)
        self._is_session = hasattr(connection, "flush")

    def begin(self) -> None:
        connection = self._connection.connection() if self._is_session else self._connection
        _begin_at(connection.connection.driver_connection, connection.exec_driver_sql)

    def execute(self, statement: CallerStatement) -> Any:
        from sqlalchemy import text  # noqa: PLC0415 - the caller has it

        result = self._connection.execute(text(statement.text), statement.parameters)
        return result.scalar() if result.returns_rows else None

    def after_commit(self, call: Callable[[], None]) -> None:
        from sqlalchemy import event  # noqa: PLC0415

        if self._is_session:
            event.listen(self._connection, "after_commit", lambda _: call(), once=True)


class _Django(_Caller):
    def begin(self) -> None:
        if not self._connection.in_atomic_block:
            raise ConfigError(f"{_NO_TRANSACTION} (django.db.transaction.atomic)")

    def execute(self, statement: CallerStatement) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(_percent(statement.text), statement.parameters)
            return _first(cursor.fetchall()) if cursor.description else None

    def after_commit(self, call: Callable[[], None]) -> None:
        self._connection.on_commit(call)


class _Psycopg(_Caller):
    def begin(self) -> None:
        _begin_at(self._connection)

    def execute(self, statement: CallerStatement) -> Any:
        cursor = self._connection.execute(_percent(statement.text), statement.parameters)
        return _first(cursor.fetchall()) if cursor.description else None

    async def execute_async(self, statement: CallerStatement) -> Any:
        cursor = await self._connection.execute(_percent(statement.text), statement.parameters)
        return _first(await cursor.fetchall()) if cursor.description else None


class _Sqlite(_Caller):
    def begin(self) -> None:
        _begin_at(self._connection, self._connection.execute)

    def execute(self, statement: CallerStatement) -> Any:
        cursor = self._connection.execute(statement.text, statement.parameters)
        return _first(cursor.fetchall()) if cursor.description else None


def _begin_at(driver: Any, execute: Callable[[str], Any] | None = None) -> None:
    """Raise ConfigError if a driver's connection commits each statement by itself. The driver of SQLite
    begins a transaction only where rows change; ``execute`` begins it before the first read, for which it
    would otherwise be too late to wait for its turn."""
    if hasattr(driver, "in_transaction"):
        if driver.in_transaction:
            return
        if driver.isolation_level is None:
            raise ConfigError(_NO_TRANSACTION)
        if execute is not None:
            execute("BEGIN IMMEDIATE")
    elif getattr(driver, "autocommit", False) is True and driver.info.transaction_status == 0:
        raise ConfigError(_NO_TRANSACTION)


def _percent(text: str) -> str:
    return _NAMES.sub(r"%(\1)s", text)


def _first(rows: Any) -> Any:
    return rows[0][0] if rows else None
