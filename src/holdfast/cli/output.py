"""The output of commands: tables for people, JSON for programs. Log and errors go to stderr, never to stdout.
Control characters are escaped, here and in the consoles.

Imports inside functions keep commands fast.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from holdfast.common.text import visible, visible_json
from holdfast.operate.records import body, moment, split_key

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from holdfast.ports.clock import Clock

__all__ = [
    "again",
    "body",
    "complain",
    "console",
    "discard",
    "error_console",
    "go_on_unread",
    "is_narrow",
    "json_line",
    "local_moment",
    "lose_reader",
    "moment",
    "redraw",
    "remark",
    "say",
    "show",
    "split_key",
    "table",
]

WIDE = 120
"""Width of a terminal, in columns, on which all tables fit."""


def json_line(record: Any) -> None:
    """Print a JSON value on a line, at once."""
    import msgspec  # noqa: PLC0415

    _write(visible_json(msgspec.json.encode(record).decode()))


def say(text: str) -> None:
    """Print a line for people."""
    _write(visible(text))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        lose_reader()


def remark(text: str) -> None:
    """Print a line for people to stderr, beside output for programs."""
    try:
        sys.stderr.write(visible(text) + "\n")
    except BrokenPipeError:
        discard(sys.stderr)


def complain(text: str) -> None:
    """Print an error to stderr."""
    from rich.text import Text  # noqa: PLC0415

    from holdfast.common.redaction import redact  # noqa: PLC0415

    error_console().print(Text(visible(redact(text)), style="red"), soft_wrap=True)


def error_console() -> Console:
    """Return the console of the present stderr."""
    from holdfast.cli.consoles import ErrorConsole  # noqa: PLC0415

    return ErrorConsole(stderr=True)


def console() -> Console:
    """Return the console of the present stdout. Only on a terminal are lines cut to fit."""
    from holdfast.cli.consoles import OutputConsole  # noqa: PLC0415

    return OutputConsole() if sys.stdout.isatty() else OutputConsole(width=240)


@dataclass
class _Command:
    goes_on_unread: bool = False


_command = _Command()
"""The command that this process runs."""


def go_on_unread(wanted: bool = True) -> None:
    """From here on, let the command continue if the reader of its output closes the pipe, as ``head`` does:
    its exit code and stderr say what it did. A command that changes something calls this before it begins,
    as ``audited`` does. Other commands then end at once, with success."""
    _command.goes_on_unread = wanted


def lose_reader() -> None:
    """Discard stdout after its reader has closed the pipe. Raises BrokenPipeError unless the command goes
    on."""
    with contextlib.suppress(OSError):  # no such file
        if os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):  # as after ``2>&1 | head``
            discard(sys.stderr)
    discard(sys.stdout)
    if not _command.goes_on_unread:
        raise BrokenPipeError


def discard(stream: IO[str]) -> None:
    """Discard everything that is written to a stream, its buffer too."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def is_narrow() -> bool:
    """Return True if wide tables don't fit."""
    return console().width < WIDE


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    narrow: bool = False,
    dropped: Collection[str] = (),
) -> Table:
    """Return a table with numbers to the right. A ``narrow`` one leaves out empty and ``dropped`` columns,
    and cuts long cells except in the last column."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = Table(title=Text(visible(title), "table.title"), title_justify="left", box=None, pad_edge=False)
    lines = [list(row) for row in rows]
    shown = [
        index
        for index, column in enumerate(columns)
        if not narrow or not (column in dropped or (bool(lines) and all(line[index] == "" for line in lines)))
    ]
    for index in shown:
        numeric = bool(lines) and all(isinstance(line[index], int | float) for line in lines)
        cut = narrow and index != shown[-1]
        made.add_column(
            Text(columns[index]),
            justify="right" if numeric else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=cut,
        )
    for line in lines:
        made.add_row(*(Text(_cell(line[index])) for index in shown))
    return made


def show(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], records: Iterable[Any], *, json: bool
) -> None:
    """Print records as JSON lines, or their rows as a table."""
    if json:
        for record in records:
            json_line(record)
    else:
        console().print(table(title, columns, rows))


async def redraw(
    clock: Clock, draw: Callable[[], Awaitable[RenderableType]], every_s: float, times: int | None = None
) -> None:
    """Show what ``draw`` returns, again and again or ``times`` times: in place on a terminal, else as one
    block after the other."""
    from rich.console import Group  # noqa: PLC0415

    shown = console()
    place: Any = contextlib.nullcontext()
    if shown.is_terminal and not shown.is_dumb_terminal:
        from rich.live import Live  # noqa: PLC0415

        place = Live(console=shown, auto_refresh=False, screen=times is None)
    with place as live:

        async def show() -> None:
            drawn = Group(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %Z}\n", await draw(), "")
            shown.print(drawn) if live is None else live.update(drawn, refresh=True)

        await again(clock, show, every_s, times)


async def again(
    clock: Clock, show: Callable[[], Awaitable[None]], every_s: float, times: int | None = None
) -> None:
    """Call ``show`` again and again, or ``times`` times."""
    done = 0
    while True:
        await show()
        done += 1
        if done == times:
            return
        await clock.sleep(every_s)


def local_moment(at: float) -> str:
    """Return a wall time in the reader's zone, or "" for none."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else visible(str(value))
