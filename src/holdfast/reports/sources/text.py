"""CSV and JSON lines, also compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from holdfast.reports.sources.files import Piece, Shape
from holdfast.reports.sources.places import SourceFile
from holdfast.reports.sources.types import type_named

COMPRESSED = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
"""How a file is compressed, by its suffix."""

BLOCK_BYTES = 1024 * 1024
"""What is parsed at once. A row can't be longer."""


class CsvFiles:
    """CSV with a header, in UTF-8. Columns are text (``00123`` keeps its zeros) but those with a stated type.
    A field without anything is null, and ``""`` an empty text."""

    def __init__(self, types: Mapping[str, str], delimiter: str, field: str) -> None:
        self._types = {name: type_named(kind, f"{field}.types.{name}") for name, kind in types.items()}
        self._parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def shape(self, place: SourceFile) -> Shape:
        """From the header."""
        with place.open() as file:
            names = self._open(place, file, {}).schema.names
        return Shape(pa.schema([(name, self._types.get(name, pa.string())) for name in names]), None)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        """Block by block."""
        with place.open() as file:
            types = {name: self._types.get(name, pa.string()) for name in columns}
            yield from _pieces(place, file, self._open(place, file, types))

    def _open(
        self, place: SourceFile, file: pa.NativeFile, types: Mapping[str, pa.DataType]
    ) -> pa.RecordBatchReader:
        return pacsv.open_csv(
            _plain(place, file),
            read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=self._parse,
            convert_options=pacsv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE", "1", "t"],
                false_values=["false", "False", "FALSE", "0", "f"],
            ),
        )


class JsonFiles:
    """JSON lines. Types that aren't stated are those of the first rows; later rows must fit them."""

    def __init__(self, types: Mapping[str, str], field: str) -> None:
        named = [(name, type_named(kind, f"{field}.types.{name}")) for name, kind in types.items()]
        self._types = pa.schema(named) if named else None

    def shape(self, place: SourceFile) -> Shape:
        """From the first rows."""
        with place.open() as file:
            return Shape(self._open(place, file, self._types).schema, None)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        """Block by block."""
        with place.open() as file:
            for batch, spent in _pieces(place, file, self._open(place, file, self._types)):
                yield Piece(batch.select(list(columns)), spent)

    def _open(self, place: SourceFile, file: pa.NativeFile, types: pa.Schema | None) -> pa.RecordBatchReader:
        return pajson.open_json(
            _plain(place, file),
            read_options=pajson.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=pajson.ParseOptions(explicit_schema=types, newlines_in_values=False),
        )


def _plain(place: SourceFile, file: pa.NativeFile) -> pa.NativeFile:
    how = _compression(place)
    return pa.CompressedInputStream(file, how) if how else file


def _compression(place: SourceFile) -> str | None:
    return COMPRESSED.get(place.url.lower().rpartition(".")[2])


def _pieces(place: SourceFile, file: pa.NativeFile, reader: pa.RecordBatchReader) -> Iterator[Piece]:
    """A block each. What is compressed is read some blocks ahead of them."""
    compressed, position = _compression(place) is not None, 0
    for batch in reader:
        before, read = position, place.size if file.closed else file.tell()  # closed: read to its end
        position = read if compressed else min(before + BLOCK_BYTES, read)
        yield Piece(batch, position - before)
