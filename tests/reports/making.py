"""Reports made of small tables, for tests."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from google.protobuf import json_format
from hypothesis import HealthCheck

from holdfast.reports.order import Column, Condition, Csv, ReportOrder, Table, Xlsx, encode
from holdfast.reports.report import Report
from holdfast.reports.wire import OrderMessage

ORDERED_AT = dt.datetime(2024, 3, 1, 23, 30, tzinfo=dt.UTC)
UTC = dt.UTC
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
"""What hypothesis is not to mind: files in one folder for all examples, and a loaded machine."""


def naive(*parts: int) -> dt.datetime:
    """A time without a zone."""
    return dt.datetime(*parts, tzinfo=dt.UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


EVERY_TYPE = pa.table(
    {
        "bool": pa.array([True, False, None]),
        "int8": pa.array([-128, 127, None], pa.int8()),
        "uint64": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "int64": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "float16": pa.array([0.5, -2.0, None], pa.float16()),
        "float32": pa.array([0.1, 1e30, None], pa.float32()),
        "float64": pa.array([0.1, -1e300, None]),
        "decimal": pa.array(
            [decimal.Decimal("-0.50"), decimal.Decimal("12345678.90"), None], pa.decimal128(18, 2)
        ),
        "decimal38": pa.array([decimal.Decimal("9" * 38), decimal.Decimal(1), None], pa.decimal128(38, 0)),
        "decimal32": pa.array([decimal.Decimal("1.5"), decimal.Decimal("-2.5"), None], pa.decimal32(5, 1)),
        "decimal256": pa.array([decimal.Decimal("9" * 60), decimal.Decimal(1), None], pa.decimal256(60, 0)),
        "date32": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        "date64": pa.array([dt.date(2024, 2, 29), dt.date(1970, 1, 1), None], pa.date64()),
        "time": pa.array([dt.time(0), dt.time(23, 59, 59, 999999), None], pa.time64("us")),
        "seconds": pa.array([naive(2024, 1, 1, 12), naive(1900, 1, 1), None], pa.timestamp("s")),
        "nanoseconds": pa.array([1, 1_700_000_000_123_456_789, None], pa.timestamp("ns")),
        "zoned": pa.array(
            [dt.datetime(2024, 1, 1, 12, tzinfo=UTC), dt.datetime(2024, 7, 1, 12, 0, 0, 5000, UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "duration": pa.array([dt.timedelta(hours=25, seconds=1.5), dt.timedelta(0), None], pa.duration("us")),
        "string": pa.array(["Grüße, „Ω“", "", None]),
        "large_string": pa.array(["a", "b", None], pa.large_string()),
        "string_view": pa.array(["a", "longer than twelve bytes", None], pa.string_view()),
        "dictionary": pa.array(["x", "y", None]).dictionary_encode(),
        "binary": pa.array([b"\x00\xff", b"", None]),
        "fixed": pa.array([b"abcd", b"\x00\x01\x02\x03", None], pa.binary(4)),
        "list": pa.array([[1, None, 3], [], None], pa.list_(pa.int64())),
        "struct": pa.array(
            [{"d": dt.date(2024, 1, 1), "n": decimal.Decimal("1.10")}, {"d": None, "n": None}, None],
            pa.struct([("d", pa.date32()), ("n", pa.decimal128(5, 2))]),
        ),
        "map": pa.array([[("k", 1), ("l", 2)], [], None], pa.map_(pa.string(), pa.int64())),
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes, None], pa.binary(16))
        ),
        "null": pa.nulls(3),
    }
)


def stored(folder: Path, table: pa.Table | dict[str, Any], name: str = "t.parquet", **options: Any) -> str:
    """The path of a file of the table: Arrow or ORC by its suffix, else Parquet."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = table if isinstance(table, pa.Table) else pa.table(table)
    match path.suffix:
        case ".arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
        case ".orc":
            pyarrow.orc.write_table(rows, str(path))
        case _:
            pq.write_table(rows, path, **options)
    return str(path)


def read_of(source: str, *columns: str, where: tuple[Any, ...] = (), **fields: Any) -> Table:
    """A table of one source, with columns by name and conditions as ``(column, op, value)``."""
    return Table(
        sources=(source,),
        columns=tuple(Column(source=name) for name in columns),
        filter=tuple(Condition(column=name, op=op, value=value) for name, op, value in where),
        **fields,
    )


def protobuf_of(order: ReportOrder) -> Any:
    """The protobuf message of an order, as a program of another language would fill it."""

    def value(plain: Any) -> dict[str, Any]:
        return {{bool: "truth", int: "integer", float: "number", str: "text"}[type(plain)]: plain}

    plain = json.loads(encode(order))
    form = plain.pop("format", {"type": "csv"})
    plain[form.pop("type")] = form
    for condition in (each for table in plain["tables"] for each in table.get("filter", ())):
        given = condition.pop("value", [])
        condition["value"] = [value(one) for one in (given if isinstance(given, list) else [given])]
    if "options" in plain.get("delivery", {}):
        options = plain["delivery"]["options"]
        plain["delivery"]["options"] = {name: value(option) for name, option in options.items()}
    return json_format.ParseDict(plain, OrderMessage())


def ordered(*tables: Table | str, form: Csv | Xlsx | None = None, **fields: Any) -> ReportOrder:
    """An order of tables, or of the files at paths."""
    return ReportOrder(
        customer=fields.pop("customer", "acme"),
        report=fields.pop("report", "sales"),
        tables=tuple(Table(sources=(table,)) if isinstance(table, str) else table for table in tables),
        name=fields.pop("name", "{report}-{date}"),
        format=form if form is not None else Csv(),
        **fields,
    )


def made(order: ReportOrder, threads: int = 2) -> list[bytes]:
    """The bytes of an order's files."""
    with Report(order, ordered_at=ORDERED_AT, threads=threads) as report:
        return [b"".join(file.chunks) for file in report.files()]


def csv_of(table: Table | str, **options: Any) -> str:
    """The one file of a CSV order, as text."""
    (data,) = made(ordered(table, form=Csv(**options)))
    return data.decode()
