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

COMMANDS = {
    "node": "holdfast.cli.node:run",
    "gateway": "holdfast.cli.gateway:gateway",
    "gateway-key": "holdfast.cli.gateway:gateway_key",
    "send": "holdfast.cli.send:send",
    "status": "holdfast.cli.status:status",
    "results": "holdfast.cli.results:results",
    "move": "holdfast.cli.places:move",
    "drain": "holdfast.cli.places:drain",
    "why": "holdfast.cli.places:why",
    "streams": "holdfast.cli.streams:app",
    "tasks": "holdfast.cli.tasks:app",
    "briefs": "holdfast.cli.tasks:briefs",
    "limits": "holdfast.cli.limits:app",
    "dlq": "holdfast.cli.dlq:app",
    "queues": "holdfast.cli.queues:app",
    "doctor": "holdfast.cli.doctor:doctor",
    "config": "holdfast.cli.config:app",
}
"""Where each is: imported when it is asked for, for whoever runs one waits for no other. Those of products
are found by their entry points."""

app = App(
    name="holdfast",
    help=HELP,
    help_format="markdown",
    version=holdfast.__version__,
    result_action="return_value",
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=()),
)
for name, place in COMMANDS.items():
    app.command(place, name=name)
_added = set(COMMANDS)


def commands() -> dict[str, str]:
    """Where all commands are: ours, and those that installed packages have registered."""
    return registration.all_registered(registration.COMMANDS) | COMMANDS


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    if not arguments or arguments[0] not in COMMANDS:
        with_all_commands()
    if not arguments or arguments[0] in app.help_flags:
        _import_all()
    try:
        outcome = app(list(arguments))
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


def with_all_commands() -> App:
    """The command line with the commands of other packages, which are looked up only where it is none of
    ours."""
    for name, place in commands().items():
        if name not in _added:
            app.command(place, name=name)
            _added.add(name)
    return app


def _import_all() -> None:
    """For the page that tells what each command does."""
    for name in commands():
        app[name]  # looking one up imports it


def _print_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    """The entry point."""
    sys.excepthook = _print_crash
    sys.exit(run(sys.argv[1:]))
