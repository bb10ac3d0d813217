"""The contact sheet shows every panel, its boxes, and whose it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from examples.tracking.sheet import Panel, contact_sheet
from holdfast.vision.jpeg import encode

Grey = Callable[[int, int], Image.Image]


def panel(grey: Grey, owner: str = "node-1", tracks: int = 1, size: tuple[int, int] = (320, 180)) -> Panel:
    results: list[dict[str, Any]] = [
        {
            "tracks": [
                {"id": i + 1, "box": [40 + 60 * i + step, 60, 60 + 60 * i + step, 110], "score": 0.9}
                for i in range(tracks)
            ]
        }
        for step in range(10)
    ]
    return Panel(jpeg=encode(grey(*size)), stream="cam-1", frame=9, owner=owner, results=results)


def colours(image: Image.Image) -> set[object]:
    return {colour for _, colour in image.getcolors(1 << 24) or []}


@pytest.mark.parametrize(
    "count, columns, shape", [(1, 0, (1, 1)), (12, 0, (4, 3)), (12, 6, (6, 2)), (2, 9, (2, 1))]
)
def test_the_panels_of_a_sheet_fill_its_rows(
    grey: Grey, count: int, columns: int, shape: tuple[int, int]
) -> None:
    sheet = contact_sheet([panel(grey)] * count, "Title", columns=columns)
    across, down = shape
    assert sheet.size == (14 + across * (400 + 14), 46 + down * (225 + 30 + 14))


@pytest.mark.slow
def test_boxes_and_owners_are_coloured(grey: Grey) -> None:
    bare = colours(contact_sheet([panel(grey, tracks=0)], "Title"))
    one = colours(contact_sheet([panel(grey, tracks=2)], "Title"))
    other = colours(contact_sheet([panel(grey, tracks=2), panel(grey, "node-2", tracks=2)], "Title"))
    assert bare < one < other


def test_panels_of_any_shape_and_without_results(grey: Grey) -> None:
    empty = Panel(jpeg=encode(grey(100, 100)), stream="cam-2", frame=0, owner="?", results=[])
    sheet = contact_sheet([panel(grey), empty, panel(grey, size=(90, 160))], "Title", "note", columns=2)
    assert sheet.width == 14 + 2 * 414


def test_a_sheet_without_panels_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one panel"):
        contact_sheet([], "Title")
