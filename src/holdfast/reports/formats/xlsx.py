"""XLSX in a single pass: a workbook is sent while its sheets are made.

The parts of a workbook that need the number of sheets come last in the archive. Strings stand in their cells
(``inlineStr``), not in a table that would have to be kept to the end.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import IO, cast

import polars as pl
import pyarrow as pa

from holdfast.errors import InvalidMessage
from holdfast.reports.faults import TooManyRows
from holdfast.reports.formats.cells import Case, Cell, Cells, fit_title, text_xml
from holdfast.reports.formats.compress import Workers
from holdfast.reports.formats.csv import CsvLines, Pieces
from holdfast.reports.formats.kinds import ColumnKind, Framer, any_of, check_columns
from holdfast.reports.formats.styles import Styles
from holdfast.reports.formats.zip import SIZE_MAX, ZipStream
from holdfast.reports.order import CELL_CHARACTERS_MAX, SHEET_COLUMNS_MAX, SHEET_NAME_MAX, Column, Xlsx
from holdfast.reports.pipeline import in_order
from holdfast.reports.rows import TableRows

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONS = "application/vnd.openxmlformats-package.relationships+xml"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"

ROWS_AT_ONCE = 4096
"""Rows formatted by one call: their XML is several times larger than the rows."""

SAMPLE_ROWS = 200
"""Rows that set a column's width."""

WIDTH_MIN, WIDTH_MAX = 8.0, 60.0
_WIDTHS = {
    ColumnKind.DATE: 12.0,
    ColumnKind.TIME: 12.0,
    ColumnKind.TIMESTAMP: 20.0,
    ColumnKind.ZONED: 20.0,
    ColumnKind.DURATION: 12.0,
}


