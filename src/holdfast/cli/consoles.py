"""Consoles whose output nobody may read any more: Rich's own end the command as one that failed."""

from __future__ import annotations

from rich.console import Console

from holdfast.cli import output


class OutputConsole(Console):
    """The console of stdout."""

    def on_broken_pipe(self) -> None:
        """End the command well, or go on."""
        output.lose_reader()


class ErrorConsole(Console):
    """The console of stderr."""

    def on_broken_pipe(self) -> None:
        """Go on: the exit code tells what became of the command."""
        output.discard(self.file)
