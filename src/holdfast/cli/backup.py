"""``holdfast backup`` and ``holdfast restore``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli import exits, output
from holdfast.cli.auditing import audited
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.text import counted
from holdfast.errors import OperationRefused
from holdfast.registration.urls import shown

if TYPE_CHECKING:
    from holdfast.transfer.backup import Summary
    from holdfast.wiring.services import Services


async def backup(
    target: Path,
    /,
    *,
    stream: tuple[str, ...] = (),
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Write state and results of streams to a file, while nodes run.

    Only its owner may read the file. It gets its name when it is complete. It has neither messages nor
    tasks: see docs/backup.md.

    ```
    holdfast backup streams.backup
    holdfast backup steps.backup --stream steps
    ```

    Args:
        target: The file. A back-up of this name is replaced; any other file is refused.
        stream: Only this stream; may be repeated.
        json: Print a summary of the file as JSON.
    """
    from holdfast.transfer.backup import transferable, write  # noqa: PLC0415

    async with options.services(reads_only=True) as services:
        state = transferable(services.state(), shown(services.config.state_url))
        async with audited(services, "back up", target.name, {"streams": stream}):
            summary = await write(state, target, services.clock.wall(), stream)
    return _show(summary, json=json)


async def restore(
    source: Path,
    /,
    *,
    check: bool = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Write a back-up to an empty state store. No node may run. The whole file is verified first.

    Each key is printed with its place. Messages that its queue has deleted since the back-up are missing
    after that place: send them again, or skip the gap.

    ```
    holdfast restore streams.backup --check
    holdfast restore streams.backup --url postgresql://holdfast@db/holdfast
    ```

    Args:
        source: A file that ``holdfast backup`` has written.
        check: Only verify the file; write nothing.
        json: Print JSON lines: a summary of the file, or each restored key.
    """
    from holdfast.transfer.backup import restore as restored  # noqa: PLC0415
    from holdfast.transfer.backup import transferable, verify  # noqa: PLC0415

    summary = verify(source)
    if check:
        return _show(summary, json=json)
    async with options.services() as services:
        state = transferable(services.state(), shown(services.config.state_url))
        await _check_stopped(services, "Stop them, and run this again")
        async with audited(services, "restore", source.name, {"sha256": summary.sha256}):
            async for key in restored(state, source, services.clock.wall()):
                if json:
                    output.json_line(key)
                else:
                    place = f"after {key.after}" if key.after else "from its beginning"
                    effects = f", {counted(key.effects, 'effect')} pending" if key.effects else ""
                    output.say(f"{key.key} goes on {place}{effects}")
        await _check_stopped(services, "Stop them, empty the state store, and run this again")
    output.remark(
        f"{counted(summary.checkpoints, 'key')} and {counted(summary.results, 'result')} restored. Messages"
        " that the queue has"
        " deleted since the back-up are missing: these streams wait at a gap there. Messages that are handled"
        " again send their effects again, with new ids: targets can't know them as repeats"
    )
    return exits.OK


async def _check_stopped(services: Services, remedy: str) -> None:
    from holdfast.transfer.contents import living  # noqa: PLC0415

    if nodes := await living(services):
        raise OperationRefused(
            f"nodes are running: {', '.join(sorted(nodes))}. {remedy}; the membership of a killed node"
            " lapses after ttl_s"
        )


def _show(summary: Summary, *, json: bool) -> int:
    if json:
        output.json_line(summary)
    else:
        keys, results = counted(summary.checkpoints, "key"), counted(summary.results, "result")
        output.say(f"complete: {keys}, {results}, sha256 {summary.sha256}")
    return exits.OK
