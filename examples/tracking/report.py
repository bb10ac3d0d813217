"""The report of the demo: a table, and a contact sheet of annotated frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from examples.tracking.measure import DemoFigures
from examples.tracking.picture import CommittedResult, Picture, Stream
from examples.tracking.sheet import Panel, contact_sheet

PANELS_MAX = 24
TRAIL_FRAMES = 14
CALM_SHARE = 0.7
"""Panels show frames of the last part, when nodes have come and gone."""


def table(outcome: DemoFigures, picture: Picture) -> Table:
    """The figures for people."""
    figures, kill = outcome.figures, picture.kill
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim")
    made.add_column(justify="right")
    made.add_column()

    def row(name: str, value: object, note: str = "", wrong: object = None) -> None:
        mark = Text() if wrong is None else Text("✗ ", "bold red") if wrong else Text("✓ ", "green")
        made.add_row(name, str(value), mark + Text(note, "dim"))

    row("frames in", figures.frames_in)
    row("committed", figures.committed)
    row("duplicates dropped", figures.duplicates_dropped)
    row("lost", figures.lost, wrong=figures.lost)
    row("out of order", figures.out_of_order, wrong=figures.out_of_order)
    row("moves", figures.moves)
    if kill is not None:
        of = f"{len(kill.keys)} streams of {kill.node}, from the kill to the next commit"
        row("fail-over p50", _ms(figures.failover_p50_ms), of)
        row("fail-over p99", _ms(figures.failover_p99_ms))
    against = "against the undisturbed run"
    row("identity switches", figures.identity_switches, against, wrong=figures.identity_switches)
    row("frames that differ", outcome.differing, against, wrong=outcome.differing)
    return made


def _ms(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f} ms"


def best_frames(picture: Picture) -> dict[str, int]:
    """For each stream of the contact sheet the frame with most tracks of the last part."""
    best = {}
    for key, stream in list(picture.streams.items())[:PANELS_MAX]:
        if late := _lines(stream)[int(CALM_SHARE * len(stream.committed)) :]:
            best[key] = max(late, key=lambda line: len(line.result["tracks"])).frame
    return best


def draw_sheet(picture: Picture, frames: Mapping[str, bytes], path: Path) -> Path:
    """Write the contact sheet of ``frames``, the frames of :func:`best_frames` as JPEG, to ``path``, and
    return that."""
    if frames:
        panels = [
            _panel(key, picture.streams[key], frame, frames[key])
            for key, frame in best_frames(picture).items()
        ]
        note = f"{picture.committed} frames, {len(picture.nodes)} nodes, {picture.moves} moves"
        contact_sheet(panels, "Holdfast demo", note).save(path)
    return path


def _panel(key: str, stream: Stream, frame: int, jpeg: bytes) -> Panel:
    trail = [line for line in _lines(stream) if frame - TRAIL_FRAMES < line.frame <= frame]
    results = [line.result for line in trail]
    return Panel(jpeg=jpeg, stream=key, frame=frame, owner=trail[-1].owner, results=results)


def _lines(stream: Stream) -> list[CommittedResult]:
    return sorted(stream.committed, key=lambda line: line.frame)
