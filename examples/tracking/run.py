"""From the plan to the figures."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop
from rich.console import Console
from rich.text import Text

from examples.tracking.live import LOG, show
from examples.tracking.measure import measure
from examples.tracking.picture import Picture
from examples.tracking.plan import DemoFailed, cache_folder, make_plan
from examples.tracking.reference import undisturbed
from examples.tracking.report import draw_sheet, table
from examples.tracking.servers import KNOWN
from examples.tracking.view import make_view
from holdfast.errors import HoldfastError
from holdfast.extend.commands import exits, output
from holdfast.system.log import set_up as set_up_log

T = TypeVar("T")

SHEET = "demo.png"
LOG_LINES = 20


def run(
    *,
    videos: Sequence[Path],
    streams: int | None,
    seconds: float,
    nodes: int,
    faults: bool,
    services: Sequence[str],
    json: bool,
) -> int:
    """Show the demo, and return the exit code. The options are the command's."""
    console = _console(stderr=json)
    folder = cache_folder()
    try:
        with _step(console, "videos"):
            plan = make_plan(
                folder,
                videos=videos,
                streams=streams,
                seconds=seconds,
                nodes=nodes,
                faults=faults,
                services=services,
            )
        with _step(console, f"undisturbed run of {len(plan.cameras)} streams, to compare with"):
            reference = undisturbed(plan)
        if faults and not plan.faults:
            console.print("with one node, no other could take over: it is neither killed nor drained")
        if services:
            console.print(f"on {', '.join(f'{name} ({KNOWN[name]})' for name in services)}")
        picture = Picture({key: len(results) for key, results in reference.items()}, time.time)
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
            workspace = Path(name)
            with _last_words(workspace / LOG), make_view(console) as view:
                frames = _run(show(plan, picture, view, workspace))
                view.update(picture)
            outcome = measure(picture, reference)
            sheet = draw_sheet(picture, frames, folder / SHEET)
    except OSError as error:
        raise DemoFailed(f"the machine refuses: {error}") from error
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


def _console(*, stderr: bool) -> Console:
    """Make a console. Without a terminal, lines aren't cut."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=240)


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    began_at = time.monotonic()
    with console.status(f"{what} …"):
        yield
    console.print(f"[green]✓[/] {what} [dim]{time.monotonic() - began_at:.1f} s[/]")


@contextmanager
def _last_words(logs: Path) -> Iterator[None]:
    """Add the end of the nodes' log, which goes with the workspace, to an error."""
    try:
        yield
    except HoldfastError as error:
        last = logs.read_text(errors="replace").splitlines()[-LOG_LINES:] if logs.exists() else []
        raise DemoFailed("\n".join([str(error), *last])) from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; SIGTERM cancels it, as SIGINT does, so that no process is left behind."""

    async def until_told() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return uvloop.run(until_told())
    finally:
        set_up_log()
