"""Readers of Arrow IPC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.reports.sources.files import FileHead, Piece, rows_a_batch
from holdfast.reports.sources.places import SourceFile

_MAGIC = b"ARROW1"


class ArrowFiles:
    """Arrow IPC files, and streams written to a file."""

    def head(self, place: SourceFile) -> FileHead:
        with place.open() as file:
            return FileHead(_open(file).schema, None)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        with place.open() as file:
            schema = _open(file).schema
            reader = _open(file, [schema.get_field_index(name) for name in columns])
            position = 0
            for whole in _batches(reader):
                spent, position = file.tell() - position, file.tell()
                rows = rows_a_batch(whole.num_rows, whole.nbytes)
                for start in range(0, whole.num_rows, rows):
                    batch = whole.slice(start, rows)
                    yield Piece(batch, spent * batch.num_rows / whole.num_rows)


def _open(file: pa.NativeFile, fields: list[int] | None = None) -> pa.RecordBatchReader:
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    file.seek(0)
    is_file = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file, options=options)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(at) for at in range(reader.num_record_batches))
    return iter(reader)
