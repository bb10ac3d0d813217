"""Conditions of an order as Arrow expressions."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidMessage
from holdfast.reports.order import Condition
from holdfast.reports.sources.types import plain

_COMPARE: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def expression(condition: Condition, kind: pa.DataType, field: str) -> pc.Expression:
    """Return a condition on a column of this type as an expression. Raises InvalidMessage naming
    ``field``."""
    column = pc.field(condition.column)
    if condition.op == "is null":
        return column.is_null()
    if condition.op == "is not null":
        return column.is_valid()
    if pa.types.is_nested(kind):
        raise InvalidMessage(f"{field}: {condition.column} is of type {kind}, which can't be compared", field)
    if isinstance(kind, pa.UuidType):
        column = column.cast(kind.storage_type)  # Arrow compares bytes, which are in the order of their text
    if isinstance(condition.value, list):
        values = [_value(one, kind, field) for one in condition.value]
        found = column.isin(
            pa.array(values, values[0].type)
        )  # not Python values, whose times lack nanoseconds
        return found if condition.op == "in" else ~found & column.is_valid()
    return _COMPARE[condition.op](column, pc.scalar(_value(condition.value, kind, field)))


def all_of(expressions: list[pc.Expression]) -> pc.Expression | None:
    """Return the expression that requires all of the given ones; None without any."""
    return reduce(operator.and_, expressions) if expressions else None


def _value(value: object, kind: pa.DataType, field: str) -> pa.Scalar:
    try:
        if isinstance(kind, pa.UuidType) and isinstance(value, str):
            return pa.scalar(uuid.UUID(value).bytes, kind.storage_type)
        if pa.types.is_time(kind) and isinstance(value, str):
            return pa.scalar(f"1970-01-01T{value}").cast(pa.timestamp("ns")).cast(kind)
        if pa.types.is_time32(kind) and _is_integer(value):
            return pa.scalar(value, pa.int32()).cast(kind)
        if isinstance(value, float) and not pa.types.is_floating(kind):
            return pa.scalar(repr(value)).cast(kind)  # exactly 0.1, not the nearest binary fraction
        if _is_integer(value) and (pa.types.is_decimal(kind) or not -(2**63) <= value < 2**63):
            return pa.scalar(str(value)).cast(kind)  # as an int64, it would need room for 19 digits
        return pa.scalar(value).cast(kind)
    except (ValueError, OverflowError, pa.ArrowNotImplementedError) as error:  # ArrowInvalid is a ValueError
        raise InvalidMessage(f"{field}: {value!r} isn't a value of type {kind} ({error})", field) from error


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def applies(condition: Condition, keep: pc.Expression, column: pa.Field) -> bool:
    """Return whether Arrow can compare the stored column, and its statistics, with a condition. ``keep`` is
    the condition as an expression."""
    if isinstance(column.type, pa.UuidType):
        return False  # only its bytes can be compared
    if pa.types.is_floating(plain(column.type)) and condition.op in ("!=", "not in"):
        return False  # statistics leave out NaN, which differs from every value
    if pa.types.is_float16(column.type):
        return False  # its values are compared as their shortest text
    try:
        pa.schema([column]).empty_table().filter(keep)
    except pa.ArrowNotImplementedError:
        return False
    return True


def partition_holds(
    conditions: list[pc.Expression], values: Mapping[str, str | None], types: Mapping[str, pa.DataType]
) -> bool:
    """Return whether a file may hold rows that fulfil conditions on the columns that its folders name."""
    keep = all_of(conditions)
    if keep is None:
        return True
    row = pa.table({name: pa.array([value], pa.string()).cast(types[name]) for name, value in values.items()})
    return bool(row.filter(keep).num_rows)
