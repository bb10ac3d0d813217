"""Values as text, by expressions over columns."""

from __future__ import annotations

import datetime as dt

import polars as pl
import polars.exceptions
import pyarrow as pa

from holdfast.reports.formats.kinds import ColumnKind

_DECIMAL_DIGITS = 38
_FIRST, _LAST = dt.date(1, 1, 1), dt.date(9999, 12, 31)
_EPOCH = dt.date(1970, 1, 1)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_MARGIN_S = _DAY_S
"""A zone can shift a time by a day at most."""

_SAMPLES: dict[ColumnKind, pl.Series] = {
    ColumnKind.DATE: pl.Series([_EPOCH], dtype=pl.Date),
    ColumnKind.TIME: pl.Series([dt.time(0)], dtype=pl.Time),
    ColumnKind.TIMESTAMP: pl.Series([0], dtype=pl.Int64).cast(pl.Datetime("us")),
    ColumnKind.ZONED: pl.Series([0], dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
}


def strftime_fault(kind: ColumnKind, pattern: str) -> str:
    """Return why the pattern can't be used for values of this kind; an empty text if it can."""
    try:
        _SAMPLES[kind].dt.strftime(pattern)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException):
        return f"{pattern!r} is no pattern for a {kind.value}"
    return ""


def sample_text(kind: ColumnKind, pattern: str) -> str:
    """Return a value of this kind by a pattern that can be used."""
    return str(_SAMPLES[kind].dt.strftime(pattern)[0])


def zoned(value: pl.Expr, zone: str) -> pl.Expr:
    """The same instants in another zone."""
    return value.dt.convert_time_zone(zone)


def out_of_calendar(value: pl.Expr, type_: pa.DataType) -> pl.Expr:
    """Dates and timestamps that aren't in the years 1 to 9999."""
    first, last = ((day - _EPOCH).days for day in (_FIRST, _LAST))
    if pa.types.is_timestamp(type_):
        # Polars knows no whole seconds: Arrow's become milliseconds.
        unit = _UNITS["ms" if type_.unit == "s" else type_.unit]
        first = (first * _DAY_S + _MARGIN_S) * unit
        last = ((last + 1) * _DAY_S - _MARGIN_S) * unit - 1
        first, last = max(first, -(2**63)), min(last, 2**63 - 1)
    return ~value.to_physical().is_between(first, last)


def encoded_binary(value: pl.Expr, how: str) -> pl.Expr:
    """Bytes as base64 or hex."""
    return value.bin.encode("hex" if how == "hex" else "base64")


def decimal_text(value: pl.Expr, decimals: int) -> pl.Expr:
    """A decimal with so many digits after the point, rounded half to even."""
    return value.round(decimals, mode="half_to_even").cast(pl.Decimal(_DECIMAL_DIGITS, decimals))


def float_text(value: pl.Expr, decimals: int) -> pl.Expr:
    """A float with so many digits after the point, rounded from its exact value, half to even."""

    def write(floats: pl.Series) -> pl.Series:
        form = f".{decimals}f"
        texts = [None if number is None else format(number, form) for number in floats]
        return pl.Series(floats.name, texts, dtype=pl.String)

    return value.map_batches(write, return_dtype=pl.String)


def spaced_thousands(number: pl.Expr, separator: str, point: str) -> pl.Expr:
    """A number's text, its whole digits in threes."""
    parts = number.cast(pl.String).str.extract_groups(r"^(-?)(\d+)(.*)$").struct
    whole = parts.field("2").str.reverse().str.replace_all(r"(\d{3})", f"${{1}}{separator}").str.reverse()
    rest = parts.field("3").str.replace(".", point, literal=True)
    return pl.concat_str(parts.field("1"), whole.str.strip_prefix(separator), rest)
