"""The public API for commands that packages add to ``holdfast`` (group ``holdfast.commands``).

A command is a function with typed parameters, sync or async. Its docstring is its page of help::

    from holdfast.extend.commands import DEFAULTS, Json, Options, output

    async def stock(*, json: Json = False, options: Options = DEFAULTS) -> None:
        \"\"\"Show what is in stock.\"\"\"
        async with options.services(reads_only=True) as services:
            depth = await services.queue("stock").depth()
        output.json_line(depth) if json else output.say(f"{depth.ready} wait")

Where its module takes long to import, register a :class:`LazyCommand` in its place: it says where the
function is, and what the page of all commands says of it.

It returns its exit code (see ``exits``), or None. It may raise the errors of Holdfast: they are printed, and
set the exit code.

What changes something is done within ``async with audited(services, "restock", "shelf 7", {"count": 3})``:
then the audit log has who did what, and what came of it, and the command goes on to its end although nobody
reads its output any more, as after ``| head``. What changes something that the log doesn't have calls
``output.go_on_unread()`` first.

:class:`Launcher` and :class:`Supervisor` run nodes as child processes. :func:`signals` tells when the command
should end, :func:`die_with` ends a process with its parent, and :func:`set_up_log` sends the log elsewhere.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.cli import exits, output
    from holdfast.cli.auditing import audited
    from holdfast.cli.children import Launcher
    from holdfast.cli.node import share_slots, signals
    from holdfast.cli.options import DEFAULTS, Json, Limit, Options
    from holdfast.cli.survey import warn_of_undeclared
    from holdfast.cluster.supervisor import Supervisor
    from holdfast.registration.entry_points import LazyCommand
    from holdfast.slots.lifeline import die_with
    from holdfast.system.log import set_up as set_up_log
else:  # A page of help needs no node.
    __getattr__ = exports(
        __name__,
        {
            "LazyCommand": "holdfast.registration.entry_points",
            "DEFAULTS": "holdfast.cli.options",
            "Json": "holdfast.cli.options",
            "Launcher": "holdfast.cli.children",
            "Limit": "holdfast.cli.options",
            "Options": "holdfast.cli.options",
            "Supervisor": "holdfast.cluster.supervisor",
            "audited": "holdfast.cli.auditing",
            "die_with": "holdfast.slots.lifeline",
            "exits": "holdfast.cli.exits:",
            "output": "holdfast.cli.output:",
            "set_up_log": "holdfast.system.log:set_up",
            "share_slots": "holdfast.cli.node",
            "signals": "holdfast.cli.node",
            "warn_of_undeclared": "holdfast.cli.survey",
        },
    )

__all__ = [
    "DEFAULTS",
    "Json",
    "Launcher",
    "LazyCommand",
    "Limit",
    "Options",
    "Supervisor",
    "audited",
    "die_with",
    "exits",
    "output",
    "set_up_log",
    "share_slots",
    "signals",
    "warn_of_undeclared",
]
