"""The transaction in which an operation writes, and statements for many rows at once.

Statements are of few shapes, so that SQLite can keep them prepared."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

SIZES = (1, 4, 16, 64, 256)
"""Rows in a statement. Fewer are filled up with rows of NULL, which the statement must ignore."""


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
        """As :meth:`texts`, for texts joined by commas; returns their items."""
        return [item for text in self.texts(template, rows, *parameters) for item in text.split(",")]

    def ring(self, topic: str) -> None:
        """Wake the waiters for ``topic``, after the commit."""
        self.topics.add(topic)


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
    for begin in range(0, len(rows), SIZES[-1]):
        some = rows[begin : begin + SIZES[-1]]
        size, width = next(size for size in SIZES if size >= len(some)), len(some[0])
        values = [value for row in some for value in row]
        values += [None] * (width * (size - len(some)))
        values += parameters
        cursors.append(connection.execute(_statement(template, size, width), values))
    return cursors


@lru_cache(maxsize=256)
def _statement(template: str, size: int, width: int) -> str:
    row = f"({','.join('?' * width)})"
    return template.replace("{rows}", ",".join([row] * size))
