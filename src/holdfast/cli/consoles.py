"""Consoles of Rich that escape control characters, and survive a closed pipe. Rich itself passes these
characters on, and lets the command fail."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.cli import output
from holdfast.common.text import visible


class VisibleConsole(Console):
    """A console that escapes control characters in texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with an escape for each control character."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class OutputConsole(VisibleConsole):
    """The console of stdout."""

    def on_broken_pipe(self) -> None:
        """End the command with success, or continue."""
        output.lose_reader()


class ErrorConsole(VisibleConsole):
    """The console of stderr."""

    def on_broken_pipe(self) -> None:
        """Continue: the exit code says whether the command succeeded."""
        output.discard(self.file)
