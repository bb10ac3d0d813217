"""Frames as JPEG: encoded by ingest, decoded by the handlers, to grey cells or in full."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from holdfast.errors import InvalidMessage
from holdfast.vision.detector import Cells, grid_of

PIXELS_MAX = 50_000_000
"""The largest frame. Decoding takes three bytes a pixel and more, and a file of a few kilobytes may have any
number of them."""

_QUALITY = 85
_FORMATS = ("JPEG", "PNG")


def encode(image: Image.Image) -> bytes:
    """The image as JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def decode_cells(data: bytes, url: str) -> tuple[int, int, Cells]:
    """The frame's width and height in pixels, and its grey cells (see :func:`detector.grid_of`).

    Raises InvalidMessage, which names ``url``, for data that is no image, or a truncated one.
    """
    with _opened(data, url) as image:
        width, height = image.size
        grid = grid_of(width, height)
        image.draft("L", grid)  # lets a JPEG be decoded small and grey, which takes a fraction of the time
        grey = image.convert("L")
    if grey.size != grid:
        grey = grey.resize(grid, Image.Resampling.BOX)
    return width, height, np.asarray(grey)


def decode_image(data: bytes, url: str) -> NDArray[np.uint8]:
    """The frame's RGB pixels, of shape (height, width, 3). Raises as :func:`decode_cells`."""
    with _opened(data, url) as image:
        return np.asarray(image.convert("RGB"))


@contextlib.contextmanager
def _opened(data: bytes, url: str) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > PIXELS_MAX:  # nothing is decoded yet
                raise InvalidMessage(
                    f"frame {url} has {image.width} x {image.height} pixels; {PIXELS_MAX} is the most",
                    field="url",
                )
            yield _eight_bits(image)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # What Pillow says of data that it can't identify names an object in memory.
        why = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise InvalidMessage(
            f"frame {url} is not a whole JPEG or PNG image ({len(data)} bytes{why}); "
            "ingest the video again, or skip the frame",
            field="url",
        ) from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel. Of finer colours Pillow takes the upper 8 itself; finer grey it cuts
    off at 255."""
    if image.mode != "I;16":
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
