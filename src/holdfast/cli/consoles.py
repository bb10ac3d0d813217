"""Consoles that show the characters which a terminal obeys, and whose reader may have gone. Rich's own pass
such characters on, and end the command as one that failed."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.cli import output
from holdfast.common.text import visible


class VisibleConsole(Console):
    """A console on which the characters of foreign texts are all seen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render it, with an escape for each character that a terminal would obey."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class OutputConsole(VisibleConsole):
    """The console of stdout."""

    def on_broken_pipe(self) -> None:
        """End the command well, or go on."""
        output.lose_reader()


class ErrorConsole(VisibleConsole):
    """The console of stderr."""

    def on_broken_pipe(self) -> None:
        """Go on: the exit code tells what became of the command."""
        output.discard(self.file)
