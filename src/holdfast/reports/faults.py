"""The errors that the data of a report causes. (A wrong order is an InvalidMessage that names its field.)"""

from __future__ import annotations

from holdfast.errors import HoldfastError


class UnreadableSource(HoldfastError):
    """A source is missing, damaged, or unlike the others of its table; the text names it and the column."""


class UnwritableColumn(HoldfastError):
    """A column's type, or one of its values, can't be written as ordered. ``column``: its name there."""

    def __init__(self, text: str, column: str) -> None:
        super().__init__(text)
        self.column = column


class TooManyRows(HoldfastError):
    """The result doesn't fit the format, and the order says to refuse it."""
