"""Cells of a sheet as XML (ECMA-376 part 1, 18.3.1.4), by Polars expressions.

A row is one text, made of literals, the row's number and the values' texts. A batch is first tested for rare
values (a null, a character to escape, a number that Excel can't hold), and only then they are handled.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from holdfast.reports.faults import UnwritableColumn
from holdfast.reports.formats.formulas import looks_like_formula
from holdfast.reports.formats.kinds import ColumnKind
from holdfast.reports.formats.styles import Styles
from holdfast.reports.formats.texts import (
    LAST_DATE,
    decimal_text,
    encoded_binary,
    out_of_calendar,
    outside,
    rounded_float,
    zoned,
)
from holdfast.reports.order import CELL_CHARACTERS_MAX, Column, Unfit, Xlsx

DIGITS_MAX = 15
"""Significant digits of a number in Excel, which computes with binary floats."""

_UNFIT = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x{fffe}\x{ffff}]"
_UNFIT_TITLE = r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"
_ESCAPED = r"[&<>\r]|_x[0-9A-Fa-f]{4}_"
_ESCAPE_LIKE = r"_(x[0-9A-Fa-f]{4}_)"
_TEXT = ' t="inlineStr"><is><t xml:space="preserve">'
_TEXT_END = "</t></is></c>"
_DAY_0 = (dt.date(1970, 1, 1) - dt.date(1899, 12, 30)).days
"""The number of 1970-01-01 in Excel, whose days count from 1899-12-30 from March 1900 on."""

_FIRST_DATE = dt.date(1900, 3, 1)
_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True, slots=True)
class Case:
    """A rare case in a column: its test ``met``, an exact test ``confirm`` if that one is only cheap, and the
    function that changes the values' text, or the cell (from the row's number, the value's text and the usual
    cell).
    ``counts``: the values that meet it count as replaced."""

    met: pl.Expr
    confirm: pl.Expr | None = None
    value: Callable[[pl.Expr], pl.Expr] | None = None
    cell: Callable[[pl.Expr, pl.Expr, pl.Expr], pl.Expr] | None = None
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """The cells of one column: ``start`` comes between the reference and the value's text."""

    letters: str
    value: pl.Expr
    start: str
    end: str
    cases: Sequence[Case] = ()

    def parts(self, row: pl.Expr, value: pl.Expr) -> list[str | pl.Expr]:
        """Return the cell's text, in parts."""
        return [f'<c r="{self.letters}', row, f'"{self.start}', value, self.end]


