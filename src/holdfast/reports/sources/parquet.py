"""Parquet: by row groups. Groups that a filter excludes are skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from holdfast.reports.sources.files import FileHead, Piece, rows_a_batch
from holdfast.reports.sources.places import SourceFile

BUFFER_BYTES = 256 * 1024
REMOTE_BUFFER_BYTES = 8 * 1024 * 1024
"""Bytes of a column in one read. A remote store gets fewer, larger reads."""

INT96_UNIT = "us"
"""Unit of INT96 timestamps. Nanoseconds would be wrong before 1678 and after 2262."""

GROUP_BYTES_MAX = 64 * 1024 * 1024
"""Largest compressed row group of a remote file that is read in few large requests."""


class ParquetFiles:
    """Parquet files."""

    def head(self, place: SourceFile) -> FileHead:
        with place.open() as file:
            parquet = pq.ParquetFile(file, pre_buffer=False, coerce_int96_timestamp_unit=INT96_UNIT)
            return FileHead(parquet.schema_arrow, parquet.metadata.num_rows)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        with place.open() as file:
            metadata = pq.read_metadata(file)
            groups = range(metadata.num_row_groups) if keep is None else _groups(place, keep)
            sizes = [_Sizes(metadata.row_group(group), columns) for group in groups]
            largest = max((size.compressed for size in sizes), default=0)
            parquet = pq.ParquetFile(
                file,
                metadata=metadata,
                pre_buffer=place.remote and largest <= GROUP_BYTES_MAX,
                coerce_int96_timestamp_unit=INT96_UNIT,
                page_checksum_verification=True,
                buffer_size=REMOTE_BUFFER_BYTES if place.remote else BUFFER_BYTES,
            )
            for group, size in zip(groups, sizes, strict=True):
                rows = rows_a_batch(size.rows, size.decoded)
                # One thread, beside the formatting threads: more would take more time in all, and 50 MB.
                batches = parquet.iter_batches(
                    rows, row_groups=[group], columns=list(columns), use_threads=False
                )
                for batch in batches:
                    yield Piece(batch, size.compressed * batch.num_rows / size.rows)


class _Sizes:
    """The rows of a row group, and the bytes of the columns that are read."""

    def __init__(self, group: pq.RowGroupMetaData, columns: Sequence[str]) -> None:
        wanted = set(columns)
        self.rows = group.num_rows
        self.compressed = self.decoded = 0
        for at in range(group.num_columns):
            chunk = group.column(at)
            path = chunk.path_in_schema
            if path in wanted or path.partition(".")[0] in wanted:
                self.compressed += chunk.total_compressed_size
                # Dictionaries make this far smaller than the rows are in memory: 8 bytes a value at least.
                self.decoded += max(chunk.total_uncompressed_size, 8 * group.num_rows)


def _groups(place: SourceFile, keep: pc.Expression) -> list[int]:
    """Return the row groups that may hold rows that fulfil ``keep``, by their statistics."""
    with place.open() as file:
        fragment = pads.ParquetFileFormat().make_fragment(file)
        return [group.id for group in fragment.subset(keep).row_groups]
