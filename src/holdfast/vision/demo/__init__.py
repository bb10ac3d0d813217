"""``holdfast demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.errors import ConfigError
from holdfast.extend.commands import Json


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
    with those of an undisturbed run.

    Everything is real, the database on disk and the nodes' processes, and gone afterwards, but for the
    videos and the picture in `.cache/holdfast`. Ends with 0 only if no frame was lost or out of order and
    all tracks are equal.

    ```
    holdfast demo
    holdfast demo --video lobby.mp4 door.mp4 --nodes 2 --seconds 30
    holdfast demo --services postgres
    holdfast demo --services redis,sqs
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
    try:
        from holdfast.vision.demo.local import parse  # noqa: PLC0415 (an extra)
        from holdfast.vision.demo.run import run  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"the demo needs the extra 'vision' ({error}): pip install 'holdfast[vision]'"
        ) from None
    return run(
        videos=video,
        streams=streams,
        seconds=seconds,
        nodes=nodes,
        faults=faults,
        services=parse(services),
        json=json,
    )
