"""``holdfast transfer``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.errors import ConfigError, OperationRefused

if TYPE_CHECKING:
    from holdfast.ports.clock import Clock
    from holdfast.transfer.parts import Part, PartReport
    from holdfast.wiring.services import Services

SERVICES = ("queue_url", "coordinator_url", "state_url", "tasks_url", "registry_url")

REPORT_EVERY_S = 5.0
DIGEST_CHARS = 12


async def transfer(
    *,
    source: Annotated[str, Parameter(name="--from")] = "",
    target: Annotated[str, Parameter(name="--to")] = "",
    from_config: Path | None = None,
    to_config: Path | None = None,
    app: tuple[str, ...] = (),
    own_seq: tuple[str, ...] = (),
    check: bool = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Copy the data of a stopped cluster to other services: state, results, tasks, schedules, waiting
    messages and dead letters. Frames and files stay where they are.

    The source keeps everything. At the end both sides are read again and compared. Run an interrupted command
    again: copied data stays as it is.

    ```
    holdfast transfer --from sqlite:///holdfast.db --to postgresql://holdfast@db/holdfast
    holdfast transfer --from-config pilot.toml --to-config production.toml --check
    ```

    Args:
        source: URL of the present service.
        target: URL of the new service.
        from_config: Config file with the present services, instead of --from.
        to_config: Config file with the new services, instead of --to.
        app: An app with tasks whose nodes never ran; may be repeated.
        own_seq: A stream whose messages have growing seqs that aren't the numbers of its queue; may be
            repeated.
        check: Only compare both sides; write nothing.
        json: Print JSON lines, one for each part.
    """
    from holdfast.transfer.contents import check_apart, contents  # noqa: PLC0415
    from holdfast.wiring.services import Services  # noqa: PLC0415

    if options.url is not None:
        raise ConfigError("transfer has two sides; give --from and --to instead of --url")
    output.go_on_unread()
    before = _side("--from", source, from_config, options)
    after = _side("--to", target, to_config, options)
    async with (
        Services(before.load(), reads_only=True) as ours,
        Services(after.load(), reads_only=check) as theirs,
    ):
        if not check:
            await _check_stopped(ours, theirs)
        parts = await contents(ours, theirs, app, own_seq)
        if not check:
            await check_apart(ours, theirs)
            await _copy_all(parts, ours.clock)
        reports = await _compare_all(parts, ours.clock)
        if not check:
            await _check_stopped(ours, theirs)
    return _show(reports, copied=not check, json=json)


def _side(option: str, url: str, config: Path | None, options: Options) -> Options:
    """Return options with the services of one side."""
    if bool(url) == (config is not None):
        raise ConfigError(f"give either {option} URL or {option}-config FILE")
    if config is not None:
        return dataclasses.replace(options, config=config)
    return dataclasses.replace(options, set=(*options.set, *(f"{name}={url}" for name in SERVICES)))


async def _check_stopped(ours: Services, theirs: Services) -> None:
    from holdfast.transfer.contents import living  # noqa: PLC0415

    for option, services in (("--from", ours), ("--to", theirs)):
        if nodes := await living(services):
            raise OperationRefused(
                f"nodes are running on the services of {option}: {', '.join(sorted(nodes))}. Stop them, and"
                " whatever sends messages or tasks; then run this again"
            )


async def _copy_all(parts: list[Part], clock: Clock) -> None:
    from holdfast.transfer.parts import conflict, copy  # noqa: PLC0415

    has_any = False
    for part in parts:
        found, has_some = await conflict(part)
        has_any |= has_some
        if found:
            raise OperationRefused(
                f"{found}. Nothing was written: transfer only to services that are empty, or that hold a part"
                " of an earlier transfer of the same"
            )
    if not has_any:
        raise OperationRefused("the source is empty; does --from name the right services?")
    for part in parts:
        await copy(part, _progress(clock, f"{part.name}: {{}} written"))


async def _compare_all(parts: list[Part], clock: Clock) -> list[PartReport]:
    from holdfast.transfer.parts import report  # noqa: PLC0415

    return [await report(part, _progress(clock, f"{part.name}: {{}} compared")) for part in parts]


def _progress(clock: Clock, text: str) -> Callable[[int], None]:
    """Return a function that prints the progress, every few seconds."""
    printed_at = clock.monotonic()

    def report(count: int) -> None:
        nonlocal printed_at
        if clock.monotonic() - printed_at >= REPORT_EVERY_S:
            printed_at = clock.monotonic()
            output.remark(text.format(count))

    return report


def _show(reports: list[PartReport], *, copied: bool, json: bool) -> int:
    rows = [
        [
            each.part, each.source, each.target, each.source_digest[:DIGEST_CHARS],
            each.target_digest[:DIGEST_CHARS], "no" if each.difference else "yes",
        ]
        for each in reports
    ]  # fmt: skip
    columns = ["part", "from", "to", "digest from", "digest to", "agree"]
    output.show("Transfer", columns, rows, reports, json=json)
    differences = [each.difference for each in reports if each.difference]
    for difference in differences:
        output.complain(difference)
    if differences:
        return exits.FAILED
    if copied:
        output.remark(
            "All agrees. The source still has everything: start no node on it again, or work is done twice."
            " Once nodes have run on the new services for a while, remove it"
        )
    return exits.OK