def letters(at: int) -> str:
    """Return the name of a sheet's column: A, B, … Z, AA, …"""
    name = ""
    at += 1
    while at:
        at, digit = divmod(at - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def fit_title(title: str, unfit: Unfit) -> str:
    """Return a title without characters that XML lacks. Raises UnwritableColumn if the order says so."""
    if unfit == "error" and re.search(_UNFIT_TITLE, title):
        raise UnwritableColumn(
            f"in the header: column {title!r} holds a control character, which XLSX lacks;"
            " give it another title, or set format.unfit",
            title,
        )
    return re.sub(_UNFIT_TITLE, "\ufffd" if unfit == "replace" else "", title)


def text_xml(text: str) -> str:
    """Return a text, without characters that XML lacks, as an element's content."""
    text = re.sub("(?i)" + _ESCAPE_LIKE, r"_x005F_\1", text)
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return re.sub(r"[\r\n]", lambda found: f"&#{ord(found[0])};", text)


class Cells:
    """Makes the cells of a table's columns.

    Args:
        zone: the time zone of timestamps with a zone; Excel has no zones.
        styles: the workbook's styles, to which this adds.
    """

    def __init__(self, options: Xlsx, zone: str, styles: Styles) -> None:
        self._options = options
        self._zone = zone
        self._styles = styles

    def cell(self, at: int, column: Column, kind: ColumnKind, type_: pa.DataType) -> Cell:
        value, name = pl.col(str(at)), letters(at)
        match kind:
            case ColumnKind.TEXT | ColumnKind.NESTED | ColumnKind.UUID:
                return self._text(name, value, column)
            case ColumnKind.BINARY:
                return self._text(name, encoded_binary(value, self._options.binary), column)
            case ColumnKind.NULL:
                return Cell(name, pl.lit(None, pl.String), "", "")
            case ColumnKind.BOOLEAN:
                return Cell(name, value.cast(pl.Int8).cast(pl.String), ' t="b"><v>', "</v></c>")
        style = self._styles.number(self._format(column, kind, type_))
        start = f' s="{style}"><v>' if style else "><v>"
        text, cases = self._number(name, column, kind, type_, value)
        return Cell(name, text, start, "</v></c>", cases)

    # --- texts

    def _text(self, name: str, value: pl.Expr, column: Column) -> Cell:
        cases = [
            Case(value.str.contains(_UNFIT), value=lambda text: self._fit(text, column.source), counts=True),
            Case(
                value.str.len_bytes() > CELL_CHARACTERS_MAX,
                confirm=_utf16_length(value) > CELL_CHARACTERS_MAX,
                value=lambda text: self._short(text, column.source),
            ),
            Case(value.str.contains(_ESCAPED), value=_escaped),
        ]
        if self._options.formulas == "guard":
            quoted = f' s="{self._styles.quoted()}"{_TEXT}'  # as Excel does with a leading apostrophe
            cases.append(_as_text(name, looks_like_formula(value), start=quoted))
        return Cell(name, value, _TEXT, _TEXT_END, cases)

    def _fit(self, text: pl.Expr, name: str) -> pl.Expr:
        if self._options.unfit == "error":
            raise UnwritableColumn(
                f"column {name!r} holds a control character, which XLSX lacks; mend it, or set format.unfit",
                name,
            )
        return text.str.replace_all(_UNFIT, "\ufffd" if self._options.unfit == "replace" else "")

    def _short(self, text: pl.Expr, name: str) -> pl.Expr:
        if self._options.long_text == "error":
            raise UnwritableColumn(
                f"column {name!r} holds a text of more than {CELL_CHARACTERS_MAX:,} characters;"
                " leave it out, or set format.long_text to 'cut'",
                name,
            )
        return text.map_batches(_cut, return_dtype=pl.String)

    # --- numbers

    def _number(
        self, name: str, column: Column, kind: ColumnKind, type_: pa.DataType, value: pl.Expr
    ) -> tuple[pl.Expr, list[Case]]:
        """Return the value's text, and the cases of values that can't be numbers in Excel."""
        text = value.cast(pl.String)
        decimals = column.decimals
        match kind:
            case ColumnKind.INTEGER:
                limit = 10**DIGITS_MAX - 1
                if type_.bit_width < 64:
                    return text, []
                return text, self._long(name, column, ~value.is_between(-limit, limit), text)
            case ColumnKind.DECIMAL:
                scale = type_.scale if decimals is None else decimals
                if decimals is not None:
                    text = decimal_text(value, type_, decimals).cast(pl.String)
                carried = decimals is not None  # 9.99 becomes 10.0
                if type_.precision - type_.scale + scale + carried <= DIGITS_MAX:
                    return text, []
                exact = text.str.strip_chars_end("0") if scale > 0 else text
                digits = exact.str.replace_all(r"[-.]", "").str.strip_chars_start("0").str.len_bytes()
                return text, self._long(name, column, digits > DIGITS_MAX, text)
            case ColumnKind.FLOAT:
                number = value if decimals is None else rounded_float(value, decimals)
                return number.cast(pl.String), [_as_text(name, ~value.is_finite(), text)]
            case ColumnKind.DATE:
                iso = value.dt.strftime("%Y-%m-%d")
                days = (value.to_physical() + _DAY_0).cast(pl.String)
                return days, self._calendar_cases(name, column, type_, value, iso)
            case ColumnKind.TIME:
                return (value.to_physical() / _DAY["ns"]).cast(pl.String), []
            case ColumnKind.DURATION:
                days = value.to_physical() / _DAY[_unit(type_)]
                return days.cast(pl.String), [_as_text(name, days < 0, value.dt.to_string("iso"))]
        local = value
        if kind is ColumnKind.ZONED:
            local = zoned(value, self._zone).dt.replace_time_zone(None)
        iso = local.dt.strftime("%Y-%m-%dT%H:%M:%S%.f")
        days = (local.to_physical() / _DAY[_unit(type_)] + _DAY_0).cast(pl.String)
        return days, self._calendar_cases(name, column, type_, value, iso)

    def _calendar_cases(
        self, name: str, column: Column, type_: pa.DataType, value: pl.Expr, iso: pl.Expr
    ) -> list[Case]:
        def refuse(_: pl.Expr) -> pl.Expr:
            raise out_of_calendar(column.source, type_, self._zone)

        no_date = outside(value, type_, self._zone, _FIRST_DATE, LAST_DATE)
        return [Case(outside(value, type_, self._zone), value=refuse), _as_text(name, no_date, iso)]

    def _long(self, name: str, column: Column, met: pl.Expr, text: pl.Expr) -> list[Case]:
        match self._options.long_numbers:
            case "number":
                return []
            case "text":
                return [_as_text(name, met, text)]
        return [Case(met, value=lambda _: _too_many_digits(column.source))]

    def _format(self, column: Column, kind: ColumnKind, type_: pa.DataType) -> str:
        if column.number_format is not None:
            return column.number_format
        options = self._options
        decimals = column.decimals
        if decimals is None and kind is ColumnKind.DECIMAL:
            decimals = max(0, type_.scale)
        if decimals is not None and kind in (ColumnKind.DECIMAL, ColumnKind.FLOAT):
            return f"0.{'0' * decimals}" if decimals else "0"
        return {
            ColumnKind.INTEGER: "0",
            ColumnKind.DATE: options.date_format,
            ColumnKind.TIME: options.time_format,
            ColumnKind.TIMESTAMP: options.timestamp_format,
            ColumnKind.ZONED: options.timestamp_format,
            ColumnKind.DURATION: options.duration_format,
        }.get(kind, "")


def _as_text(name: str, met: pl.Expr, text: pl.Expr | None = None, start: str = _TEXT) -> Case:

    def cell(row: pl.Expr, value: pl.Expr, whole: pl.Expr) -> pl.Expr:
        held = value if text is None else text
        instead = pl.concat_str(pl.lit(f'<c r="{name}'), row, pl.lit(f'"{start}'), held, pl.lit(_TEXT_END))
        return pl.when(met).then(instead).otherwise(whole)

    return Case(met, cell=cell)


def _too_many_digits(name: str) -> pl.Expr:
    raise UnwritableColumn(
        f"column {name!r} holds a number of more than {DIGITS_MAX} digits, which Excel would round;"
        " set format.long_numbers to 'text'",
        name,
    )


def _unit(type_: pa.DataType) -> str:
    return "ms" if type_.unit == "s" else str(type_.unit)


def _escaped(text: pl.Expr) -> pl.Expr:
    text = text.str.replace_all(_ESCAPE_LIKE, "_x005F_${1}")
    return text.str.replace_many(["&", "<", ">", "\r"], ["&amp;", "&lt;", "&gt;", "&#13;"])


def _utf16_length(text: pl.Expr) -> pl.Expr:
    """Return the number of UTF-16 code units, by which Excel counts characters."""
    return text.str.len_chars() + text.str.count_matches(r"[\x{10000}-\x{10ffff}]")


def _cut(values: pl.Series) -> pl.Series:
    """Cut texts to the UTF-16 units that a cell holds."""
    return pl.Series(values.name, [None if text is None else _cut_one(text) for text in values], pl.String)


def _cut_one(text: str) -> str:
    if len(text) * 2 <= CELL_CHARACTERS_MAX:
        return text
    return text.encode("utf-16-le")[: 2 * CELL_CHARACTERS_MAX].decode("utf-16-le", "ignore")
