"""The command line: ``holdfast``."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import holdfast
from holdfast.cli import exits, output
from holdfast.cli.help_pages import CommandPages, overview
from holdfast.common.text import visible
from holdfast.errors import HoldfastError
from holdfast.registration import entry_points
from holdfast.registration.entry_points import LazyCommand

if TYPE_CHECKING:
    from cyclopts import App
    from rich.console import Console

HELP_FLAGS = ("--help", "-h")

COMMANDS = {
    name: LazyCommand(f"holdfast.cli.{place}", summary)
    for name, place, summary in (
        ("node", "node:run", "Run a node until it is stopped."),
        ("new", "new:new", "Write a project that runs."),
        ("dev", "dev:dev", "Run a node while you write its code: saving a file replaces the code."),
        ("gateway", "gateway:gateway", "Run a gateway, which takes messages of clients by HTTP."),
        ("gateway-key", "gateway:gateway_key", "Make a key for a client of gateways."),
        ("console", "console:console", "Serve the console: the cluster in a browser, with actions."),
        ("console-token", "console:console_token", "Make a token for a user of a console."),
        ("send", "send:send", "Send messages to a stream."),
        ("query", "query:query", "Query a stream; its handler answers."),
        ("status", "status:status", "Show nodes, queues and streams: owners, progress, waits."),
        ("top", "top:top", "Show the busiest streams, tasks and nodes, refreshed."),
        ("scale", "scale:scale", "Show how many nodes an app needs, and why."),
        ("logs", "logs:logs", "Show the logs of nodes on this host."),
        ("results", "results:results", "Print committed results as JSON lines."),
        ("move", "places:move", "Move a stream to another node."),
        ("drain", "places:drain", "Drain a node: it moves its streams to the others, and ends."),
        ("why", "places:why", "Explain where a stream is and why it is waiting."),
        ("streams", "streams:app", "Pause, resume, skip, reset or replay a stream."),
        ("tasks", "tasks:app", "Send, show, cancel and retry tasks."),
        ("briefs", "tasks:briefs", "Print outcomes of tasks as they come, and acknowledge them."),
        ("periodic", "periodic:app", "Schedule tasks, while nodes run."),
        ("limits", "limits:app", "Limit how many tasks of an app run at once."),
        ("dlq", "dlq:app", "List, back up, redrive or purge dead letters."),
        ("queues", "queues:app", "Make and check the queues of an app."),
        ("transfer", "transfer:transfer", "Copy the data of a stopped cluster to other services."),
        ("backup", "backup:backup", "Write state and results of streams to a file, while nodes run."),
        ("restore", "backup:restore", "Write a back-up to an empty state store."),
        ("bench", "bench:bench", "Measure Holdfast on your services, in two minutes."),
        ("doctor", "doctor:doctor", "Check the settings and everything that they name."),
        ("migrate", "migrate:migrate", "Update the tables in the databases of the settings."),
        ("completion", "completion:completion", "Print a script for a shell's completion of commands."),
        ("image", "image:app", "Build container images of apps."),
        ("config", "config:app", "Show the settings and their sources."),
    )
}
"""The commands of Holdfast itself. Commands of products are found by entry points."""


def all_commands(only: str = "") -> dict[str, LazyCommand]:
    """Return all commands by name: of Holdfast, and registered by packages. Of the latter, return only the
    one called ``only`` if it exists."""
    places = entry_points.all_registered(entry_points.COMMANDS)
    names = [only] if only in places else places
    return {name: _registered(name, places[name]) for name in names} | COMMANDS


def _registered(name: str, place: str) -> LazyCommand:
    found = entry_points.find(entry_points.COMMANDS, name, object)
    return found if isinstance(found, LazyCommand) else LazyCommand(place, "")


def command_line(arguments: Sequence[str] = ()) -> App:
    """Return the commands for ``arguments``. Commands of other packages are looked up only for an unknown
    name."""
    from cyclopts import App, Parameter  # noqa: PLC0415 - half of what it takes to run a command

    app = App(
        name="holdfast",
        console=_console() if set(HELP_FLAGS) & set(arguments) else None,
        help_flags=HELP_FLAGS,
        help_format="plaintext",
        help_formatter=CommandPages(),
        version=holdfast.__version__,
        result_action="return_value",
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=(), show_default=_shown_default),
    )
    first = next((argument for argument in arguments if argument not in HELP_FLAGS), "")
    ours = first in COMMANDS or first.startswith("-")
    for name, command in (COMMANDS if ours else all_commands(first)).items():
        app.command(command.place, name=name)
    return app


def _shown_default(value: object) -> str | None:
    """Return a default for a page of help; None for one that says nothing, such as that a flag isn't set."""
    return None if value is None or value is False or value in ("", ()) else str(value)


def _console() -> Console:
    from holdfast.cli.consoles import OutputConsole  # noqa: PLC0415 - takes long to import

    return OutputConsole()


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    output.go_on_unread(False)
    try:
        outcome = _returned([*arguments])
    except HoldfastError as error:
        output.complain(str(error))
        return exits.code(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        output.discard(sys.stdout)  # the reader has closed the pipe
        return exits.OK
    return outcome if isinstance(outcome, int) else exits.OK


def _returned(arguments: list[str]) -> object:
    """Run one command; returns its result. The version and the page of all commands need no Cyclopts."""
    match arguments:
        case [] | ["--help" | "-h"]:
            output.say(overview(all_commands()))
            return exits.OK
        case ["--version"]:
            output.say(holdfast.__version__)
            return exits.OK
    from cyclopts import CycloptsError  # noqa: PLC0415

    try:
        return command_line(arguments)(arguments)
    except CycloptsError:
        return exits.USAGE  # Cyclopts has printed it


def _print_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from holdfast.common.redaction import redact  # noqa: PLC0415 - takes a while

    sys.stderr.write(visible(redact("".join(traceback.format_exception(kind, error, trace)))))


def main() -> None:
    """The entry point."""
    sys.excepthook = _print_crash
    sys.exit(run(sys.argv[1:]))