class SheetFormat:
    """Formats the rows of one table as rows of sheets. Thread-safe.

    Args:
        zone: the time zone of timestamps with a zone.
        field: the table's name in errors of the order.

    Raises UnwritableColumn and InvalidMessage for all that is wrong before a row is read.
    """

    def __init__(
        self,
        options: Xlsx,
        columns: Sequence[Column],
        schema: pa.Schema,
        zone: str,
        field: str,
        styles: Styles,
    ) -> None:
        if len(columns) > SHEET_COLUMNS_MAX:
            text = f"{len(columns):,} columns, and a sheet has {SHEET_COLUMNS_MAX:,} at most; choose some"
            raise InvalidMessage(f"{field}.columns: {text}", f"{field}.columns")
        self._options = options
        self._columns = columns
        self._styles = styles
        self._framer = Framer(schema, options.unfit, zone)
        check_columns(columns, self._framer.kinds, field)
        made = Cells(options, zone, styles)
        self._cells = [
            made.cell(at, *column)
            for at, column in enumerate(zip(columns, self._framer.kinds, schema.types, strict=True))
        ]
        ordered = [column.source if column.title is None else column.title for column in columns]
        self._titles = [fit_title(title, options.unfit) for title in ordered]
        self.titles_replaced = sum(map(operator.ne, ordered, self._titles)) if options.header else 0
        """Titles with characters that can't be written."""
        for at, title in enumerate(self._titles):
            if len(title) > CELL_CHARACTERS_MAX:
                where = f"{field}.columns[{at}].title"
                raise InvalidMessage(f"{where}: longer than {CELL_CHARACTERS_MAX:,} characters", where)

    def head(self, sample: pa.RecordBatch | None) -> bytes:
        """Return a sheet up to its first row of data. ``sample``: the rows that set the widths."""
        options = self._options
        pane = '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
        frozen = pane if options.header and options.freeze_header else ""
        widths = "".join(
            f'<col min="{at}" max="{at}" width="{width:g}" customWidth="1"/>'
            for at, width in enumerate(self._widths(sample), 1)
        )
        head = (
            f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">{frozen}</sheetView>'
            '</sheetViews><sheetFormatPr defaultRowHeight="15"/>'
            f"{f'<cols>{widths}</cols>' if widths else ''}<sheetData>"
        )
        if options.header:
            cells = "".join(
                f'<c r="{cell.letters}1" s="{self._styles.header}" t="inlineStr"><is><t xml:space="preserve">'
                f"{text_xml(title)}</t></is></c>"
                for cell, title in zip(self._cells, self._titles, strict=True)
            )
            head += f'<row r="1">{cells}</row>'
        return head.encode()

    TAIL = b"</sheetData></worksheet>"

    def rows(self, batch: pa.RecordBatch, first_row: int) -> CsvLines:
        """Format a batch, whose first row is row ``first_row`` of its sheet."""
        frame, bad = self._framer.frame(batch)
        number = pl.col("row")
        numbers = pl.int_range(first_row, first_row + batch.num_rows, dtype=pl.Int64, eager=True)
        frame = frame.with_columns(numbers.cast(pl.String).alias("row"))
        cases = [(at, case) for at, cell in enumerate(self._cells) for case in cell.cases]
        met: list[list[Case]] = [[] for _ in self._cells]
        replaced = bad
        tests = any_of(frame, [case.met for _, case in cases])
        for (at, case), found in zip(cases, tests, strict=True):
            if found and (case.confirm is None or any_of(frame, [case.confirm])[0]):
                met[at].append(case)
                replaced += frame.select(case.met.sum()).item() if case.counts else 0
        nulls = frame.null_count().row(0)
        parts: list[str | pl.Expr] = ['<row r="', number, '">']
        for at, cell in enumerate(self._cells):
            parts += _parts(cell, number, met[at], nulls=nulls[at] > 0, all_null=nulls[at] == frame.height)
        parts.append("</row>")
        xml = frame.select(pl.concat_str(_merged(parts)))
        pieces = Pieces()
        xml.write_csv(
            cast("IO[bytes]", pieces),
            include_header=False,
            quote_style="never",
            line_terminator="\n",
            batch_size=max(1, xml.height),
        )
        return CsvLines(b"".join(pieces.pieces), batch.num_rows, replaced)

    def _widths(self, sample: pa.RecordBatch | None) -> list[float]:
        titles = [float(len(title)) + 2 for title in self._titles]
        texts = [0.0] * len(titles)
        if sample is not None and sample.num_rows:
            frame = self._framer.frame(sample.slice(0, SAMPLE_ROWS)).columns
            longest = [
                (
                    pl.lit(0)
                    if kind is ColumnKind.BINARY
                    else pl.col(name).cast(pl.String).str.len_chars().max()
                ).alias(name)
                for name, kind in zip(frame.columns, self._framer.kinds, strict=True)
                if kind not in _WIDTHS
            ]
            found = frame.select(longest).row(0, named=True) if longest else {}
            texts = [float(found.get(name) or 0) + 2 for name in frame.columns]
        return [
            column.width
            if column.width is not None
            else min(WIDTH_MAX, max(WIDTH_MIN, title, text, _WIDTHS.get(kind, 0.0)))
            for column, title, text, kind in zip(
                self._columns, titles, texts, self._framer.kinds, strict=True
            )
        ]


def _parts(
    cell: Cell, number: pl.Expr, met: Sequence[Case], *, nulls: bool, all_null: bool
) -> list[str | pl.Expr]:
    """Return one cell of each row; nothing for a null."""
    if all_null:
        return []
    value = cell.value
    for case in met:
        if case.value is not None:
            value = case.value(value)
    parts = cell.parts(number, value)
    special = [case.cell for case in met if case.cell is not None]
    if not nulls and not special:
        return parts
    whole = pl.concat_str(_merged(parts))
    for change in special:
        whole = change(number, value, whole)
    return [whole.fill_null("")]


def _merged(parts: Sequence[str | pl.Expr]) -> list[pl.Expr]:
    """Return fewer expressions: neighbouring literals become one."""
    merged: list[pl.Expr] = []
    held = ""
    for part in parts:
        if isinstance(part, str):
            held += part
            continue
        if held:
            merged.append(pl.lit(held))
            held = ""
        merged.append(part)
    return [*merged, pl.lit(held)] if held else merged


@dataclass(frozen=True, slots=True)
class SheetSource:
    """One table of a workbook: its name, its format and its rows."""

    name: str
    format: SheetFormat
    rows: TableRows


