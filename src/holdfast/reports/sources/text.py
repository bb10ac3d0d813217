"""Readers of CSV and JSON lines, also compressed."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from holdfast.reports.faults import UnreadableSource
from holdfast.reports.sources.files import BLANK, FileHead, Piece
from holdfast.reports.sources.places import SourceFile
from holdfast.reports.sources.types import type_named

COMPRESSED = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
"""Compressions by suffix."""

BLOCK_BYTES = 1024 * 1024
"""Bytes of a parsed block, and of the longest row."""

_EXACT_MAX = 2**53
"""Whole numbers up to this are exact as floats of 64 bits."""

_INFINITE = 2**1024
"""The first whole number beyond all floats of 64 bits."""

_ZONE = r":\d\d(Z|[+-]\d\d(:?\d\d)?)$"
"""The end of a timestamp with an offset from UTC."""

_MANY_DIGITS = re.compile(rb"\d{16}")


class CsvFiles:
    """CSV with a header, in UTF-8. Columns without a stated type are text (``00123`` keeps its zeros). An
    empty field is null, and ``""`` an empty text."""

    def __init__(self, types: Mapping[str, str], delimiter: str, field: str) -> None:
        self._types = {name: type_named(kind, f"{field}.types.{name}") for name, kind in types.items()}
        self._parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def head(self, place: SourceFile) -> FileHead:
        try:
            with place.open() as file:
                names = self._open(place, file, {}).schema.names
        except pa.ArrowInvalid:
            if _is_blank(place):
                return BLANK
            raise
        return FileHead(pa.schema([(name, self._types.get(name, pa.string())) for name in names]), None)

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
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
    """JSON lines. Columns without a stated type have that of the first rows, which later rows must fit."""

    def __init__(self, types: Mapping[str, str], field: str) -> None:
        self._field = field
        self._named = [(name, type_named(kind, f"{field}.types.{name}")) for name, kind in types.items()]
        self._types = pa.schema(self._named) if self._named else None

    def head(self, place: SourceFile) -> FileHead:
        try:
            with place.open() as file:
                schema = self._open(place, file, self._types).schema
        except pa.ArrowInvalid:
            if _is_blank(place):
                return BLANK
            raise
        return FileHead(self._with_zones(place, schema), None)

    def _with_zones(self, place: SourceFile, guessed: pa.Schema) -> pa.Schema:
        """Return the types of the first rows, with the zones that Arrow drops. Nested timestamps become
        text."""
        stated = dict(self._named)
        texts = pa.schema(
            [
                field if field.name in stated else field.with_type(_without_times(field.type))
                for field in guessed
            ]
        )
        if texts == guessed:
            return guessed
        with place.open() as file:
            first = self._open(place, file, texts).read_next_batch()
        for at, field in enumerate(guessed):
            if texts.field(at) != field and pa.types.is_timestamp(field.type):
                zone = (
                    "UTC"
                    if pc.any(pc.match_substring_regex(first.column(field.name), _ZONE)).as_py()
                    else None
                )
                texts = texts.set(at, field.with_type(pa.timestamp(field.type.unit, zone)))
        self._types = texts
        return texts

    def read(self, place: SourceFile, columns: Sequence[str], keep: pc.Expression | None) -> Iterator[Piece]:
        with place.open() as file:
            checked = False
            guessed = [name for name in columns if name not in dict(self._named)]
            for batch, spent in _pieces(place, file, self._open(place, file, self._types)):
                if not checked and any(_may_be_rounded(batch.column(name)) for name in guessed):
                    self._check_whole_numbers(
                        place, {name: batch.schema.field(name).type for name in guessed}
                    )
                    checked = True
                yield Piece(batch.select(list(columns)), spent)

    def _check_whole_numbers(self, place: SourceFile, kinds: Mapping[str, pa.DataType]) -> None:
        """Raise UnreadableSource for a whole number that Arrow's float would change."""
        with place.open() as file:
            for line in io.BufferedReader(_plain(place, file)):
                if not _MANY_DIGITS.search(line):
                    continue
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # Arrow reads some lines that Python doesn't, such as one with two objects
                for name, kind in kinds.items():
                    if (number := _rounded(row.get(name), kind)) is not None:
                        raise UnreadableSource(
                            f"column {name!r} of {place.url} holds {number}, and is read as floats, which"
                            f" would round it; state a type in {self._field}.types, such as uint64 or"
                            " decimal(38,0), or write it as text"
                        )

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
    """Yield the blocks. A compressed file is read some blocks ahead."""
    compressed, position = _compression(place) is not None, 0
    for batch in reader:
        before, read = position, place.size if file.closed else file.tell()  # closed: read to its end
        position = read if compressed else min(before + BLOCK_BYTES, read)
        yield Piece(batch, position - before)


def _is_blank(place: SourceFile) -> bool:
    with place.open() as file:
        plain = _plain(place, file)
        while block := plain.read(BLOCK_BYTES):
            if block.removeprefix(codecs.BOM_UTF8).strip():
                return False
    return True


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_times(kind.value_type)))
    return kind


def _may_be_rounded(array: pa.Array) -> bool:
    """Return whether an array, or a nested one, holds floats so large that they have no fraction."""
    if pa.types.is_struct(array.type):
        return any(_may_be_rounded(field) for field in array.flatten())
    if pa.types.is_list(array.type):
        return _may_be_rounded(array.flatten())
    return pa.types.is_float64(array.type) and bool(
        pc.any(pc.greater_equal(pc.abs(array), float(_EXACT_MAX))).as_py()
    )


def _rounded(value: Any, kind: pa.DataType) -> int | None:
    """Return a whole number in a value that a float would change; or None."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        found = (_rounded(value.get(field.name), field.type) for field in kind)
        return next((number for number in found if number is not None), None)
    if isinstance(value, list) and pa.types.is_list(kind):
        found = (_rounded(one, kind.value_type) for one in value)
        return next((number for number in found if number is not None), None)
    if pa.types.is_float64(kind) and type(value) is int and abs(value) > _EXACT_MAX:
        return value if abs(value) >= _INFINITE or float(value) != value else None
    return None
