"""The pages of help: of all commands, without any library, and of one command by Cyclopts, without its
parser of Markdown, whose import would take a quarter of a page's time."""

from __future__ import annotations

import pkgutil
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

    from holdfast.registration.entry_points import LazyCommand

INTRODUCTION = """Usage: holdfast COMMAND

Keyed, ordered, stateful, at-least-once work for Python.

Exit codes: 0 done, 1 failed, 2 the command line, a setting or a file is wrong, 3 a service can't be reached.
"""
OPTIONS = {"--help, -h": "Show this page, or that of a command.", "--version": "Show the version."}
WIDTH_MAX = 110
TEXT_WIDTH_MIN = 20


def overview(commands: Mapping[str, LazyCommand]) -> str:
    """Return the page of all commands, as wide as the terminal. Commands without a summary are imported for
    the first line of their help."""
    import shutil  # noqa: PLC0415 - other pages don't need it

    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    summaries = {
        name: command.summary or _own_summary(command.place) for name, command in sorted(commands.items())
    }
    indent = 4 + max(len(name) for name in (*summaries, *OPTIONS))
    introduction = [textwrap.fill(line, width) for line in INTRODUCTION.splitlines()]
    commands_part = ["", "Commands:", *_rows(summaries, indent, width)]
    options_part = ["", "Options:", *_rows(OPTIONS, indent, width)]
    return "\n".join([*introduction, *commands_part, *options_part])


def _rows(rows: Mapping[str, str], indent: int, width: int) -> Iterator[str]:
    for name, text in rows.items():
        yield textwrap.fill(
            text,
            max(width, indent + TEXT_WIDTH_MIN),
            initial_indent=f"  {name}".ljust(indent),
            subsequent_indent=" " * indent,
        )


def _own_summary(place: str) -> str:
    """Return the first paragraph of a command's help. An App of Cyclopts has it in ``help``."""
    command = pkgutil.resolve_name(place)
    text = getattr(command, "help", None) or getattr(command, "__doc__", None) or ""
    return str(text).partition("\n\n")[0]


class CommandPages:
    """A formatter of Cyclopts for pages of commands in plain text."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from cyclopts.help.formatters import DefaultFormatter  # noqa: PLC0415 - takes long to import

        _reflow(entry.description for entry in panel.entries)
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Print the usage of a command."""
        from cyclopts.help.formatters import DefaultFormatter  # noqa: PLC0415

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Print the description of a command, and its examples."""
        _reflow([description])
        console.print(description)


def _reflow(descriptions: Iterable[Any]) -> None:
    """Reflow texts of Cyclopts to the width of the page."""
    from rich.text import Text  # noqa: PLC0415 - takes long to import

    for description in descriptions:
        text = getattr(description, "primary_renderable", None)
        if isinstance(text, Text):
            description.primary_renderable = Text(flowing(text.plain))


def flowing(docstring: str) -> str:
    """Return a docstring for a page: paragraphs on one line, examples indented, without marks of Markdown."""
    lines: list[str] = []
    is_example = goes_on = False
    for line in docstring.splitlines():
        if line.startswith("```"):
            is_example, goes_on = not is_example, False
        elif is_example:
            lines.append(f"  {line}")
        elif goes_on and line.strip() and not line.startswith(("- ", "* ")):
            lines[-1] += f" {_unmarked(line.strip())}"
        else:
            lines.append(_unmarked(line))
            goes_on = bool(line.strip())
    return "\n".join(lines)


def _unmarked(line: str) -> str:
    return re.sub(r"`{1,2}([^`]*)`{1,2}", r"\1", line)
