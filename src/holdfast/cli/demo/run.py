"""From the plan to the figures."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop
from rich.console import Console
from rich.text import Text

from holdfast import log
from holdfast.cli import exits, output
from holdfast.cli.demo.live import DemoFailed, show
from holdfast.cli.demo.measure import measure
from holdfast.cli.demo.picture import Picture
from holdfast.cli.demo.plan import cache_folder, make_plan
from holdfast.cli.demo.reference import undisturbed
from holdfast.cli.demo.report import draw_sheet, table
from holdfast.cli.demo.view import make_view

T = TypeVar("T")

SHEET = "demo.png"


def run(
    *, videos: Sequence[Path], streams: int | None, seconds: float, nodes: int, faults: bool, json: bool
) -> int:
    """Show the demo; returns the exit code. The options are those of the command."""
    console = Console(stderr=json, highlight=False)
    folder = cache_folder()
    try:
        plan = _step(
            console,
            "videos",
            lambda: make_plan(
                folder, videos=videos, streams=streams, seconds=seconds, nodes=nodes, faults=faults
            ),
        )
        if faults and not plan.faults:
            console.print("one node: nobody could take over, so it is neither killed nor drained")
        reference = _step(console, "the undisturbed run, for comparison", lambda: undisturbed(plan))
        picture = Picture({key: len(results) for key, results in reference.items()}, time.time)
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
            workspace = Path(name)
            with make_view(console) as view:
                _run(show(plan, picture, view, workspace))
                view.update(picture)
            outcome = measure(picture, reference)
            sheet = draw_sheet(picture, workspace / "objects", folder / SHEET)
    except OSError as error:
        raise DemoFailed(f"the demo failed: {error}") from error
    except asyncio.CancelledError:
        return exits.INTERRUPTED
    figures = msgspec.structs.replace(outcome.figures, contact_sheet=str(sheet))
    console.print()
    console.print(table(outcome, picture))
    console.print()
    console.print(Text(f"contact sheet  {sheet}"), soft_wrap=True)
    if json:
        output.json_line(figures)
    return exits.OK if outcome.good else exits.FAILED


def _step(console: Console, what: str, work: Callable[[], T]) -> T:
    began_at = time.monotonic()
    with console.status(f"{what} …"):
        done = work()
    console.print(f"[green]✓[/] {what} [dim]{time.monotonic() - began_at:.1f} s[/]")
    return done


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; SIGTERM cancels it, as SIGINT does, so that no process is left behind."""

    async def until_told() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work

    try:
        uvloop.run(until_told())
    finally:
        log.set_up()
