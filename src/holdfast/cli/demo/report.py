"""What the demo leaves: a table, and a contact sheet of annotated frames."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from holdfast.apps.vision.ingest import object_name
from holdfast.apps.vision.sheet import Panel, contact_sheet
from holdfast.cli.demo.measure import Outcome
from holdfast.cli.demo.picture import Picture, Stream
from holdfast.cli.demo.plan import RUN

PANELS_MAX = 24
TRAIL_FRAMES = 14
CALM_SHARE = 0.7
"""Panels show frames of the last part, when nodes have come and gone."""


def table(outcome: Outcome, picture: Picture) -> Table:
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


def draw_sheet(picture: Picture, objects: Path, path: Path) -> Path:
    """Write the contact sheet to ``path``, and return that. ``objects`` is where the frames are as files."""
    panels = [
        panel
        for key, stream in list(picture.streams.items())[:PANELS_MAX]
        if (panel := _panel(key, stream, objects)) is not None
    ]
    if panels:
        note = f"{picture.committed} frames, {len(picture.nodes)} nodes, {picture.moves} moves"
        contact_sheet(panels, "Holdfast demo", note).save(path)
    return path


def _panel(key: str, stream: Stream, objects: Path) -> Panel | None:
    """The frame with most tracks of the last part."""
    lines = sorted(stream.committed, key=lambda line: line.frame)
    late = lines[int(CALM_SHARE * len(lines)) :]
    if not late:
        return None
    best = max(late, key=lambda line: len(line.result["tracks"]))
    results = [line.result for line in lines if best.frame - TRAIL_FRAMES < line.frame <= best.frame]
    jpeg = (objects / object_name(key, RUN, best.frame)).read_bytes()
    return Panel(jpeg=jpeg, stream=key, frame=best.frame, owner=best.owner, results=results)
