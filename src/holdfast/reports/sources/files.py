"""Files of every format, behind one face."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.reports.sources.places import SourceFile

BATCH_ROWS_MAX = 16_384
BATCH_BYTES = 8 * 1024 * 1024
"""Rows and bytes of a batch, decoded, as far as a file's metadata tells."""


class Piece(NamedTuple):
    """Rows, and how many bytes of the file were spent on them."""

    batch: pa.RecordBatch
    source_bytes: float


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts in a file's head: its columns, and how many rows there are; None where it doesn't say so.
    ``blank``: whether the file is empty, so that not even its columns are known."""

    schema: pa.Schema
    rows: int | None
    blank: bool = False


BLANK = Shape(pa.schema([]), 0, blank=True)
"""The shape of an empty file."""


class FormatReader(Protocol):
    """A reader of the files of one format. Both methods may raise whatever Arrow does: see
    :func:`places.readable`."""

    def shape(self, place: SourceFile) -> Shape:
        """Read the file's head."""

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        """Its rows, of these columns in any order. ``keep`` allows to leave out rows that don't fulfil it."""


def rows_a_batch(rows: int, size: float) -> int:
    """Return how many rows to decode at once, of ``rows`` that take ``size`` bytes decoded."""
    return int(max(64, min(BATCH_ROWS_MAX, BATCH_BYTES * rows / max(1.0, size))))
