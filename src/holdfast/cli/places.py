"""``holdfast move``, ``drain`` and ``why``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.actions import command
from holdfast.cli.auditing import audited
from holdfast.cli.names import NodeName
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.patience import ReadPatience
from holdfast.common.text import duration
from holdfast.operate import nodes, streams
from holdfast.operate.explanation import explain

move = command(streams.move)


async def drain(node: NodeName, /, *, options: Options = DEFAULTS) -> None:
    """Drain a node: it moves its streams to the others and ends. Waits for the end.

    ```
    holdfast drain node-2
    ```

    Args:
        node: Name of the node, or its membership.
    """
    async with options.services(reads_only=True) as services:
        async with audited(services, "drain", node):
            member = await nodes.drain(services, node)
        output.say(f"{member.name} is draining")
        await nodes.wait_until_left(services, member, read=ReadPatience(services.clock).read)
        output.say(f"{member.name} has left")


async def why(
    key: Annotated[str, Parameter(help="STREAM/KEY, or the key alone.")],
    /,
    *,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Explain where a stream is, what it is waiting for, and why it isn't moved.

    ```
    holdfast why frames/cam-1
    holdfast why cam-1
    ```

    Args:
        json: Print one JSON object.
    """
    async with options.services(reads_only=True) as services:
        found = await explain(services, key)
    if json:
        output.json_line(found)
        return
    place = "it has no place yet" if found.seq is None else f"it stands at run {found.run}, seq {found.seq}"
    if not found.node:
        output.say(f"{found.key} is on no node, epoch {found.epoch}; {place}")
    elif found.here_s is None:
        output.say(f"{found.key} is on {found.node}, epoch {found.epoch}; {place}")
    else:
        here = duration(found.here_s)
        output.say(f"{found.key} is on {found.node} for {here}, epoch {found.epoch}; {place}")
        output.say(
            f"busy slots: {found.busy:.3f} for this stream, {found.node_load:.2f} on its node;"
            f" the mean for a node of that size is {found.mean_load:.2f}"
        )
    for sentence in found.sentences:
        output.say(f"- {sentence}")
