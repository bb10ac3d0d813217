"""The warnings and errors that Holdfast logs, with their meanings in ``docs/events``."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "src/holdfast"
MEANINGS = DOCS / "events"

LEVELS = {"warning": "warning", "error": "error", "exception": "error", "critical": "error"}
LOGGERS = {"log", "_log", "bound", "logger"}
NOT_SHIPPED_TO_OPERATORS = {"testing"}
"""Folders whose events only tests see."""


class Logged(NamedTuple):
    """A call that logs. ``event`` is None if its text isn't constant."""

    folder: str
    level: str
    event: str | None
    where: str


@cache
def logged() -> tuple[Logged, ...]:
    """Return every call in the source that logs a warning or an error."""
    return tuple(
        call
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in NOT_SHIPPED_TO_OPERATORS
        for call in _calls(path)
    )


def _calls(path: Path) -> Iterator[Logged]:
    source = path.read_text()
    if not any(f".{level}(" in source for level in LEVELS):
        return
    module = path.relative_to(PACKAGE)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=logger, attr=level)) if level in LEVELS and _logs(logger):
                event = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                text = event if isinstance(event, str) else None
                yield Logged(module.parts[0], LEVELS[level], text, f"{module}:{node.lineno}")


def _logs(value: ast.expr) -> bool:
    """Return whether an expression is a logger, by its name."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in LOGGERS
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name == "get_logger"
    return False


def meanings(folder: str) -> dict[str, dict[str, str]]:
    """Return the meaning and the remedy of each event of a folder."""
    path = MEANINGS / f"{folder}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def tables() -> str:
    """Return a table of events for each folder."""
    levels: dict[tuple[str, str], str] = {}
    for call in logged():
        if call.event is not None:
            levels.setdefault((call.folder, call.event), call.level)
    lines: list[str] = []
    for folder in sorted({folder for folder, _ in levels}):
        known = meanings(folder)
        rows = [
            f"| `{event}` | {level} | {known[event]['meaning']} | {known[event]['remedy']} |"
            for (where, event), level in sorted(levels.items())
            if where == folder and event in known
        ]
        if rows:
            lines += [f"## {folder}", "", "| event | level | meaning | what to do |", "|---|---|---|---|"]
            lines += [*rows, ""]
    return "\n".join(lines)
