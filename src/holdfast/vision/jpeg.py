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
"""Pixels of the largest frame. Decoding takes three bytes a pixel or more, and a small file may have any
number of pixels."""

_QUALITY = 85
_FORMATS = ("JPEG", "PNG")


def encode(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def decode_cells(data: bytes, url: str) -> tuple[int, int, Cells]:
    """Return the frame's width and height in pixels, and its grey cells (see :func:`detector.grid_of`).

    Raises InvalidMessage, which names ``url``, for data that isn't a whole image.
    """
    with _opened(data, url) as image:
        width, height = image.size
        grid = grid_of(width, height)
        image.draft("L", grid)  # decodes a JPEG small and grey, in a fraction of the time
        grey = image.convert("L")
    if grey.size != grid:
        grey = grey.resize(grid, Image.Resampling.BOX)
    return width, height, np.asarray(grey)


def decode_image(data: bytes, url: str) -> NDArray[np.uint8]:
    """Return the frame's RGB pixels, shape (height, width, 3). Raises the errors of :func:`decode_cells`."""
    with _opened(data, url) as image:
        return np.asarray(image.convert("RGB"))


@contextlib.contextmanager
def _opened(data: bytes, url: str) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > PIXELS_MAX:  # before it is decoded
                raise InvalidMessage(
                    f"frame {url} has {image.width} x {image.height} pixels; {PIXELS_MAX} is the most",
                    field="url",
                )
            yield _eight_bits(image)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow's text about unknown data names an object in memory.
        why = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise InvalidMessage(
            f"frame {url} is not a whole JPEG or PNG image ({len(data)} bytes{why}); "
            "ingest the video again, or skip the frame",
            field="url",
        ) from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the image with 8 bits a channel. Pillow itself takes the upper 8 bits of colours, but cuts grey
    off at 255."""
    if image.mode != "I;16":
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