class Workbook:
    """One file. ``rows`` and ``replaced`` are counted while it is made, which raises TooManyRows if the rows
    don't fit and the order refuses more sheets."""

    def __init__(self, options: Xlsx, styles: Styles, workers: Workers) -> None:
        self._options = options
        self._styles = styles
        self._workers = workers
        self._zip = ZipStream(options.compression_level, workers)
        self._names: list[str] = []
        self.rows = 0
        self.replaced = 0

    def chunks(self, sources: Sequence[SheetSource]) -> Iterator[bytes]:
        """Yield the file's bytes. With ``overflow = "files"``, rows that don't fit remain in the sources."""
        relations = f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/>'
        yield from self._part(
            "_rels/.rels", f'<Relationships xmlns="{_PACKAGE}/relationships">{relations}</Relationships>'
        )
        yield from self._zip.entry("xl/styles.xml", [self._styles.xml()])
        taken = {source.name.casefold() for source in sources}
        for source in sources:
            yield from self._sheet(source, source.name)
            number = 2
            while self._options.overflow != "files" and source.rows.peek() is not None:
                if self._options.overflow == "refuse":
                    raise too_many(source.name, self._options)
                name, number = _next_name(source.name, number, taken)
                taken.add(name.casefold())
                yield from self._sheet(source, name)
        yield from self._end()
        yield self._zip.end()

    def _sheet(self, source: SheetSource, name: str) -> Iterator[bytes]:
        self._names.append(name)
        yield from self._zip.entry(f"xl/worksheets/sheet{len(self._names)}.xml", self._xml(source))

    def _xml(self, source: SheetSource) -> Iterator[bytes]:
        head = source.format.head(source.rows.peek())
        self.replaced += source.format.titles_replaced
        size = len(head)
        yield head
        header = int(self._options.header)
        batches = source.rows.take(self._options.rows_per_sheet - header)
        work = partial(_format, source.format)
        for lines in in_order(self._workers.pool, work, _numbered(batches, 1 + header), self._workers.ahead):
            self.rows += lines.rows
            self.replaced += lines.replaced
            size += len(lines.data)
            if size > SIZE_MAX:
                raise TooManyRows(
                    f"sheet {source.name!r} takes more than 4 GiB, and no program opens it;"
                    " set format.rows_per_sheet lower"
                )
            yield lines.data
        yield source.format.TAIL

    def _end(self) -> Iterator[bytes]:
        numbers = range(1, len(self._names) + 1)
        sheets = "".join(
            f'<sheet name="{escape(name)}" sheetId="{at}" r:id="rId{at}"/>'
            for at, name in enumerate(self._names, 1)
        )
        yield from self._part(
            "xl/workbook.xml",
            f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><bookViews><workbookView/></bookViews>'
            f"<sheets>{sheets}</sheets></workbook>",
        )
        styles = len(self._names) + 1
        relations = "".join(
            f'<Relationship Id="rId{at}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{at}.xml"/>'
            for at in numbers
        )
        relations += f'<Relationship Id="rId{styles}" Type="{_OFFICE}/styles" Target="styles.xml"/>'
        yield from self._part(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{_PACKAGE}/relationships">{relations}</Relationships>',
        )
        parts = "".join(
            f'<Override PartName="/xl/worksheets/sheet{at}.xml" ContentType="{_TYPE}.worksheet+xml"/>'
            for at in numbers
        )
        yield from self._part(
            "[Content_Types].xml",
            f'<Types xmlns="{_PACKAGE}/content-types">'
            f'<Default Extension="rels" ContentType="{_RELATIONS}"/>'
            '<Default Extension="xml" ContentType="application/xml"/>'
            f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
            f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>{parts}</Types>',
        )

    def _part(self, name: str, xml: str) -> Iterator[bytes]:
        return self._zip.entry(name, [(_XML + xml).encode()])


def too_many(name: str, options: Xlsx) -> TooManyRows:
    return TooManyRows(
        f"sheet {name!r} has more than {options.rows_per_sheet:,} rows;"
        " set format.overflow to 'sheets' or 'files', or order less"
    )


def _numbered(batches: Iterator[pa.RecordBatch], row: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            yield part, row
            row += part.num_rows


def _format(shape: SheetFormat, numbered: tuple[pa.RecordBatch, int]) -> CsvLines:
    return shape.rows(*numbered)


def _next_name(name: str, number: int, taken: set[str]) -> tuple[str, int]:
    """Return a name for a further sheet, and the next number."""
    while True:
        suffix = f" ({number})"
        longer = name[: SHEET_NAME_MAX - len(suffix)] + suffix
        number += 1
        if longer.casefold() not in taken:
            return longer, number
