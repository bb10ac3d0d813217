"""The kinds of columns, and their values in the form that all formats start from."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl
import polars.exceptions
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidMessage
from holdfast.reports.faults import UnwritableColumn
from holdfast.reports.floats import HALF, SINGLE, shortest
from holdfast.reports.order import Column, Unfit


class ColumnKind(enum.Enum):
    """The kind of a column's values."""

    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    ZONED = "timestamp with a zone"
    DURATION = "duration"
    TEXT = "text"
    BINARY = "binary"
    NESTED = "nested"
    UUID = "uuid"
    NULL = "null"


class PreparedRows(NamedTuple):
    """Rows ready to be formatted. ``columns`` are named ``0``, ``1``, …; nested values are JSON text, and
    decimals of 256 bits are text with all their digits. ``replaced`` counts the values whose bytes weren't
    text."""

    columns: pl.DataFrame
    replaced: int = 0


def kind_of(name: str, type_: pa.DataType) -> ColumnKind:
    """Return the kind of a column. Raises UnwritableColumn for a type without a text."""
    t = pa.types
    for holds, kind in (
        (t.is_boolean, ColumnKind.BOOLEAN),
        (t.is_integer, ColumnKind.INTEGER),
        (t.is_floating, ColumnKind.FLOAT),
        (t.is_decimal, ColumnKind.DECIMAL),
        (t.is_date, ColumnKind.DATE),
        (t.is_time, ColumnKind.TIME),
        (t.is_duration, ColumnKind.DURATION),
        (t.is_string, ColumnKind.TEXT),
        (t.is_binary, ColumnKind.BINARY),
        (t.is_null, ColumnKind.NULL),
    ):
        if holds(type_):
            return kind
    if t.is_timestamp(type_):
        return ColumnKind.ZONED if type_.tz is not None else ColumnKind.TIMESTAMP
    if isinstance(type_, pa.UuidType):
        return ColumnKind.UUID
    if t.is_nested(type_) and not t.is_union(type_):
        _shape(name, type_)  # raises for an unwritable inner type
        return ColumnKind.NESTED
    raise UnwritableColumn(
        f"column {name!r} is of type {type_}, which has no text; leave it out or cast it in the query", name
    )


NUMBERS_WITH_A_POINT = frozenset({ColumnKind.FLOAT, ColumnKind.DECIMAL})
CALENDAR = frozenset({ColumnKind.DATE, ColumnKind.TIME, ColumnKind.TIMESTAMP, ColumnKind.ZONED})


def check_columns(columns: Sequence[Column], kinds: Sequence[ColumnKind], field: str) -> None:
    """Raise InvalidMessage for a column's option that its kind doesn't have."""
    for at, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        for setting, fits in (("decimals", NUMBERS_WITH_A_POINT), ("pattern", CALENDAR)):
            if getattr(column, setting) is not None and kind not in fits:
                where = f"{field}.columns[{at}].{setting}"
                raise InvalidMessage(f"{where}: {column.source!r} is {kind.value}, which has none", where)


