"""The errors of a report's data. (A wrong order raises InvalidMessage, which names the field.)"""

from __future__ import annotations

from holdfast.errors import HoldfastError


class UnreadableSource(HoldfastError):
    """A source is missing, damaged, or differs from the table's other sources; the text names it and the
    column."""


class UnwritableColumn(HoldfastError):
    """A column's type, or one of its values, can't be written as ordered."""

    def __init__(self, text: str, column: str) -> None:
        super().__init__(text)
        self.column = column


class TooManyRows(HoldfastError):
    """The result doesn't fit the format, and the order says to refuse it."""
