"""Orders as protobuf: the same as in JSON."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from holdfast import reports
from holdfast.errors import InvalidMessage
from holdfast.reports.order import (
    Column,
    Condition,
    Csv,
    ReportDelivery,
    ReportOrder,
    Sort,
    Table,
    Xlsx,
    encode,
    from_plain,
    plain_json,
)
from holdfast.reports.wire import OrderMessage, plain_protobuf
from tests.reports.making import ordered, protobuf_of
from tests.tasks.plain import compile_proto

FULL = ReportOrder(
    customer="acme",
    report="sales",
    tables=(
        Table(
            sources=("s3://b/x/", "y.parquet"),
            name="One",
            columns=(Column(source="a", title="", decimals=0, width=12.5), Column(source="b")),
            filter=(
                Condition(column="a", op="in", value=[1]),
                Condition(column="a", op="not in", value=["x", "y"]),
                Condition(column="n", op=">", value=2**53 + 1),
                Condition(column="f", op="<", value=0.5),
                Condition(column="t", op="=", value=True),
                Condition(column="t", op="=", value=""),
                Condition(column="z", op="is null"),
            ),
            sort=(Sort(column="a", descending=True), Sort(column="b")),
            types={"a": "int64"},
            drift="merge",
            credentials="lake",
        ),
        Table(sources=("z.csv",), name="Two", delimiter=";"),
    ),
    name="{report}.xlsx",
    format=Xlsx(header=False, rows_per_sheet=1000, unfit="drop"),
    date=dt.date(2024, 2, 29),
    time_zone="Europe/Berlin",
    empty="nothing",
    delivery=ReportDelivery(
        destination="sftp://h/x", companions=("ok",), options={"a": 1, "b": True, "c": "d"}
    ),
)


@pytest.mark.parametrize(
    "order",
    [
        FULL,
        ordered("x"),
        ordered("x", form=Xlsx()),
        ordered("x", form=Csv(header=False, delimiter=";", null_text="-")),
    ],
)
def test_an_order_survives_both_protobuf_and_json(order: ReportOrder) -> None:
    assert from_plain(plain_protobuf(protobuf_of(order).SerializeToString())) == order
    assert from_plain(plain_json(encode(order))) == order


def test_the_order_in_protobuf_has_the_same_fields() -> None:
    structs: list[type[msgspec.Struct]] = [
        ReportOrder,
        Table,
        Column,
        Condition,
        Sort,
        Csv,
        Xlsx,
        ReportDelivery,
    ]
    messages = OrderMessage.DESCRIPTOR.file.message_types_by_name
    for struct in structs:
        name = {"ReportDelivery": "Delivery"}.get(struct.__name__, struct.__name__)
        fields = {field.name for field in msgspec.structs.fields(struct)}
        twins = set(messages[name].fields_by_name)
        assert twins - {"csv", "xlsx"} == fields - {"format"}, name


def test_what_is_wrong_is_named_as_in_json() -> None:
    message = protobuf_of(FULL)
    message.tables[0].filter[0].op = "like"
    with pytest.raises(InvalidMessage) as refused:
        from_plain(plain_protobuf(message.SerializeToString()))
    assert refused.value.field == "tables[0].filter[0].op"
    with pytest.raises(InvalidMessage, match=r"isn't a holdfast.reports.v1.ReportOrder"):
        plain_protobuf(b"\xff\xff")
    with pytest.raises(InvalidMessage):
        from_plain(plain_protobuf(b""))


def test_the_compiled_description_is_that_of_the_proto(tmp_path: Path) -> None:
    folder = Path(reports.__file__).parent
    compile_proto(folder / "order.proto", f"--descriptor_set_out={tmp_path / 'set'}", root=folder.parents[1])
    ours = FileDescriptorSet.FromString((folder / "order.binpb").read_bytes())
    assert ours == FileDescriptorSet.FromString((tmp_path / "set").read_bytes())
