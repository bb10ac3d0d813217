"""``holdfast results``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from holdfast.cli import output
from holdfast.cli.names import StreamName
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.patience import ReadPatience
from holdfast.operate.records import place
from holdfast.ports.state import Logged
from holdfast.wiring.services import Services

PAGE = 500
WAIT_S = 20.0


async def results(
    *,
    after: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    stream: StreamName = "",
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"], validator=Number(gte=1))] = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Print committed results as JSON lines, in the order of their commits.

    Each line has a `cursor`: continue after the last one with --after, and no kept result is missed. A
    result is identified by `stream`, `key` and `name`. Reads of an unavailable store are repeated, with
    --follow for ever.

    ```
    holdfast results --stream detect --limit 10
    holdfast results --follow --after 1234
    ```

    Args:
        after: Cursor after which to continue.
        stream: Only results of this stream.
        follow: Wait for more results instead of ending.
        limit: End after this number of results.
        json: No effect: the output is always JSON lines.
    """
    async with Services(options.load(), reads_only=not follow) as services:
        state, patience = services.state(), ReadPatience(services.clock, ever=follow)
        left = limit
        while left is None or left > 0:
            page = await patience.read(
                partial(state.results, after, min(PAGE, left or PAGE), WAIT_S if follow else 0.0, stream)
            )
            for logged in page:
                output.json_line(record(logged))
                after = logged.cursor
            if left is not None:
                left -= len(page)
            if not page and not follow:
                return


def record(logged: Logged) -> dict[str, Any]:
    """Return a result as a JSON record."""
    stream, key = output.split_key(logged.key)
    return {
        "cursor": logged.cursor,
        "stream": stream,
        "key": key,
        **place(logged.result.name),
        "name": logged.result.name,
        "epoch": logged.epoch,
        "at": output.moment(logged.at),
        **output.body(logged.result.body, "result"),
    }
