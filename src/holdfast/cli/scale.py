"""``holdfast scale``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options

OVER_S = 15.0


async def scale(
    app: str = "",
    /,
    *,
    print_: Annotated[bool, Parameter(name="--print")] = False,
    over_s: Annotated[float, Parameter(name="--over-s", validator=Number(gt=0))] = OVER_S,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Show how many nodes an app needs, and why: by its busy slots, the messages in its queues, and the
    number of streams on its nodes. The command changes nothing; the system that runs the nodes must follow
    the number.

    ```
    holdfast scale
    holdfast scale cameras --print
    holdfast scale --json
    ```

    Args:
        app: The name of one app; left out, every app that living nodes run. An app without nodes needs one.
        print_: Print the number and nothing else, of one app.
        over_s: Seconds between the two samples. Nodes report their load every few seconds.
        json: Print JSON objects, one a line.
    """
    from holdfast.cli.patience import ReadPatience  # noqa: PLC0415
    from holdfast.operate.scaling import nodes_wanted  # noqa: PLC0415

    async with options.services(reads_only=True) as services:
        found = await ReadPatience(services.clock).read(lambda: nodes_wanted(services, app, over_s))
    if print_ and len(found) != 1:
        names = ", ".join(each.app for each in found) or "none"
        output.complain(f"--print needs one app: name it. Living nodes run {names}")
        return exits.USAGE
    if print_:
        output.say(str(found[0].wanted))
    elif json:
        for each in found:
            output.json_line(each)
    else:
        output.console().print(
            output.table(
                f"Apps: {len(found)}",
                ["app", "nodes", "wanted", "why"],
                [[each.app, each.nodes, each.wanted, each.reason] for each in found],
            )
        )
    return exits.OK