class Framer:
    """Makes frames of the batches of one table.

    Args:
        schema: names and types of the columns, as :class:`TableReader` has them.
        unfit: the rule for bytes in text columns that aren't UTF-8, such as lone surrogates.
        zone: the time zone of nested timestamps with a zone.
    """

    def __init__(self, schema: pa.Schema, unfit: Unfit, zone: str) -> None:
        self.kinds = [kind_of(column.name, column.type) for column in schema]
        if ColumnKind.ZONED in self.kinds:
            _check_zone(zone)
        self._schema = schema
        self._unfit = unfit
        self._json = {
            at: _Json(column.name, column.type, zone)
            for at, (column, kind) in enumerate(zip(schema, self.kinds, strict=True))
            if kind is ColumnKind.NESTED
        }

    def frame(self, batch: pa.RecordBatch) -> PreparedRows:
        """Return the batch ready to be formatted. Raises UnwritableColumn that names the column."""
        arrays: list[pa.Array] = []
        replaced = 0
        for at, (column, kind, array) in enumerate(zip(self._schema, self.kinds, batch.columns, strict=True)):
            if kind is ColumnKind.NESTED:
                arrays.append(self._json[at].text(array))
            elif kind is ColumnKind.UUID:
                arrays.append(_uuids(array))
            elif pa.types.is_decimal256(column.type):
                arrays.append(_digits(array))
            elif (pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type)) and (
                column.type.unit == "s"
            ):
                arrays.append(_milliseconds(column.name, array))
            elif kind is ColumnKind.TEXT:
                valid, bad = self._valid(column.name, array)
                arrays.append(valid)
                replaced += bad
            else:
                arrays.append(array)
        names = [str(at) for at in range(len(arrays))]
        frame = pl.from_arrow(pa.record_batch(arrays, names))
        assert isinstance(frame, pl.DataFrame)
        return PreparedRows(frame, replaced)

    def _valid(self, name: str, array: pa.Array) -> tuple[pa.Array, int]:
        """Return texts that are valid UTF-8, and how many weren't. Neither Parquet nor Polars checks them."""
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            if self._unfit == "error":
                raise UnwritableColumn(
                    f"column {name!r} holds bytes that aren't UTF-8; mend them, or set format.unfit", name
                ) from error
        else:
            return array, 0
        how = "replace" if self._unfit == "replace" else "ignore"
        raw = array.cast(pa.binary()).to_pylist()
        texts = [None if value is None else value.decode(errors=how) for value in raw]
        bad = sum(text is not None and text.encode() != value for text, value in zip(texts, raw, strict=True))
        return pa.array(texts, pa.string()), bad


def _check_zone(zone: str) -> None:
    """Raise InvalidMessage for a zone that Polars doesn't know, such as ``localtime``."""
    try:
        pl.Series([0], dtype=pl.Int64).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone)
    except polars.exceptions.PolarsError as error:
        raise InvalidMessage(
            f"time_zone: {zone!r} isn't a time zone of all machines; give one such as Europe/Berlin",
            "time_zone",
        ) from error


def _uuids(array: pa.Array) -> pa.Array:
    storage = array.storage.to_pylist()
    return pa.array(
        [None if value is None else str(uuid.UUID(bytes=value)) for value in storage], pa.string()
    )


def _digits(array: pa.Array) -> pa.Array:
    """Return decimals that are too wide for Polars as text."""
    return pa.array(
        [None if value is None else format(value, "f") for value in array.to_pylist()], pa.string()
    )


def _milliseconds(name: str, array: pa.Array) -> pa.Array:
    """Return seconds as Polars' milliseconds. Polars itself wouldn't notice an overflow."""
    kind = pa.duration("ms") if pa.types.is_duration(array.type) else pa.timestamp("ms", array.type.tz)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise UnwritableColumn(
            f"column {name!r} holds a time that can't be written: {error}", name
        ) from error


class _Json:
    """Nested values as JSON: keys in the order of the type, decimals as numbers with all their digits, dates,
    times and durations in ISO 8601 (to the microsecond), binary as base64, NaN and infinities as null."""

    _ENCODER = msgspec.json.Encoder(decimal_format="number", uuid_format="canonical")

    def __init__(self, name: str, type_: pa.DataType, zone: str) -> None:
        self._name = name
        self._shape = _shape(name, type_)
        self._stored = _for_python(type_, zone)

    def text(self, array: pa.Array) -> pa.Array:
        if self._stored != array.type:
            array = pc.cast(array, self._stored, safe=False)
        try:
            values = array.to_pylist()
        except UnicodeDecodeError as error:
            raise UnwritableColumn(
                f"column {self._name!r} holds bytes that aren't UTF-8; mend them in the query", self._name
            ) from error
        except (OverflowError, ValueError) as error:  # such as a date of the year 10000
            raise UnwritableColumn(
                f"column {self._name!r} holds a value that can't be written ({error}); mend it in the query",
                self._name,
            ) from error
        texts = [None if v is None else self._ENCODER.encode(self._shape(v)).decode() for v in values]
        return pa.array(texts, pa.string())


