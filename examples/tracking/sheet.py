"""A contact sheet: annotated frames of many streams on one picture."""

from __future__ import annotations

import colorsys
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

_PANEL_WIDTH = 400
_CAPTION_HEIGHT = 30
_GAP = 14
_TITLE_HEIGHT = 46
_BACK, _CARD, _TEXT, _FAINT = "#101318", "#1b2029", "#eef2f7", "#93a0b4"
_OWNERS = ("#5ab0ff", "#ffb454", "#7ddf8f", "#ff7a90", "#c79bff", "#5fe0d4", "#f2e06b", "#b0bccd")

Result = Mapping[str, Any]
"""What :class:`Tracking` returns for a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One frame of one stream.

    ``results``: of the frames up to this one: the last is drawn as boxes with their track ids,
    those before as trails. ``owner`` names the node that tracked it.
    """

    jpeg: bytes
    stream: str
    frame: int
    owner: str
    results: Sequence[Result]


def contact_sheet(panels: Sequence[Panel], title: str, note: str = "", columns: int = 0) -> Image.Image:
    """All panels on one picture, row by row, in about the shape of a screen unless ``columns`` is given.

    The caption under each panel has a dot in its owner's colour. Raises ValueError without panels.
    """
    if not panels:
        raise ValueError("a contact sheet needs at least one panel")
    columns = min(columns or _columns(len(panels)), len(panels))
    owners = sorted({panel.owner for panel in panels})
    colours = {owner: _OWNERS[number % len(_OWNERS)] for number, owner in enumerate(owners)}
    cards = [_card(panel, colours[panel.owner]) for panel in panels]
    rows = [cards[start : start + columns] for start in range(0, len(cards), columns)]
    heights = [max(card.height for card in row) for row in rows]
    width = _GAP + columns * (_PANEL_WIDTH + _GAP)
    sheet = Image.new("RGB", (width, _TITLE_HEIGHT + sum(heights) + _GAP * len(rows)), _BACK)
    draw = ImageDraw.Draw(sheet)
    middle = _TITLE_HEIGHT // 2
    draw.text((_GAP, middle), title, _TEXT, _font(21), anchor="lm")
    draw.text((width - _GAP, middle), note, _FAINT, _font(15), anchor="rm")
    top = _TITLE_HEIGHT
    for row, height in zip(rows, heights, strict=True):
        for column, card in enumerate(row):
            sheet.paste(card, (_GAP + column * (_PANEL_WIDTH + _GAP), top))
        top += height + _GAP
    return sheet


def _columns(count: int) -> int:
    return next(columns for columns in range(1, count + 1) if columns * columns * 3 >= count * 4 - columns)


def _card(panel: Panel, colour: str) -> Image.Image:
    """A frame with its boxes and trails, and its caption below."""
    frame = Image.open(io.BytesIO(panel.jpeg)).convert("RGB")
    scale = _PANEL_WIDTH / frame.width
    height = round(frame.height * scale)
    card = Image.new("RGB", (_PANEL_WIDTH, height + _CAPTION_HEIGHT), _CARD)
    card.paste(_annotated(frame.resize((_PANEL_WIDTH, height), Image.Resampling.LANCZOS), panel, scale))
    draw = ImageDraw.Draw(card)
    line = height + _CAPTION_HEIGHT // 2
    draw.text((10, line), panel.stream, _TEXT, _font(15), anchor="lm")
    draw.text((_PANEL_WIDTH / 2, line), f"frame {panel.frame}", _FAINT, _font(14), anchor="mm")
    draw.text((_PANEL_WIDTH - 26, line), panel.owner, _TEXT, _font(14), anchor="rm")
    draw.circle((_PANEL_WIDTH - 14, line), 5, colour)
    return card


def _annotated(picture: Image.Image, panel: Panel, scale: float) -> Image.Image:
    """Trails fade and lie on the ground, where the boxes stood; boxes carry their ids."""
    tracks: Sequence[Mapping[str, Any]] = panel.results[-1]["tracks"] if panel.results else []
    veil = Image.new("RGBA", picture.size)
    draw = ImageDraw.Draw(veil)
    for track in tracks:
        colour = _colour(track["id"])
        steps = [
            ((box[0] + box[2]) / 2 * scale, box[3] * scale)
            for result in panel.results
            for other in result["tracks"]
            if other["id"] == track["id"]
            for box in [other["box"]]
        ]
        for number, (start, end) in enumerate(itertools.pairwise(steps), start=1):
            draw.line((start, end), (*colour, 40 + 190 * number // len(steps)), 3)
    for track in tracks:
        colour = _colour(track["id"])
        left, top, right, bottom = (round(side * scale) for side in track["box"])
        draw.rounded_rectangle((left, top, right, bottom), 3, (*colour, 36), (*colour, 255), 2)
        text = str(track["id"])
        width = round(draw.textlength(text, _font(13))) + 9
        left, tag = min(left, picture.width - width), max(top - 17, 0)
        draw.rounded_rectangle((left, tag, left + width, tag + 16), 3, (*colour, 255))
        draw.text((left + width / 2, tag + 8), text, "#101318", _font(13), anchor="mm")
    return Image.alpha_composite(picture.convert("RGBA"), veil).convert("RGB")


def _colour(track: int) -> tuple[int, int, int]:
    """Neighbouring ids get hues far apart (by the golden ratio)."""
    red, green, blue = colorsys.hsv_to_rgb(track * 0.618034 % 1, 0.62, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
