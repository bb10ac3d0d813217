"""``python -m examples.tracking``: the demo as a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from examples.tracking.run import run
from examples.tracking.servers import parse
from holdfast.errors import HoldfastError
from holdfast.extend.commands import Json, exits, output


def demo(
    *,
    seconds: float = 18.0,
    streams: Annotated[int | None, Parameter(show_default=False)] = None,
    nodes: int = 3,
    video: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    faults: Annotated[bool, Parameter(negative="--no-faults")] = True,
    services: Annotated[str, Parameter(show_default=False)] = "",
    json: Json = False,
) -> int:
    """Track people in many videos on several nodes, kill one node, drain another, and compare the tracks
    with the tracks of an undisturbed run.

    Everything is real, the database on disk and the nodes' processes, and gone afterwards, but for the
    videos and the picture in `.cache/holdfast`. Ends with 0 only if no frame was lost or out of order and
    all tracks are equal.

    ```
    make demo
    make demo ARGS="--video lobby.mp4 door.mp4 --nodes 2 --seconds 30"
    make demo SERVICES=postgres
    make demo SERVICES=redis,sqs
    ```

    Args:
        seconds: How much of each video to send, at its own pace.
        streams: How many streams; 12, or one for each video given.
        nodes: How many nodes.
        video: Videos to use instead of rendered ones.
        faults: Kill a node and drain another.
        services: Use these, of postgres, redis, sqs, s3 and zookeeper, in place of the database and files;
            their servers are started, and ended with the demo.
        json: Print the figures as a JSON object, on the last line; all else goes to stderr.
    """
    return run(
        videos=video,
        streams=streams,
        seconds=seconds,
        nodes=nodes,
        faults=faults,
        services=parse(services),
        json=json,
    )


def command(arguments: Sequence[str]) -> int:
    """Run the demo with ``arguments``; returns the exit code."""
    app = App(
        name="python -m examples.tracking",
        help_format="plaintext",
        version_flags=(),
        result_action="return_value",
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=()),
    )
    app.default(demo)
    try:
        outcome = app([*arguments])
    except CycloptsError:
        return exits.USAGE  # said already, with the usage
    except HoldfastError as error:
        output.complain(str(error))
        return exits.code(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return outcome if isinstance(outcome, int) else exits.OK


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
