"""CSV: the text of each kind of value, and its bytes."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Literal, NamedTuple, cast

import msgspec
import polars as pl
import pyarrow as pa

from holdfast.errors import InvalidMessage
from holdfast.reports.faults import UnwritableColumn
from holdfast.reports.formats.calendar import date_texts, timestamp_texts
from holdfast.reports.formats.formulas import guarded, looks_like_formula, may_be_formula
from holdfast.reports.formats.kinds import ColumnKind, Framer, any_of, check_columns
from holdfast.reports.formats.texts import (
    decimal_text,
    encoded_binary,
    float_text,
    is_wide,
    out_of_calendar,
    outside,
    sample_text,
    spaced_thousands,
    strftime_fault,
    zoned,
)
from holdfast.reports.order import Column, Csv

_CODECS = {"utf-8-bom": "utf-8", "utf-16": "utf-16-le", "shift_jis": "cp932"}
_MARKS = {"utf-8-bom": codecs.BOM_UTF8, "utf-16": codecs.BOM_UTF16_LE}
_HOLDS_ALL = frozenset({"utf-8", "utf-8-bom", "utf-16", "gb18030"})
_STYLES: dict[str, Literal["necessary", "always", "never"]] = {
    "minimal": "necessary",
    "all": "always",
    "strings": "never",  # quoted here: Polars takes a number with a separator or of 256 bits for text
    "never": "never",
}
_NUL = "\0"
_NUMBERS = frozenset({ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.DECIMAL})


class CsvLines(NamedTuple):
    """Formatted rows. ``replaced`` counts characters that the encoding lacks, NULs, and values that weren't
    text."""

    data: bytes
    rows: int
    replaced: int


@dataclass(frozen=True, slots=True)
class _Cell:
    """The text of one column, and its rare ``cases``. Without a ``suspect`` value, which is far cheaper to
    test, no case is met."""

    text: pl.Expr
    cases: Sequence[_Case] = ()
    suspect: pl.Expr | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """A rare case: its test, and the function that changes the text or raises."""

    met: pl.Expr
    then: Callable[[pl.Expr], pl.Expr]


class CsvFormat:
    """Formats the rows of one table. Thread-safe.

    Args:
        zone: the time zone of timestamps with a zone.
        field: the table's name in errors of the order.

    Raises UnwritableColumn and InvalidMessage for all that is wrong before a row is read.
    """

    def __init__(
        self, options: Csv, columns: Sequence[Column], schema: pa.Schema, zone: str, field: str
    ) -> None:
        self._options = options
        self._zone = zone
        self._columns = columns
        self._codec = _CODECS.get(options.encoding, options.encoding)
        self._filler = "\ufffd" if options.encoding in _HOLDS_ALL else "?"
        # Polars writes decimal commas itself, but if the comma is the delimiter, it quotes nulls too.
        self._writes_point = not (options.decimal_separator == options.delimiter == ",")
        self._special = "[" + re.escape(options.delimiter + options.quote) + r"\r\n]"
        self._framer = Framer(schema, options.unfit, zone)
        self._names = [column.source for column in columns]
        check_columns(columns, self._framer.kinds, field)
        self._cells = [
            self._cell(at, column, kind, type_, f"{field}.columns[{at}]")
            for at, (column, kind, type_) in enumerate(
                zip(columns, self._framer.kinds, schema.types, strict=True)
            )
        ]
        titles = (column.source if column.title is None else column.title for column in columns)
        self.header = _header(options, tuple(titles))
        """The byte order mark and the header, if they are ordered."""

    def lines(self, batch: pa.RecordBatch) -> CsvLines:
        """Format a batch. Raises UnwritableColumn that names the column."""
        frame, bad = self._framer.frame(batch)
        lines = self._write(frame, self._cells, self._names)
        return CsvLines(lines.data, batch.num_rows, lines.replaced + bad)

    # --- cells

    def _cell(self, at: int, column: Column, kind: ColumnKind, type_: pa.DataType, field: str) -> _Cell:
        options, value = self._options, pl.col(str(at))
        match kind:
            case ColumnKind.TEXT | ColumnKind.NESTED | ColumnKind.UUID:
                return self._text(value, column.source, guard=kind is ColumnKind.TEXT)
            case ColumnKind.BINARY:
                return self._text(encoded_binary(value, options.binary), column.source)
            case ColumnKind.NULL:
                return _Cell(value.cast(pl.String))
            case ColumnKind.DURATION:
                return _Cell(value.dt.to_string("iso"))
            case ColumnKind.BOOLEAN:
                if (options.true_text, options.false_text) == ("true", "false"):
                    return _Cell(value)
                named = pl.when(value).then(pl.lit(options.true_text)).otherwise(pl.lit(options.false_text))
                return _Cell(pl.when(value.is_not_null()).then(named))
            case ColumnKind.INTEGER:
                return _Cell(self._grouped(value) if options.thousands_separator else value)
            case ColumnKind.DECIMAL:
                text = is_wide(type_, column.decimals)
                if column.decimals is not None:
                    value = decimal_text(value, type_, column.decimals)
                return _Cell(self._grouped(value, text=text))
            case ColumnKind.FLOAT:
                return self._float(value, column)
        return self._calendar(value, column, kind, type_, field)

    def _text(self, text: pl.Expr, name: str, *, guard: bool = True) -> _Cell:
        options = self._options
        if options.quoting == "never":
            special = [_Case(text.str.contains(self._special), lambda _: self._unquoted(name))]
        else:
            special = []
        if guard and options.formulas == "guard":
            formula = _Case(looks_like_formula(text), guarded)
            return _Cell(text, [formula, *special], None if special else may_be_formula(text))
        return _Cell(text, special)

    def _unquoted(self, name: str) -> pl.Expr:
        raise UnwritableColumn(
            f"column {name!r} holds a delimiter, quote or line end; let format.quoting be 'minimal'", name
        )

    def _grouped(self, number: pl.Expr, *, text: bool = False) -> pl.Expr:
        """Return the number as ordered. ``text``: it is text, whose point Polars doesn't replace."""
        options = self._options
        if not options.thousands_separator:
            return number if self._writes_point and not text else self._plain(number)
        return spaced_thousands(number, options.thousands_separator, options.decimal_separator)

    def _float(self, value: pl.Expr, column: Column) -> _Cell:
        options = self._options
        number = value if column.decimals is None else float_text(value, column.decimals)
        number = self._grouped(number, text=column.decimals is not None)
        named = (
            pl.when(value.is_nan())
            .then(pl.lit(options.nan_text))
            .when(value.is_infinite() & (value > 0))
            .then(pl.lit(options.infinity_text))
            .when(value.is_infinite())
            .then(pl.lit(f"-{options.infinity_text}"))
        )
        # A point may separate thousands.
        plain = number if options.thousands_separator else self._plain(number)
        return _Cell(number, [_Case(~value.is_finite(), lambda _: named.otherwise(plain))])

    def _plain(self, number: pl.Expr) -> pl.Expr:
        """Return a number as text, with the ordered decimal separator."""
        text = number.cast(pl.String)
        return text.str.replace(".", self._options.decimal_separator, literal=True)

    def _calendar(
        self, value: pl.Expr, column: Column, kind: ColumnKind, type_: pa.DataType, field: str
    ) -> _Cell:
        options = self._options
        patterns = {
            ColumnKind.DATE: ("date_pattern", options.date_pattern),
            ColumnKind.TIME: ("time_pattern", options.time_pattern),
            ColumnKind.TIMESTAMP: ("timestamp_pattern", options.timestamp_pattern),
            ColumnKind.ZONED: ("zoned_pattern", options.zoned_pattern),
        }
        setting, pattern = patterns[kind]
        where = f"format.{setting}"
        if column.pattern is not None:
            where, pattern = f"{field}.pattern", column.pattern
        if fault := strftime_fault(kind, pattern):
            raise InvalidMessage(f"{where}: {fault}", where)
        if options.quoting == "never" and re.search(self._special, sample_text(kind, pattern)):
            raise InvalidMessage(
                f"{where}: {pattern!r} holds a delimiter, quote or line end, and nothing is quoted", where
            )
        cases: list[_Case] = []
        if kind is not ColumnKind.TIME:
            cases.append(_Case(outside(value, type_, self._zone), lambda _: self._never(column, type_)))
        text = (zoned(value, self._zone) if kind is ColumnKind.ZONED else value).dt.strftime(pattern)
        if kind is ColumnKind.DATE:
            tabled = date_texts(value, pattern)
        elif kind is ColumnKind.TIME:
            tabled = None
        else:
            tabled = timestamp_texts(value, type_, pattern, self._zone if kind is ColumnKind.ZONED else None)
        if tabled is None:
            return _Cell(text, cases)
        return _Cell(tabled.text, [_Case(tabled.outside, lambda _: text), *cases])

    def _never(self, column: Column, type_: pa.DataType) -> pl.Expr:
        raise out_of_calendar(column.source, type_, self._zone)

    # --- bytes

    def _write(self, frame: pl.DataFrame, cells: Sequence[_Cell], names: Sequence[str]) -> CsvLines:
        texts = [cell.text for cell in cells]
        for at, case in _met(frame, cells):
            texts[at] = case.then(texts[at])
        rows = frame.select([text.alias(str(at)) for at, text in enumerate(texts)])
        data, replaced = self._bytes(rows), 0
        if _NUL.encode() in data:  # tested here once, instead of in each column
            rows, replaced = self._without_nul(rows, names)
            data = self._bytes(rows)
        data, lost = self._encode(data, rows)
        return CsvLines(data, rows.height, replaced + lost)

    def _bytes(self, rows: pl.DataFrame) -> bytes:
        options = self._options
        if options.quoting == "strings":
            rows = rows.select([self._quoted(at, kind).alias(str(at)) for at, kind in enumerate(rows.dtypes)])
        pieces = Pieces()
        rows.write_csv(
            cast("IO[bytes]", pieces),
            include_header=False,
            separator=options.delimiter,
            line_terminator=options.line_end,
            quote_char=options.quote,
            quote_style=_STYLES[options.quoting],
            null_value=options.null_text,
            decimal_comma=options.decimal_separator == "," and self._writes_point,
            batch_size=max(1, rows.height),
        )
        return b"".join(pieces.pieces)

    def _quoted(self, at: int, kind: pl.DataType) -> pl.Expr:
        """Return a column with quotes around all values but numbers and nulls."""
        if kind.is_numeric():
            return pl.col(str(at))
        quote, text = self._options.quote, pl.col(str(at)).cast(pl.String)
        quoted = pl.concat_str(
            pl.lit(quote), text.str.replace_all(quote, quote * 2, literal=True), pl.lit(quote)
        )
        if self._framer.kinds[at] not in _NUMBERS:
            return quoted
        return pl.when(text.str.contains(self._special)).then(quoted).otherwise(text)

    def _without_nul(self, rows: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, int]:
        """Return the rows without NULs in their texts, and the number of values that held some."""
        texts = [pl.col(name) for name, kind in rows.schema.items() if kind == pl.String]
        found = rows.select([text.str.contains(_NUL, literal=True).sum() for text in texts])
        held = {name: count for name, count in found.row(0, named=True).items() if count}
        if held and self._options.unfit == "error":
            name = names[int(next(iter(held)))]
            raise UnwritableColumn(f"column {name!r} holds a NUL; mend it, or set format.unfit", name)
        filler = self._filler if self._options.unfit == "replace" else ""
        mended = [pl.col(name).str.replace_all(_NUL, filler, literal=True) for name in held]
        return rows.with_columns(mended), sum(held.values())

    def _encode(self, data: bytes, rows: pl.DataFrame) -> tuple[bytes, int]:
        if self._codec == "utf-8":
            return data, 0
        text = data.decode()
        try:
            return text.encode(self._codec), 0
        except UnicodeEncodeError as error:
            if self._options.unfit == "error":
                raise self._lacks(text[error.start], rows) from error
        fewer = text.encode(self._codec, "ignore")
        filled = text.encode(self._codec, "replace")
        lost = len(filled) - len(fewer)
        return (filled if self._options.unfit == "replace" else fewer), lost

    def _lacks(self, character: str, rows: pl.DataFrame) -> UnwritableColumn:
        tests = [
            pl.col(name).str.contains(character, literal=True) if kind == pl.String else pl.lit(False)
            for name, kind in rows.schema.items()
        ]
        found = any_of(rows, tests)
        name = self._columns[found.index(True)].source if True in found else ""
        encoding = self._options.encoding
        return UnwritableColumn(
            f"column {name!r} holds {character!r}, which {encoding} lacks; order utf-8, or set format.unfit",
            name,
        )


