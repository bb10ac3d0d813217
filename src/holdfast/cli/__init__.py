"""The command line: ``holdfast``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

from cyclopts import App, CycloptsError, Parameter

import holdfast
from holdfast import registration
from holdfast.cli import exits, output
from holdfast.common.redaction import redact
from holdfast.errors import HoldfastError

HELP = """Keyed, ordered, stateful, at-least-once work for Python.

Exit codes: 0 done, 1 failed, 2 the command line or a setting is wrong, 3 a service can't be reached.
"""

HELP_FLAGS = ("--help", "-h")

COMMANDS = {
    "node": ("holdfast.cli.node:run", "Run a node until it is told to stop."),
    "gateway": ("holdfast.cli.gateway:gateway", "Run a gateway, to which clients send messages by HTTP."),
    "gateway-key": ("holdfast.cli.gateway:gateway_key", "Make a key for a client of gateways."),
    "send": ("holdfast.cli.send:send", "Send messages to a stream."),
    "query": ("holdfast.cli.query:query", "Ask a stream a question, which its handler answers."),
    "status": ("holdfast.cli.status:status", "Show nodes, queues and streams, who owns what, what waits."),
    "results": ("holdfast.cli.results:results", "Print committed results as JSON lines."),
    "move": ("holdfast.cli.places:move", "Bring a stream to another node."),
    "drain": ("holdfast.cli.places:drain", "Have a node bring its streams to the others, and end."),
    "why": ("holdfast.cli.places:why", "Tell where a stream is, what it waits for, and why."),
    "streams": ("holdfast.cli.streams:app", "Pause, resume, skip or reset a stream."),
    "tasks": ("holdfast.cli.tasks:app", "Send tasks, see how they stand, end them, try them again."),
    "briefs": ("holdfast.cli.tasks:briefs", "Print outcomes of tasks as they come, and acknowledge them."),
    "limits": ("holdfast.cli.limits:app", "Say how many tasks of an app may run at once."),
    "dlq": ("holdfast.cli.dlq:app", "List, back up, redrive or drop dead letters."),
    "queues": ("holdfast.cli.queues:app", "Make and check the queues of an app."),
    "doctor": ("holdfast.cli.doctor:doctor", "Check the settings and all that they name."),
    "config": ("holdfast.cli.config:app", "Show the settings, and where each is from."),
}
"""Where each is, and what the page of all commands says of it. It is imported when it is asked for. Those of
products are found by their entry points."""


def all_commands() -> dict[str, str]:
    """Where all commands are: ours, and those that installed packages have registered."""
    own = {name: place for name, (place, _) in COMMANDS.items()}
    return registration.all_registered(registration.COMMANDS) | own


def command_line(arguments: Sequence[str] = ()) -> App:
    """The commands that may be meant by ``arguments``: those of other packages are looked up only where it
    is none of ours. For the page that tells what each command does, ours are not imported."""
    page = not arguments or arguments[0] in HELP_FLAGS
    app = App(
        name="holdfast",
        help=HELP,
        help_flags=HELP_FLAGS,
        help_format="plaintext" if page else "markdown",
        version=holdfast.__version__,
        result_action="return_value",
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=()),
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(place, name=name, **({"help": summary} if page else {}))
    if page or arguments[0] not in COMMANDS:
        for name, place in all_commands().items():
            if name not in COMMANDS:
                app.command(place, name=name)
                if page:
                    app[name]  # looking one up imports it
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        outcome = command_line(arguments)(list(arguments))
    except CycloptsError:
        return exits.USAGE  # said already, with the usage
    except HoldfastError as error:
        output.complain(str(error))
        return exits.code(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough. What is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    return outcome if isinstance(outcome, int) else exits.OK


def _print_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    """The entry point."""
    sys.excepthook = _print_crash
    sys.exit(run(sys.argv[1:]))
