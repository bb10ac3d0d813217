"""Makes pages from templates. Every value is escaped, and a name that a template doesn't know is an error."""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from aiohttp import web
from markupsafe import Markup

from holdfast.common.message import SEQ_DIGITS, Place, is_timer_name
from holdfast.console.access import caller_of
from holdfast.console.assets import Assets

TEMPLATES = Path(__file__).parent / "templates"
NOTICES_MAX = 1_000

PAGES = (
    ("/", "Overview"),
    ("/streams", "Streams"),
    ("/tasks", "Tasks"),
    ("/dead-letters", "Dead letters"),
    ("/audit", "Audit"),
)
"""The pages in the navigation."""


class Renderer:
    """Makes the pages of one console. Products add ``templates``, by the word that begins their names, and
    paths and titles for the ``navigation``."""

    def __init__(
        self,
        assets: Assets,
        templates: Mapping[str, Path] | None = None,
        navigation: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._notices: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self.environment = jinja2.Environment(
            loader=jinja2.ChoiceLoader(
                [
                    jinja2.FileSystemLoader(TEMPLATES),
                    jinja2.PrefixLoader(
                        {word: jinja2.FileSystemLoader(folder) for word, folder in (templates or {}).items()}
                    ),
                ]
            ),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters |= {
            "count": count,
            "span": span,
            "moment": moment,
            "size": size,
            "rate": rate,
            "pretty": pretty,
            "place": place,
            "state": state,
            "stream_path": stream_path,
        }
        self.environment.globals |= {
            "asset": assets.path,
            "navigation": [*PAGES, *navigation],
        }

    @staticmethod
    def safe(html: str) -> Markup:
        """Mark what :meth:`part` has made as HTML, to be put into a page as it is."""
        return Markup(html)  # noqa: S704 - made by a template that escapes

    def part(self, template: str, **context: Any) -> str:
        """Return the HTML of a part of a page, which is the same for all callers with the same rights."""
        return labelled(self.environment.get_template(template).render(context))

    def page(self, request: web.Request, template: str, *, status: int = 200, **context: Any) -> web.Response:
        """Return a whole page."""
        caller = caller_of(request)
        kind, text = self._notices.get(request.query.get("notice", ""), ("", ""))
        html = self.part(
            template,
            caller=caller,
            here=request.path,
            address=request.path_qs,
            notice_kind=kind,
            notice=text,
            form_token=caller.form_token,
            **context,
        )
        return html_response(html, status)

    def note(self, identity: str, text: str, *, failed: bool = False) -> None:
        """Keep the notice at the top of the page that is loaded with ``?notice=`` and this identity."""
        self._notices[identity] = ("failed" if failed else "done", text)
        while len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)


_TABLE = re.compile(r"<thead>(.*?)</thead>(\s*<tbody>.*?</tbody>)", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_CELL = re.compile(r"<(tr|td|th)\b([^>]*)>")
_SPAN = re.compile(r'colspan="(\d+)"')


def labelled(html: str) -> str:
    """Give each cell of each table the title of its column, as ``data-label``: on a phone, where a row
    becomes a list, it stands before what the cell says. A cell over several columns gets none."""
    return _TABLE.sub(_label_cells, html)


def _label_cells(table: re.Match[str]) -> str:
    titles = [" ".join(_TAG.sub("", title).split()) for title in _HEAD.findall(table[1])]
    column = 0

    def label(cell: re.Match[str]) -> str:
        nonlocal column
        name, attributes = cell[1], cell[2]
        if name == "tr":
            column = 0
            return cell[0]
        spans = _SPAN.search(attributes)
        title = titles[column] if spans is None and column < len(titles) else ""
        column += int(spans[1]) if spans is not None else 1
        if name == "th" or not title or "data-label=" in attributes:
            return cell[0]
        return f'<td{attributes} data-label="{title}">'

    return f"<thead>{table[1]}</thead>{_CELL.sub(label, table[2])}"


def html_response(html: str, status: int = 200) -> web.Response:
    """Return an answer with HTML."""
    return web.Response(text=html, status=status, content_type="text/html")


def count(value: float) -> str:
    """Return a number with a space between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def rate(value: float) -> str:
    """Return a number per second."""
    return count(value) if value >= 100 else f"{value:.1f}" if value else "0"


def span(seconds: float | None) -> str:
    """Return a length of time for people."""
    if seconds is None:
        return "—"
    value = max(0.0, seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= 2 * length:
            return f"{value / length:.0f}\u00a0{unit}"
    return f"{value:.0f}\u00a0s" if value >= 10 else f"{value:.1f}\u00a0s"


def moment(at: float) -> Markup | str:
    """Return a wall time in UTC, to the second. The script of the pages shows it in the reader's zone."""
    if not at:
        return "—"
    try:
        text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"
    return Markup('<time datetime="{}Z">{}</time>').format(text.replace(" ", "T"), text)


def size(value: float) -> str:
    """Return a number of bytes for people."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{value / length:.1f}\u00a0{unit}"
    return f"{value:.0f}\u00a0B"


def state(value: str) -> str:
    """Return the state of a task as people read it."""
    return {"succeed": "succeeded", "timeout": "timed out"}.get(value, value)


def quoted(text: str) -> str:
    """Return a text for the query of an address."""
    return quote(text, safe="")


def stream_path(key: str) -> str:
    """Return the path of the page of a stream, by its full key."""
    return f"/stream?key={quoted(key)}"


def place(name: str) -> str:
    """Return the place of a message in its stream without leading zeros, or the name of a timer."""
    if is_timer_name(name):
        return f"timer {Place.named(name).timer}"
    run, colon, seq = name.partition(":")
    return f"{run}{colon}{int(seq)}" if len(seq) == SEQ_DIGITS and seq.isdigit() else name


PARSED_MAX, SHOWN_MAX = 256 * 1024, 20_000
"""The largest body that is read as JSON, in bytes, and the most characters of one that are shown."""


def pretty(data: bytes) -> str:
    """Return a body for people: JSON with indents, text, or the beginning of other bytes in hexadecimal. A
    long one is cut, with a note."""
    try:
        text = data[:PARSED_MAX].decode()
    except UnicodeDecodeError as error:
        if len(data) > PARSED_MAX and error.start >= PARSED_MAX - 4:
            text = data[: error.start].decode()
        else:
            return _cut(data[: SHOWN_MAX // 3].hex(" "), len(data), whole=len(data) * 3 <= SHOWN_MAX)
    if len(data) <= PARSED_MAX:
        with contextlib.suppress(ValueError, RecursionError):
            text = msgspec.json.format(text, indent=2)  # keeps numbers and escapes as they are written
    return _cut(text[:SHOWN_MAX], len(data), whole=len(text) <= SHOWN_MAX and len(data) <= PARSED_MAX)


def _cut(text: str, length: int, *, whole: bool) -> str:
    return text if whole else f"{text}\n… cut; all of it has {length} bytes"


CHART_WIDTH, CHART_HEIGHT = 240.0, 48.0


def chart(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the line and the area of a chart, as the points of SVG polygons, and its highest value. A gap in
    the values ends a line, and the next one begins another."""
    most = max((value for value in values if value is not None), default=0.0)
    step = CHART_WIDTH / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            if lines[-1]:
                lines.append([])
            continue
        height = CHART_HEIGHT - 1 - (CHART_HEIGHT - 4) * (value / most if most else 0.0)
        lines[-1].append(f"{place * step:.1f},{height:.1f}")
    drawn = [line for line in lines if len(line) > 1]
    areas = [
        f"{line[0].partition(',')[0]},{CHART_HEIGHT:.0f} {' '.join(line)}"
        f" {line[-1].partition(',')[0]},{CHART_HEIGHT:.0f}"
        for line in drawn
    ]
    return {
        "width": CHART_WIDTH,
        "height": CHART_HEIGHT,
        "lines": [" ".join(line) for line in drawn],
        "areas": areas,
        "most": most,
    }
