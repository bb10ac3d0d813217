"""Dates and timestamps as text, from tables of days and of seconds of a day: to format each value would take
longer than all numbers of a row."""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from typing import NamedTuple

import polars as pl
import pyarrow as pa

_FIRST, _LAST = dt.date(1900, 1, 1), dt.date(2199, 12, 31)
_FIRST_DAY, _LAST_DAY = ((day - dt.date(1970, 1, 1)).days for day in (_FIRST, _LAST))
_DAY_S = 86_400
_QUARTER_S = 900
_OFFSET_MAX_S = _DAY_S
_UNITS = {"s": 1000, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}  # Polars makes milliseconds of seconds
_DATE = r"(?:%[YmdyjbBaAeuwVGUWFD]|[^%])*"
_TIME = r"(?:%[HMSIpTR]|[^%])*"
_TIMESTAMP = re.compile(rf"({_DATE})({_TIME})(%\.f)?(%:z)?", re.DOTALL)


class Texts(NamedTuple):
    """Texts of dates. ``text`` is wrong for values ``outside`` the tables."""

    text: pl.Expr
    outside: pl.Expr


def date_texts(value: pl.Expr, pattern: str) -> Texts | None:
    """Return the texts of dates by a strftime pattern; None for a pattern that the tables don't support."""
    if not re.fullmatch(_DATE, pattern, re.DOTALL):
        return None
    days = value.to_physical().cast(pl.Int64)
    return Texts(_day(days, pattern), ~days.is_between(_FIRST_DAY, _LAST_DAY))


def timestamp_texts(value: pl.Expr, type_: pa.DataType, pattern: str, zone: str | None) -> Texts | None:
    """Return the texts of timestamps by a strftime pattern, in ``zone`` if they have one; None as above."""
    found = _TIMESTAMP.fullmatch(pattern)
    if found is None:
        return None
    date, time, fraction, offset = found.groups()
    unit = _UNITS[type_.unit]
    instants = value.to_physical()
    outside = ~instants.is_between((_FIRST_DAY + 1) * _DAY_S * unit, _LAST_DAY * _DAY_S * unit)
    local = instants
    if zone not in (None, "UTC"):
        inside = pl.when(~outside).then(value)  # Polars panics on times far beyond the calendar
        local = inside.dt.convert_time_zone(zone).dt.replace_time_zone(None).to_physical()
    seconds = local // unit
    days = seconds // _DAY_S
    parts = [_day(days, date)] if date else []
    if time:
        parts.append(_gather(_times(time), seconds - days * _DAY_S))
    if fraction:
        parts += _fraction(local - seconds * unit, unit)
    if offset and zone == "UTC":
        parts.append(pl.lit("+00:00"))
    elif offset:
        ahead = (local - instants) // unit
        outside |= ahead % _QUARTER_S != 0  # such as before there were time zones
        parts.append(_gather(_offsets(), (ahead + _OFFSET_MAX_S) // _QUARTER_S))
    return Texts(pl.concat_str(parts), outside)


def _day(days: pl.Expr, pattern: str) -> pl.Expr:
    return _gather(_dates(pattern), days.clip(_FIRST_DAY, _LAST_DAY) - _FIRST_DAY)


def _fraction(ticks: pl.Expr, unit: int) -> list[pl.Expr]:
    """Return the groups of three digits, as many as needed, with a point before the first."""
    texts: list[pl.Expr] = []
    while unit > 1:
        rest = unit // 1000
        group = ticks // rest
        left = ticks - group * rest
        # The last text of the table is empty: only zeros are left.
        empty = ticks == 0
        texts.append(_gather(_digits("" if texts else "."), pl.when(empty).then(1000).otherwise(group)))
        ticks, unit = left, rest
    return texts


def _gather(table: pl.Series, at: pl.Expr) -> pl.Expr:
    return pl.lit(table).gather(at.cast(pl.UInt32))


@cache
def _dates(pattern: str) -> pl.Series:
    return pl.date_range(_FIRST, _LAST, eager=True).dt.strftime(pattern)


@cache
def _times(pattern: str) -> pl.Series:
    seconds = pl.int_range(0, _DAY_S, dtype=pl.Int64, eager=True)
    return (seconds * 1_000_000_000).cast(pl.Time).dt.strftime(pattern)


@cache
def _digits(before: str) -> pl.Series:
    return pl.Series([*(f"{before}{number:03}" for number in range(1000)), ""])


@cache
def _offsets() -> pl.Series:
    quarters = range(-_OFFSET_MAX_S // _QUARTER_S, _OFFSET_MAX_S // _QUARTER_S + 1)
    return pl.Series([f"{'-' if at < 0 else '+'}{abs(at) // 4:02}:{abs(at) % 4 * 15:02}" for at in quarters])
