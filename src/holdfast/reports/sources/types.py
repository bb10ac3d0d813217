"""Types of columns: equal ones, and their names in orders."""

from __future__ import annotations

import re

import pyarrow as pa

from holdfast.errors import InvalidMessage
from holdfast.reports.floats import HALF, shortest

_NAMED: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp(utc)": pa.timestamp("us", "UTC"),
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_PRECISION_MAX = 38
_WIDE_PRECISION_MAX = 76


def type_named(name: str, field: str) -> pa.DataType:
    """Return the type of a name in an order. Raises InvalidMessage that names ``field``."""
    if found := _NAMED.get(name):
        return found
    if (decimal := _DECIMAL.fullmatch(name)) and 0 < int(decimal[1]) <= _PRECISION_MAX:
        return pa.decimal128(int(decimal[1]), min(int(decimal[2]), int(decimal[1])))
    known = ", ".join(_NAMED)
    raise InvalidMessage(f"{field}: {name!r} isn't a type; types are {known} and decimal(p,s)", field)


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values, without a way of storage such as a dictionary."""
    t = pa.types
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json":
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.bool8":
        return pa.bool_()
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_float16(kind):
        return pa.float32()
    if t.is_date64(kind):
        return pa.date32()
    if t.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")  # the same instants, also if the zone's name is unknown
    if t.is_decimal(kind):
        return _plain_decimal(kind)
    return kind


def _plain_decimal(kind: pa.DataType) -> pa.DataType:
    """Return a decimal type with a scale of 0 or more, of 128 bits if that is enough."""
    precision, scale = kind.precision - min(0, kind.scale), max(0, kind.scale)
    if precision <= _PRECISION_MAX:
        return pa.decimal128(precision, scale)
    return pa.decimal256(precision, scale) if precision <= _WIDE_PRECISION_MAX else kind


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array as a plain type. Raises ArrowInvalid if a value would change."""
    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_run_end_encoded(array.type):
        array = pa.compute.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_fixed_size_binary(array.type) and kind == pa.binary():
        return array.cast(kind)
    if pa.types.is_float16(array.type):
        floats = [None if value is None else shortest(value, HALF) for value in array.to_pylist()]
        array = pa.array(floats, pa.float64()).cast(pa.float32(), safe=False)
    return array if array.type == kind else array.cast(kind)
