"""Values as text, by Polars expressions."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import polars as pl
import polars.exceptions
import pyarrow as pa

from holdfast.reports.faults import UnwritableColumn
from holdfast.reports.formats.kinds import ColumnKind

_DECIMAL_DIGITS = 38
FIRST_DATE, LAST_DATE = dt.date(1, 1, 1), dt.date(9999, 12, 31)
"""The dates that have a text: their years have four digits."""

_EPOCH = dt.date(1970, 1, 1)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400

_SAMPLES: dict[ColumnKind, pl.Series] = {
    ColumnKind.DATE: pl.Series([_EPOCH], dtype=pl.Date),
    ColumnKind.TIME: pl.Series([dt.time(0)], dtype=pl.Time),
    ColumnKind.TIMESTAMP: pl.Series([0], dtype=pl.Int64).cast(pl.Datetime("us")),
    ColumnKind.ZONED: pl.Series([0], dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
}


def strftime_fault(kind: ColumnKind, pattern: str) -> str:
    """Return why a pattern doesn't suit values of this kind; an empty text if it does."""
    try:
        _SAMPLES[kind].dt.strftime(pattern)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException):
        return f"{pattern!r} isn't a pattern for a {kind.value}"
    return ""


def sample_text(kind: ColumnKind, pattern: str) -> str:
    """Return a sample value of this kind by a valid pattern."""
    return str(_SAMPLES[kind].dt.strftime(pattern)[0])


def zoned(value: pl.Expr, zone: str) -> pl.Expr:
    return value.dt.convert_time_zone(zone)


def outside(
    value: pl.Expr, type_: pa.DataType, zone: str, first: dt.date = FIRST_DATE, last: dt.date = LAST_DATE
) -> pl.Expr:
    """Return an expression that is true for dates and timestamps before ``first`` or after ``last``, by the
    clock of ``zone`` if they have one."""
    start, end = (first - _EPOCH).days, (last - _EPOCH).days
    if pa.types.is_timestamp(type_):
        # Polars has no unit of seconds: Arrow's become milliseconds.
        unit = _UNITS["ms" if type_.unit == "s" else type_.unit]
        start_s, end_s = start * _DAY_S, (end + 1) * _DAY_S
        if type_.tz is not None:
            start_s, end_s = start_s - _ahead_s(start_s, zone), end_s - _ahead_s(end_s, zone)
        start, end = max(start_s * unit, -(2**63)), min(end_s * unit, 2**63) - 1
    return ~value.to_physical().is_between(start, end)


def _ahead_s(second: int, zone: str) -> int:
    """Return the seconds by which the zone's clock is ahead of UTC, by Polars' tables."""
    instant = pl.Series([second * 1000], dtype=pl.Int64).cast(pl.Datetime("ms", "UTC"))
    shown = instant.dt.convert_time_zone(zone).dt.replace_time_zone(None).to_physical()
    return int(shown[0]) // 1000 - second


def out_of_calendar(name: str, type_: pa.DataType, zone: str) -> UnwritableColumn:
    """Return the error of a time that has no text."""
    there = f" in {zone}" if pa.types.is_timestamp(type_) and type_.tz is not None else ""
    return UnwritableColumn(
        f"column {name!r} holds a time before the year 1 or after 9999{there}; filter such rows out", name
    )


def encoded_binary(value: pl.Expr, how: str) -> pl.Expr:
    return value.bin.encode("hex" if how == "hex" else "base64")


def is_wide(type_: pa.DataType, decimals: int | None) -> bool:
    """Return whether a decimal, rounded to ``decimals``, may have more digits than Polars supports. Then it
    is text from the beginning."""
    if decimals is None:
        return bool(type_.precision > _DECIMAL_DIGITS)
    carried = type_.precision - type_.scale + 1  # 9.99 becomes 10.0
    return bool(carried + max(type_.scale, decimals) > _DECIMAL_DIGITS)


def decimal_text(value: pl.Expr, type_: pa.DataType, decimals: int) -> pl.Expr:
    """Return a decimal with ``decimals`` digits after the point, rounded half to even."""
    kind = pl.Decimal(_DECIMAL_DIGITS, decimals)
    if not is_wide(type_, decimals):
        return value.round(decimals, mode="half_to_even").cast(kind)

    def write(numbers: pl.Series) -> pl.Series:
        if isinstance(numbers.dtype, pl.Decimal):
            with contextlib.suppress(
                polars.exceptions.PolarsError
            ):  # few values have more digits than Polars supports
                return numbers.round(decimals, mode="half_to_even").cast(kind).cast(pl.String)
        return _changed(
            numbers, lambda number: format(decimal.Decimal(number), f"z.{decimals}f"), pl.String()
        )

    return value.map_batches(write, return_dtype=pl.String)


def float_text(value: pl.Expr, decimals: int) -> pl.Expr:
    """Return a float with ``decimals`` digits after the point, rounded half to even from its exact value. A
    zero has no sign."""
    return _each(value, lambda number: format(number, f"z.{decimals}f"), pl.String())


def rounded_float(value: pl.Expr, decimals: int) -> pl.Expr:
    """Return the same as a number."""
    return _each(value, lambda number: round(number, decimals) + 0.0, pl.Float64())


def _each(value: pl.Expr, change: Callable[[Any], object], kind: pl.DataType) -> pl.Expr:
    return value.map_batches(lambda values: _changed(values, change, kind), return_dtype=kind)


def _changed(values: pl.Series, change: Callable[[Any], object], kind: pl.DataType) -> pl.Series:
    return pl.Series(values.name, [None if one is None else change(one) for one in values], dtype=kind)


def spaced_thousands(number: pl.Expr, separator: str, point: str) -> pl.Expr:
    """Return a number's text, with its whole digits in groups of three."""
    parts = number.cast(pl.String).str.extract_groups(r"^(-?)(\d+)(.*)$").struct
    whole = parts.field("2").str.reverse().str.replace_all(r"(\d{3})", f"${{1}}{separator}").str.reverse()
    rest = parts.field("3").str.replace(".", point, literal=True)
    return pl.concat_str(parts.field("1"), whole.str.strip_prefix(separator), rest)
