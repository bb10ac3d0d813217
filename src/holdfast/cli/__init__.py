"""The command line: ``holdfast``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

import holdfast
from holdfast.cli import (
    config,
    demo,
    devices,
    dlq,
    doctor,
    exits,
    gateway,
    ingest,
    limits,
    node,
    outbox,
    output,
    places,
    queues,
    reports,
    results,
    status,
    streams,
    tasks,
)
from holdfast.errors import HoldfastError

HELP = """Keyed, ordered, stateful, at-least-once work for Python.

Exit codes: 0 done, 1 failed, 2 the command line or a setting is wrong, 3 a service can't be reached.
"""

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
app.command(node.run, name="node")
app.command(gateway.gateway)
app.command(ingest.ingest)
app.command(status.status)
app.command(results.results)
app.command(places.move)
app.command(places.drain)
app.command(places.why)
app.command(streams.app)
app.command(tasks.app)
app.command(tasks.briefs)
app.command(limits.app)
app.command(dlq.app)
app.command(queues.app)
app.command(outbox.app)
app.command(reports.app)
app.command(devices.app)
app.command(doctor.doctor)
app.command(config.app)
app.command(demo.demo)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
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


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))
