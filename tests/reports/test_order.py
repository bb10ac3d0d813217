"""Orders: what they say, and which are refused by which field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast.errors import InvalidMessage
from holdfast.reports.order import (
    Column,
    Condition,
    Csv,
    ReportDelivery,
    ReportOrder,
    Table,
    Xlsx,
    encode,
    from_plain,
    plain_json,
)

MINIMAL: dict[str, Any] = {
    "customer": "acme",
    "report": "sales",
    "tables": [{"sources": ["/data/sales.parquet"]}],
    "name": "{report}.csv",
}


TABLE = Table(sources=("a.csv",))


def decode(body: bytes) -> ReportOrder:
    return from_plain(plain_json(body))


def order(**changes: Any) -> ReportOrder:
    return decode(json.dumps(MINIMAL | changes).encode())


def test_a_minimal_order_has_the_stated_defaults() -> None:
    decoded = order()
    assert decoded.format == Csv()
    assert decoded.time_zone == "UTC"
    assert decoded.empty == "header"


def test_an_order_with_every_setting_survives_the_wire() -> None:
    full = order(
        format={"type": "xlsx", "overflow": "files", "rows_per_sheet": 1000},
        tables=[
            {
                "sources": ["s3://bucket/a/", "https://host/b.parquet"],
                "columns": [{"source": "a", "title": "A", "decimals": 2}],
                "filter": [{"column": "a", "op": "in", "value": [1, 2]}],
                "sort": [{"column": "a", "descending": True}],
                "types": {"a": "decimal(10,2)"},
                "credentials": "lake",
            }
        ],
        date="2024-03-01",
        delivery={"destination": "sftp://host/in", "credentials": "acme", "companions": ["ok"]},
    )
    assert isinstance(full.format, Xlsx)
    assert decode(encode(full)) == full


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"tables": []}, "tables"),
        ({"tables": [{"sources": []}]}, "tables[0].sources"),
        ({"tables": [{"sources": ["x"], "colums": []}]}, "tables[0]"),
        ({"tables": [{"sources": ["a\0b"]}]}, "tables[0].sources[0]"),
        ({"tables": [{"sources": ["x"]}] * 2}, "tables"),
        ({"tables": [{"sources": ["x"]}] * 2, "format": {"type": "xlsx"}}, "tables[1].name"),
        ({"tables": [{"sources": ["x"], "name": "a/b"}], "format": {"type": "xlsx"}}, "tables[0].name"),
        ({"tables": [{"sources": ["x"], "name": "x" * 32}], "format": {"type": "xlsx"}}, "tables[0].name"),
        (
            {"tables": [{"sources": ["x"], "filter": [{"column": "a", "op": "=", "value": None}]}]},
            "tables[0].filter[0].value",
        ),
        (
            {"tables": [{"sources": ["x"], "filter": [{"column": "a", "op": "in", "value": 3}]}]},
            "tables[0].filter[0].value",
        ),
        (
            {"tables": [{"sources": ["x"], "filter": [{"column": "a", "op": "is null", "value": 3}]}]},
            "tables[0].filter[0].value",
        ),
        (
            {"tables": [{"sources": ["x"], "filter": [{"column": "a", "op": "like"}]}]},
            "tables[0].filter[0].op",
        ),
        ({"format": {"type": "csv", "delimiter": "ab"}}, "format.delimiter"),
        ({"format": {"type": "csv", "delimiter": "\n"}}, "format.delimiter"),
        ({"format": {"type": "csv", "quote": ","}}, "format.quote"),
        ({"format": {"type": "csv", "encoding": "ebcdic"}}, "format.encoding"),
        ({"format": {"type": "csv", "null_text": "a,b"}}, "format.null_text"),
        ({"format": {"type": "csv", "true_text": "x", "false_text": "x"}}, "format.false_text"),
        (
            {"format": {"type": "csv", "decimal_separator": ",", "thousands_separator": ","}},
            "format.thousands_separator",
        ),
        (
            {"format": {"type": "csv", "quoting": "never", "decimal_separator": ","}},
            "format.decimal_separator",
        ),
        ({"format": {"type": "xlsx", "rows_per_sheet": 1_048_577}}, "format.rows_per_sheet"),
        ({"format": {"type": "pdf"}}, "format.type"),
        ({"time_zone": "Mars/Phobos"}, "time_zone"),
        ({"time_zone": "../etc/passwd"}, "time_zone"),
        ({"date": "yesterday"}, "date"),
        ({"name": "../{report}"}, "name"),
        ({"delivery": {}}, "delivery"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        order(**changes)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}:")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"customer": "\xed\xa0\x80"}', b"null", b"[" * 9999]
)
def test_what_is_no_order_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(body)


@pytest.mark.parametrize("struct", [ReportOrder, Table, Column, Csv, Xlsx, ReportDelivery])
def test_the_docs_of_reports_name_every_field(struct: type[msgspec.Struct]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    for field in msgspec.structs.fields(struct):
        assert f"`{field.name}`" in page, field.name


def test_the_order_in_the_docs_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    shown = re.search(r'```json\n(\{\s*"customer".*?)```', page, re.DOTALL)
    assert shown
    assert decode(shown[1].encode()).tables[0].columns[2].decimals == 2


@pytest.mark.parametrize(
    "make, field",
    [
        (lambda: Column(source=cast("str", 7)), "source"),
        (lambda: Column(source="n", decimals=True), "decimals"),
        (lambda: Column(source="n", decimals=16), "decimals"),
        (lambda: Column(source="n", width=math.inf), "width"),
        (lambda: Column(source="n", width=math.nan), "width"),
        (lambda: Condition(column="n", op="~", value=1), "op"),  # type: ignore[arg-type]
        (lambda: Condition(column="n", op="=", value=object()), "value"),  # type: ignore[arg-type]
        (lambda: Table(sources="a.csv"), "sources"),  # type: ignore[arg-type]
        (lambda: Table(sources=()), "sources"),
        (lambda: Table(sources=("a",), columns=("n",)), "columns"),  # type: ignore[arg-type]
        (lambda: Csv(delimiter=";;"), "delimiter"),
        (lambda: Csv(header=1), "header"),  # type: ignore[arg-type]
        (lambda: Csv(compression_level=1.5), "compression_level"),  # type: ignore[arg-type]
        (lambda: Xlsx(rows_per_sheet=1), "rows_per_sheet"),
        (lambda: ReportDelivery(destination="s3://b", companions=("md6",)), "companions"),  # type: ignore[arg-type]
        (lambda: ReportDelivery(destination="s3://b", options={"a": 1.5}), "options"),  # type: ignore[dict-item]
        (lambda: ReportOrder(customer="c", report="r", tables=(), name="n"), "tables"),
        (lambda: ReportOrder(customer=5, report="r", tables=(TABLE,), name="n"), "customer"),  # type: ignore[arg-type]
        (lambda: ReportOrder(customer="c", report="r", tables=(TABLE,), name="n", format="csv"), "format"),  # type: ignore[arg-type]
    ],
)
def test_what_is_made_in_python_is_checked_where_it_is_made(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        make()
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field} is ")


def test_lists_made_in_python_are_tuples() -> None:
    table = Table(sources=["a.csv"], columns=[Column(source="n")])  # type: ignore[arg-type]
    assert (table.sources, table.columns) == (("a.csv",), (Column(source="n"),))


def test_a_number_that_json_lacks_does_not_become_null() -> None:
    table = Table(sources=("a.csv",), filter=(Condition(column="n", op="=", value=math.nan),))
    with pytest.raises(InvalidMessage, match="it holds NaN or an infinity"):
        encode(ReportOrder(customer="c", report="r", tables=(table,), name="n"))
