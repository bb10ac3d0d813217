"""``holdfast status``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.names import stream_names
from holdfast.cli.options import DEFAULTS, Json, Limit, Options

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_S = 1.0


async def status(
    app: str | None = None,
    /,
    *,
    stream: Annotated[tuple[str, ...], Parameter(completer=stream_names)] = (),
    limit: Limit = 40,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Show nodes, queues and streams: owners, progress, and what streams wait for.

    ```
    holdfast status
    holdfast status myproject.streams:app
    holdfast status --watch --stream detect
    holdfast status --json
    ```

    Args:
        app: Also show the queues of this app, MODULE:NAME. Queues of living nodes are always shown.
        stream: Only these streams.
        limit: The most streams in the table; parked and waiting ones come first.
        watch: Refresh every second: in place on a terminal, else as one block after the other.
        json: Print one JSON object.
    """
    # A page of help needs no node.
    from holdfast.assembly.checks import queues_of  # noqa: PLC0415
    from holdfast.assembly.loading import load_app  # noqa: PLC0415
    from holdfast.cli.patience import ReadPatience  # noqa: PLC0415
    from holdfast.cli.survey import render  # noqa: PLC0415
    from holdfast.operate.survey import survey  # noqa: PLC0415

    declared = (*queues_of(load_app(app)),) if app else ()
    async with options.services(reads_only=True) as services:
        patience = ReadPatience(services.clock, ever=watch)
        look = partial(survey, services, stream, declared)
        if not watch:
            found = await patience.read(look)
            output.json_line(found.plain()) if json else output.console().print(render(found, limit))
        elif json:

            async def print_line() -> None:
                output.json_line((await patience.read(look)).plain())

            await output.again(services.clock, print_line, REFRESH_S)
        else:

            async def draw() -> RenderableType:
                return render(await patience.read(look), limit)

            await output.redraw(services.clock, draw, REFRESH_S)
