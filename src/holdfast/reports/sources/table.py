"""One table of an order: its files, read as one set of columns."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidMessage
from holdfast.extend.tracing import span
from holdfast.reports.faults import UnreadableSource
from holdfast.reports.order import Column, Table
from holdfast.reports.sources.files import FileHead, FormatReader, Piece, rows_a_batch
from holdfast.reports.sources.filters import all_of, applies, expression, partition_holds
from holdfast.reports.sources.formats import files_for
from holdfast.reports.sources.places import (
    Secrets,
    SourceFile,
    check_root,
    is_below,
    list_places,
    readable,
    shown,
)
from holdfast.reports.sources.types import cast, plain, type_named

SORT_BYTES_MAX = 64 * 1024 * 1024
"""Largest decoded result, in bytes, that is sorted: a sort needs all rows in memory."""

SOURCE, FILES = "holdfast.source", "holdfast.files"
"""Attributes of the span of reading: the first file, and the number of files."""

_HEADS_AT_ONCE = 8


class _File(NamedTuple):
    place: SourceFile
    reader: FormatReader
    head: FileHead
    schema: Mapping[str, pa.DataType]


def open_table(table: Table, secrets: Secrets, field: str, roots: Sequence[str] = ()) -> TableReader:
    """Find the files, read their heads, and check that they fit the table.

    ``field`` names the table in errors. ``roots``: URLs that sources must lie below; without any, all are
    allowed. Raises UnreadableSource, Unavailable and InvalidMessage.
    """
    named = {f"{field}.sources[{at}]": url for at, url in enumerate(table.sources)}
    for where, url in named.items():
        if roots and not is_below(url, roots):
            raise InvalidMessage(f"{where}: {shown(url)} isn't below {' or '.join(roots)}", where)
    secret = secrets(table.credentials) if table.credentials is not None else {}
    for where, url in named.items():
        check_root(url, secret, where)
    places = [place for url in table.sources for place in list_places(url, secret, roots)]
    readers = [files_for(place.url, table, field) for place in places]
    with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
        heads = list(pool.map(_head, readers, places))
    found = list(zip(places, readers, heads, strict=True))
    # An empty file fits all others. If all are empty, the order names the columns.
    full = [one for one in found if not one[2].blank] or [
        (place, reader, _ordered_head(table, field)) for place, reader, _ in found
    ]
    files = [_File(place, reader, head, _columns(place, head)) for place, reader, head in full]
    return TableReader(table, files, field)


def _ordered_head(table: Table, field: str) -> FileHead:
    """Return the columns that the order names. Columns without a stated type are text."""
    kinds = {name: type_named(kind, f"{field}.types.{name}") for name, kind in table.types.items()}
    names = dict.fromkeys([column.source for column in table.columns])
    names |= dict.fromkeys([condition.column for condition in table.filter])
    names |= dict.fromkeys([*(key.column for key in table.sort), *kinds])
    return FileHead(pa.schema([(name, kinds.get(name, pa.string())) for name in names]), 0, blank=True)


def _head(reader: FormatReader, place: SourceFile) -> FileHead:
    with readable(place.url):
        return reader.head(place)


def _columns(place: SourceFile, head: FileHead) -> dict[str, pa.DataType]:
    schema: dict[str, pa.DataType] = {}
    for column in head.schema:
        if column.name in schema:
            raise UnreadableSource(f"{place.url} has two columns {column.name!r}; name them differently")
        schema[column.name] = plain(column.type)
    return schema | {name: pa.string() for name in place.partition}


class TableReader:
    """The rows of one table.

    ``columns``: the report's, in order. ``schema``: their names and types in the source, as plain
    types.
    ``rows``: the number of rows, or None; unknown with a filter.
    ``source_bytes``: of all files. ``version``: changes when a file changes.
    """

    def __init__(self, table: Table, files: list[_File], field: str) -> None:
        self._table = table
        self._files = files
        self._field = field
        self._types = self._common_types()
        for name, kind in table.types.items():
            self._known(name, f"types.{name}")
            self._types[name] = type_named(kind, f"{field}.types.{name}")
        self.columns = table.columns or tuple(Column(source=name) for name in self._types)
        for at, column in enumerate(self.columns):
            self._known(column.source, f"columns[{at}].source")
        self.schema = pa.schema([(column.source, self._types[column.source]) for column in self.columns])
        self._conditions = [(condition, self._condition(at)) for at, condition in enumerate(table.filter)]
        for at, key in enumerate(table.sort):
            kind = self._known(key.column, f"sort[{at}].column")
            if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
                self._refuse(f"sort[{at}].column", f"{key.column} is of type {kind}, which has no order")
        counts = [file.head.rows for file in files]
        self.rows = None if table.filter or None in counts else sum(count or 0 for count in counts)
        self.source_bytes = sum(file.place.size for file in files)
        versions = "".join(f"{file.place.url}\0{file.place.version}\0" for file in files)
        self.version = hashlib.sha256(versions.encode()).hexdigest()

    def pieces(self) -> Generator[Piece, None, None]:
        """Yield the rows; columns are named ``0``, ``1``, … in the report's order.

        Raises UnreadableSource, Unavailable, and InvalidMessage if the rows are too large to sort.
        """
        needed = dict.fromkeys([*self.schema.names, *(key.column for key in self._table.sort)])
        pieces = (piece for file in self._files for piece in self._read(file, list(needed)))
        attributes: dict[str, str | int] = {SOURCE: shown(self._files[0].place.url), FILES: len(self._files)}
        with span("read source", kind="client", attributes=attributes):
            for batch, spent in self._sorted(pieces) if self._table.sort else pieces:
                arrays = [batch.column(name) for name in self.schema.names]
                yield Piece(pa.record_batch(arrays, [str(at) for at in range(len(arrays))]), spent)

    # --- types

    def _common_types(self) -> dict[str, pa.DataType]:
        if self._table.drift == "merge":
            return self._merged()
        first, *others = self._files
        wanted = self._wanted(first.schema)
        for other in others:
            self._check_same(first, other, wanted)
        return dict(first.schema)

    def _wanted(self, types: Mapping[str, pa.DataType]) -> list[str]:
        """Return the columns that the order reads; all, if it chooses none."""
        table = self._table
        if not table.columns:
            return list(types)
        chosen = [column.source for column in table.columns]
        return [
            *chosen,
            *(condition.column for condition in table.filter),
            *(key.column for key in table.sort),
        ]

    def _check_same(self, first: _File, other: _File, wanted: list[str]) -> None:
        advice = f"mend the files, or set {self._field}.drift to 'merge'"
        for name in wanted:
            mine, its = first.schema.get(name), other.schema.get(name)
            if mine is not None and its is None:
                raise UnreadableSource(
                    f"{other.place.url} lacks column {name!r} of {first.place.url}; {advice}"
                )
            if mine != its:
                raise UnreadableSource(
                    f"column {name!r} is {its} in {other.place.url} but {mine} in {first.place.url}; {advice}"
                )
        if not self._table.columns and (more := set(other.schema) - set(first.schema)):
            raise UnreadableSource(
                f"{other.place.url} has column {min(more)!r}, which {first.place.url} lacks; {advice}"
            )

    def _merged(self) -> dict[str, pa.DataType]:
        merged = pa.schema([])
        for file in self._files:
            schema = pa.schema(list(file.schema.items()))
            try:
                merged = pa.unify_schemas([merged, schema], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UnreadableSource(
                    f"{file.place.url} doesn't fit the files before it: {error}"
                ) from error
        return {column.name: plain(column.type) for column in merged}

    # --- reading

    def _read(self, file: _File, needed: list[str]) -> Iterator[Piece]:
        if file.head.blank:
            return
        place, own = file.place, file.schema
        on_folders = [keep for condition, keep in self._conditions if condition.column in place.partition]
        folder_types = {name: self._types[name] for name in place.partition}
        with readable(place.url):
            if not partition_holds(on_folders, place.partition, folder_types):
                return
        filtered = [condition.column for condition, _ in self._conditions]
        inside = [
            name
            for name in dict.fromkeys([*needed, *filtered])
            if name in own and name not in place.partition
        ]
        pushed = all_of(
            [
                keep
                for condition, keep in self._conditions
                if (name := condition.column) in inside
                and own[name] == self._types[name]
                and applies(condition, keep, file.head.schema.field(name))
            ]
        )
        keep = all_of([keep for _, keep in self._conditions])
        with readable(place.url):
            # A report may have the folders' columns alone; then one column shows the number of rows.
            columns = inside or [name for name in own if name not in place.partition][:1]
            for batch, spent in file.reader.read(place, columns, pushed):
                names = dict.fromkeys([*needed, *filtered])
                rows = pa.table([self._column(file, batch, name) for name in names], names=list(names))
                if keep is not None:
                    rows = rows.filter(keep)
                batches = rows.select(needed).to_batches()
                share = spent if keep is None else spent / max(1, len(batches))
                yield from (Piece(part, share) for part in batches)

    def _column(self, file: _File, batch: pa.RecordBatch, name: str) -> pa.Array:
        kind = self._types[name]
        if name in file.place.partition:
            return pa.repeat(pa.scalar(file.place.partition[name], pa.string()).cast(kind), batch.num_rows)
        if name not in file.schema:
            return pa.nulls(batch.num_rows, kind)
        try:
            return cast(batch.column(name), kind)
        except pa.ArrowInvalid as error:
            raise UnreadableSource(
                f"column {name!r} of {file.place.url} isn't all {kind}: {error}"
            ) from error

    def _sorted(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        held: list[pa.RecordBatch] = []
        size, spent = 0, 0.0
        for batch, bytes_read in pieces:
            held.append(batch)
            size += batch.nbytes
            spent += bytes_read
            if size > SORT_BYTES_MAX:
                self._refuse(
                    "sort", f"the rows take more than {SORT_BYTES_MAX:,} bytes; sort them in the query"
                )
        if not held:
            return
        rows = pa.Table.from_batches(held)
        keys = [
            (key.column, "descending" if key.descending else "ascending", "at_end")
            for key in self._table.sort
        ]
        sorts = pa.table({name: _sortable(rows.column(name)) for name, *_ in keys})
        rows = rows.take(pc.sort_indices(sorts, keys)).combine_chunks()
        for batch in rows.to_batches(rows_a_batch(rows.num_rows, rows.nbytes)):
            yield Piece(batch, spent * batch.num_rows / rows.num_rows)

    # --- names

    def _condition(self, at: int) -> pc.Expression:
        condition = self._table.filter[at]
        kind = self._known(condition.column, f"filter[{at}].column")
        return expression(condition, kind, f"{self._field}.filter[{at}].value")

    def _known(self, name: str, where: str) -> pa.DataType:
        types = self._types
        if name in types:
            return types[name]
        near = difflib.get_close_matches(name, types, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; columns are {', '.join(list(types)[:20])}"
        return self._refuse(where, f"the source has no column {name!r}{hint}")

    def _refuse(self, where: str, text: str) -> pa.DataType:
        raise InvalidMessage(f"{self._field}.{where}: {text}", f"{self._field}.{where}")


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column as Arrow can sort it: UUIDs as bytes, which have the order of their texts."""
    kind = column.type
    return column.cast(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else column
