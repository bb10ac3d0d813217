"""The public API for commands that packages add to ``holdfast`` (group ``holdfast.commands``).

A command is a function with typed parameters, sync or async. Its docstring is its page of help::

    from holdfast.extend.commands import DEFAULTS, Json, Options, output

    async def stock(*, json: Json = False, options: Options = DEFAULTS) -> None:
        \"\"\"Show what is in stock.\"\"\"
        async with options.services(reads_only=True) as services:
            depth = await services.queue("stock").depth()
        output.json_line(depth) if json else output.say(f"{depth.ready} wait")

If its module takes long to import, register a :class:`LazyCommand` instead: it names the function and has its
summary for the list of commands.

The function returns its exit code (see ``exits``), or None. It may raise Holdfast's errors: they are printed
and set the exit code.

A command that changes data does so within ``async with audited(services, "restock", "shelf 7", {"count":
3})``. The audit log then records the user, the action and its outcome. The command also runs to its end if
its output is no longer read, as after ``| head``. A command whose changes aren't audited calls
``output.go_on_unread()`` first.

:func:`signals` returns events that are set when the command should end.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.cli import exits, output
    from holdfast.cli.auditing import audited
    from holdfast.cli.node import signals
    from holdfast.cli.options import DEFAULTS, Json, Limit, Options
    from holdfast.cli.survey import warn_of_undeclared
    from holdfast.registration.entry_points import LazyCommand
else:  # A page of help needs no node.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.cli.auditing": "audited",
            "holdfast.cli.node": "signals",
            "holdfast.cli.options": "DEFAULTS Json Limit Options",
            "holdfast.cli.survey": "warn_of_undeclared",
            "holdfast.registration.entry_points": "LazyCommand",
        },
        exits="holdfast.cli.exits",
        output="holdfast.cli.output",
    )

__all__ = [
    "DEFAULTS",
    "Json",
    "LazyCommand",
    "Limit",
    "Options",
    "audited",
    "exits",
    "output",
    "signals",
    "warn_of_undeclared",
]
