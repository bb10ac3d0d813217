"""``holdfast top``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from holdfast.cli import output
from holdfast.cli.names import stream_names
from holdfast.cli.options import DEFAULTS, Json, Limit, Options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.operate.activity import Activity

REFRESH_S = 2.0
"""Seconds between two refreshes, as often as nodes measure."""

FIGURE = {"load": "load", "rate": "rate", "time": "time_s", "lag": "lag_s", "waiting": "waiting"}


async def top(
    *,
    by: Literal["load", "rate", "time", "lag", "waiting"] = "load",
    stream: Annotated[tuple[str, ...], Parameter(completer=stream_names)] = (),
    limit: Limit = 15,
    times: Annotated[int | None, Parameter(name=["--times", "-n"], validator=Number(gte=1))] = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Show the busiest streams, running tasks and the load of nodes, every two seconds. Only nodes are
    asked, no queue and no state store.

    ```
    holdfast top
    holdfast top --by lag --stream detect
    holdfast top --times 1 --json
    ```

    Args:
        by: Order: load (busy slots), rate (messages per second), time (for each message), lag (age of the
            oldest message that waits at the node) or waiting (messages that wait there).
        stream: Only these streams.
        limit: The most streams and tasks to show.
        times: End after this number of refreshes.
        json: Print JSON objects, one a line.
    """
    from holdfast.cli.patience import ReadPatience  # noqa: PLC0415
    from holdfast.operate.activity import activity  # noqa: PLC0415

    async with options.services(reads_only=True) as services:
        patience = ReadPatience(services.clock, ever=True)
        look = partial(activity, services, FIGURE[by], limit, stream)

        async def draw() -> RenderableType:
            return render(await patience.read(look))

        async def print_line() -> None:
            output.json_line(await patience.read(look))

        if json:
            await output.again(services.clock, print_line, REFRESH_S, times)
        else:
            await output.redraw(services.clock, draw, REFRESH_S, times)


def render(found: Activity) -> RenderableType:
    """Return activity for people, with fewer columns on a narrow terminal."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    narrow = output.is_narrow()
    nodes = output.table(
        f"Nodes: {len(found.nodes)}",
        ["name", "busy", "slots", "cpu", "memory", "streams", "handled", ""],
        [
            [
                node.name,
                node.load.busy,
                node.load.slots_in_all,
                f"{node.load.cpu:.0%}",
                f"{node.load.memory:.0%}",
                node.load.streams,
                node.load.handled,
                "draining" if node.load.draining else "",
            ]
            for node in found.nodes
        ],
        narrow=narrow,
        dropped=("handled",),
    )
    streams = output.table(
        "\nBusiest streams",
        ["stream", "load", "msg/s", "ms/msg", "waiting", "lag (s)", "node"],
        [
            [
                each.key,
                f"{each.load:.2f}",
                each.rate,
                each.time_s * 1000,
                each.waiting,
                each.lag_s,
                each.node,
            ]
            for each in found.streams
        ],
        narrow=narrow,
    )
    tasks = output.table(
        "\nRunning tasks",
        ["task", "type", "group", "for (s)", "done", "note", "node"],
        [
            [each.task, each.type, each.group, each.runs_s, f"{each.progress:.0%}", each.note, each.node]
            for each in found.tasks
        ],
        narrow=narrow,
        dropped=("group", "note"),
    )
    troubles = [Text(f"! {trouble}") for trouble in found.troubles]
    return Group(nodes, *troubles, streams, *([tasks] if found.tasks else []))
