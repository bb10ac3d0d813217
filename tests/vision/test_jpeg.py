"""Frames are decoded to what they show, whatever way they are stored."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from holdfast.vision.jpeg import decode_cells, decode_image


def test_grey_of_16_bits_is_as_bright_as_grey_of_8() -> None:
    ramp = np.tile(np.arange(0, 256, dtype=np.uint16), (180, 2))
    fine, plain = (io.BytesIO() for _ in range(2))
    Image.fromarray(ramp * 257).save(fine, "PNG")
    Image.fromarray(ramp.astype(np.uint8)).save(plain, "PNG")
    assert np.array_equal(decode_image(fine.getvalue(), ""), decode_image(plain.getvalue(), ""))
    width, height, cells = decode_cells(fine.getvalue(), "")
    assert (width, height) == (512, 180)
    assert np.array_equal(cells, decode_cells(plain.getvalue(), "")[2])
