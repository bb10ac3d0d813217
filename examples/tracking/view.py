"""The picture on a terminal, or as plain lines."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.tracking.picture import Event, Picture, PictureNode, Stream

EVENTS_SHOWN = 10
WIDE = 124
ROWS_SPARED = 6
"""Lines of the terminal that streams leave free."""

PALETTE = ("deep_sky_blue1", "orange1", "pale_green3", "hot_pink", "medium_purple1", "turquoise2", "khaki1")
MARKS = {"running": "●", "draining": "◐", "ended": "○", "killed": "✗"}
LINE_EVERY_S = 3.0


class DemoView(Protocol):
    """Shows the picture while the demo runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, picture: Picture) -> None:
        """Show how it is now."""


def make_view(console: Console) -> DemoView:
    """A live view on a terminal, else lines."""
    return Screen(console) if console.is_terminal else LinesView(console)


class Screen:
    """Draws the picture again, in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, picture: Picture) -> None:
        self._live.update(
            draw(picture, self._console.width, self._console.height - ROWS_SPARED), refresh=True
        )


class LinesView:
    """Prints each event, and now and then how far it is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._next_s = LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, picture: Picture) -> None:
        for event in picture.events[self._told :]:
            self._say(event)
        self._told = len(picture.events)
        now_s = picture.elapsed_s
        if now_s >= self._next_s:
            self._next_s = now_s + LINE_EVERY_S
            lag = picture.sent - picture.committed
            far = f"{picture.committed} of {picture.frames} frames, lag {lag}, moves {picture.moves}"
            self._say(Event(now_s, far))

    def _say(self, event: Event) -> None:
        self._console.print(_event(event), soft_wrap=True)


# --- drawing


def draw(picture: Picture, width: int, rows: int) -> RenderableType:
    """The picture for a terminal of ``width`` columns: nodes and events to the left, to the right as many
    streams as fit into ``rows``. A narrow one gets no events."""
    colours = {node.name: PALETTE[n % len(PALETTE)] for n, node in enumerate(picture.nodes.values())}
    nodes, events = _nodes(picture, colours), [_event(event) for event in picture.events[-EVENTS_SHOWN:]]
    if width < WIDE:
        rest = max(3, rows - len(picture.nodes) - 2)
        return Group(_headline(picture, width), Text(), nodes, Text(), _streams(picture, colours, rest))
    halves = Table.grid(padding=(0, 4))
    halves.add_row(Group(nodes, Text(), *events), _streams(picture, colours, max(3, rows)))
    return Group(_headline(picture, width), Text(), halves)


def _headline(picture: Picture, width: int) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text("holdfast demo", "bold"),
        ProgressBar(
            picture.frames, picture.committed, width=min(30, width // 6), finished_style="bar.complete"
        ),
        f"{picture.committed} of {picture.frames} frames",
        f"lag {picture.sent - picture.committed}",
        f"fail-overs {picture.failovers}",
        f"moves {picture.moves}",
        f"{picture.elapsed_s:.1f} s",
    )
    return line


def _nodes(picture: Picture, colours: dict[str, str]) -> Table:
    table = _table("node", "", ">streams", ">frames/s")
    if not picture.nodes:
        table.add_row(Text("starting …", "dim"))
    for node in sorted(picture.nodes.values(), key=lambda node: node.name):
        lives = node.state in ("running", "draining")
        table.add_row(
            _named(node.name, colours, MARKS[node.state]),
            Text(node.state, _mood(node)),
            str(len(picture.owned(node.name))) if lives else "",
            f"{picture.rate(node.name):.0f}" if lives else "",
        )
    return table


def _mood(node: PictureNode) -> str:
    return {"running": "green", "draining": "yellow", "ended": "dim", "killed": "bold red"}[node.state]


def _streams(picture: Picture, colours: dict[str, str], rows: int) -> Table:
    table = _table("stream", "owner", "frames", "", ">lag", ">fail-overs", ">moves")
    shown = list(picture.streams.items())[:rows]
    for key, stream in shown:
        table.add_row(
            key,
            _named(stream.owner, colours, MARKS["running"]) if stream.owner else Text("—", "dim"),
            ProgressBar(stream.frames, len(stream.committed), width=18, finished_style="bar.complete"),
            f"{len(stream.committed)}/{stream.frames}",
            _lag(stream),
            str(stream.failovers or ""),
            str(stream.moves or ""),
        )
    if len(picture.streams) > len(shown):
        table.add_row(Text(f"and {len(picture.streams) - len(shown)} more", "dim"))
    return table


def _lag(stream: Stream) -> Text:
    lag = stream.sent - len(stream.committed)
    return Text(str(lag), "bold red" if lag > 10 else "yellow" if lag > 3 else "dim")


def _named(name: str, colours: dict[str, str], mark: str) -> Text:
    return Text(f"{mark} {name}", colours.get(name, ""))


def _event(event: Event) -> Text:
    moment = "" if event.at_s is None else f"{event.at_s:.1f} s"
    return Text.assemble((f"{moment:>6}  ", "dim"), event.text)


def _table(*columns: str) -> Table:
    """Columns whose name begins with ``>`` stand to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column[:1] == ">" else "left", no_wrap=True
        )
    return made
