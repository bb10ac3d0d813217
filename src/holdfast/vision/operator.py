"""Cameras for operators: a page of the console."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.extend.products import OperatorPart

if TYPE_CHECKING:
    from holdfast.extend.pages import ProductPages


class VisionOperator(OperatorPart):
    """Streams of frames."""

    def pages(self) -> ProductPages:
        from holdfast.extend.pages import ProductPages  # noqa: PLC0415
        from holdfast.vision.wall import groups  # noqa: PLC0415

        return ProductPages("vision", Path(__file__).parent / "pages", [("/cameras", "Cameras")], groups)


operator = VisionOperator()
