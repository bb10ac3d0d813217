"""Arrays as parameters of statements, each as one text.

psycopg takes longer over each item of a list than the server takes to read it. It also gives numbers a type
by the largest of them, and the server would prepare a statement for each combination of types."""

from __future__ import annotations

from collections.abc import Iterable


def numbers(values: Iterable[float | bool | None]) -> str:
    """Return an array of numbers."""
    return f"{{{','.join('NULL' if value is None else str(value) for value in values)}}}"


def words(values: Iterable[str]) -> str:
    """Return an array of texts that hold neither a quote nor a backslash, such as places of rows."""
    return '{"' + '","'.join(values) + '"}'
