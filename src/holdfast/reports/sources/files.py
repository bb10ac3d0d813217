"""The interface of the readers of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.reports.sources.places import SourceFile

BATCH_ROWS_MAX = 16_384
BATCH_BYTES = 8 * 1024 * 1024
"""Limits of a decoded batch, as far as a file's metadata shows its size."""


class Piece(NamedTuple):
    """A batch of rows, and the bytes of the file that hold them."""

    batch: pa.RecordBatch
    source_bytes: float


@dataclass(frozen=True, slots=True)
class FileHead:
    """The head of a file: its columns, and the number of rows or None. ``blank``: the file is empty, so that
    not even its columns are known."""

    schema: pa.Schema
    rows: int | None
    blank: bool = False


BLANK = FileHead(pa.schema([]), 0, blank=True)
"""The head of an empty file."""


class FormatReader(Protocol):
    """A reader of the files of one format. Both methods may raise Arrow's errors: see
    :func:`places.readable`."""

    def head(self, place: SourceFile) -> FileHead:
        """Read the file's head."""

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        """Yield the rows of some columns, in any order. Rows that don't fulfil ``keep`` may be left out."""


def rows_a_batch(rows: int, size: float) -> int:
    """Return the rows of a batch, if ``rows`` rows take ``size`` bytes decoded."""
    return int(max(64, min(BATCH_ROWS_MAX, BATCH_BYTES * rows / max(1.0, size))))
