"""What commands print: tables for people, JSON for programs. Log and errors go to stderr, never here.

What a page of help has no use for is imported inside the functions: its reader waits for every import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.operate.records import body, moment, seq, split_key

__all__ = [
    "body",
    "complain",
    "console",
    "json_line",
    "moment",
    "remark",
    "say",
    "seq",
    "split_key",
    "table",
]


def json_line(record: Any) -> None:
    """One JSON value on a line, at once."""
    import msgspec  # noqa: PLC0415

    sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for people."""
    console().print(Text(text), soft_wrap=True)


def remark(text: str) -> None:
    """A line for people beside the output of a program, to stderr."""
    Console(stderr=True).print(Text(text), soft_wrap=True)


def complain(text: str) -> None:
    """An error, to stderr."""
    from holdfast.common.redaction import redact  # noqa: PLC0415

    Console(stderr=True).print(Text(redact(text), style="red"), soft_wrap=True)


def console() -> Console:
    """The console of the present stdout. Where that is no terminal, lines are not cut to fit one."""
    return Console() if sys.stdout.isatty() else Console(width=240)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table; numbers to the right."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    lines = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(lines) and all(isinstance(line[index], int | float) for line in lines)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        made.add_row(*(Text(_cell(value)) for value in line))
    return made


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