def _met(frame: pl.DataFrame, cells: Sequence[_Cell]) -> list[tuple[int, _Case]]:
    """Return the cases that are met, with the columns' positions."""
    suspects = [(at, cell.suspect) for at, cell in enumerate(cells) if cell.suspect is not None]
    cases = [(at, case) for at, cell in enumerate(cells) if cell.suspect is None for case in cell.cases]
    found = any_of(frame, [suspect for _, suspect in suspects] + [case.met for _, case in cases])
    met = [case for case, is_met in zip(cases, found[len(suspects) :], strict=True) if is_met]
    suspected = [at for (at, _), is_suspect in zip(suspects, found, strict=False) if is_suspect]
    cases = [(at, case) for at in suspected for case in cells[at].cases]
    found = any_of(frame, [case.met for _, case in cases])
    return met + [case for case, is_met in zip(cases, found, strict=True) if is_met]


class Pieces:
    """A file for Polars to write to. A Python buffer would copy each byte twice."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.pieces.append(data)
        return len(data)


@functools.lru_cache(maxsize=256)
def _header(options: Csv, titles: tuple[str, ...]) -> CsvLines:
    """Return the byte order mark and the header, if they are ordered. Cached: for a small report, nothing
    takes longer."""
    mark = _MARKS.get(options.encoding, b"")
    if not options.header:
        return CsvLines(mark, 0, 0)
    columns = [Column(source=title) for title in titles]
    schema = pa.schema([(title, pa.string()) for title in titles])
    texts = CsvFormat(msgspec.structs.replace(options, header=False), columns, schema, "UTC", "")
    row = pa.record_batch([pa.array([title]) for title in titles], [str(at) for at in range(len(titles))])
    try:
        line = texts.lines(row)
    except UnwritableColumn as error:
        raise UnwritableColumn(f"in the header: {error}", error.column) from error
    return CsvLines(mark + line.data, 0, line.replaced)