_Change = Callable[[Any], Any]


def _shape(name: str, type_: pa.DataType) -> _Change:
    """Return the function from Arrow's Python values to JSON's values: maps become objects. Raises
    UnwritableColumn."""
    t = pa.types
    if isinstance(type_, pa.BaseExtensionType) and not isinstance(type_, pa.UuidType):
        return _shape(name, type_.storage_type)
    if t.is_dictionary(type_) or t.is_run_end_encoded(type_):
        return _shape(name, type_.value_type)
    if t.is_map(type_):
        return _map_shape(name, _shape(name, type_.key_type), _shape(name, type_.item_type))
    if t.is_struct(type_):
        if len({field.name for field in type_}) < type_.num_fields:
            raise UnwritableColumn(
                f"column {name!r} is of type {type_}, in which two fields have one name; rename one", name
            )
        fields = [(field.name, _shape(name, field.type)) for field in type_]
        return lambda row: None if row is None else {field: shape(row[field]) for field, shape in fields}
    if t.is_nested(type_) and not t.is_union(type_):
        each = _shape(name, type_.value_type)
        return lambda values: None if values is None else [each(value) for value in values]
    if t.is_union(type_) or t.is_interval(type_):
        raise UnwritableColumn(
            f"column {name!r} holds values of type {type_}, which have no text; leave it out", name
        )
    for is_short, form in ((t.is_float16, HALF), (t.is_float32, SINGLE)):
        if is_short(type_):
            return lambda value: None if value is None else shortest(value, form)
    return lambda value: value


def _map_shape(name: str, key: _Change, item: _Change) -> _Change:
    def shaped(pairs: Any) -> Any:
        if pairs is None:
            return None
        values = {_key(key(k)): item(v) for k, v in pairs}
        if len(values) < len(pairs):
            raise UnwritableColumn(
                f"column {name!r} holds a map with a key twice, of which JSON would show one;"
                " mend it in the query",
                name,
            )
        return values

    return shaped


def _key(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode().strip('"')


def _for_python(type_: pa.DataType, zone: str) -> pa.DataType:
    """Return the type without nanoseconds, which Python's dates lack, and with times in the report's zone."""
    t = pa.types
    if t.is_timestamp(type_):
        unit = "us" if type_.unit == "ns" else type_.unit
        return pa.timestamp(unit, None if type_.tz is None else zone)
    if t.is_duration(type_) and type_.unit == "ns":
        return pa.duration("us")
    if t.is_time64(type_) and type_.unit == "ns":
        return pa.time64("us")
    if t.is_struct(type_):
        return pa.struct([field.with_type(_for_python(field.type, zone)) for field in type_])
    if t.is_map(type_):
        return pa.map_(_for_python(type_.key_type, zone), _for_python(type_.item_type, zone))
    if t.is_list(type_):
        return pa.list_(type_.value_field.with_type(_for_python(type_.value_type, zone)))
    if t.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_for_python(type_.value_type, zone)))
    if t.is_fixed_size_list(type_):
        inner = type_.value_field.with_type(_for_python(type_.value_type, zone))
        return pa.list_(inner, type_.list_size)
    return type_


def any_of(frame: pl.DataFrame, tests: Sequence[pl.Expr]) -> list[bool]:
    """Return for each test whether any row passes it, in one pass."""
    if not tests or not frame.height:
        return [False] * len(tests)
    found = frame.select([test.any().alias(str(at)) for at, test in enumerate(tests)])
    return [bool(value) for value in found.row(0)]
