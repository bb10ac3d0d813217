"""The example of nightly reports."""

import datetime as dt
import importlib

import msgspec
import pytest

from holdfast.errors import InvalidMessage
from holdfast.reports.order import from_plain
from holdfast.tasks.body import body_of
from holdfast.testing import TaskTest


def test_each_customer_s_report_of_yesterday_is_ordered() -> None:
    example = importlib.import_module("examples.reports")
    (order,) = example.nightly(dt.datetime(2024, 3, 1, 2, 30, tzinfo=dt.UTC))
    assert order.trace_id == "sales-acme-2024-02-29"
    assert from_plain(order.body).date == dt.date(2024, 2, 29)
    assert example.app.tasks[order.task_type].group_of(body_of(order.body)) == "acme"


@pytest.mark.slow
def test_nothing_but_the_lake_can_be_read(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    example = importlib.import_module("examples.reports")
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("HOLDFAST_CREDENTIAL_ACME", "{}")
    order = msgspec.to_builtins(example.sales("acme", f"file:{tmp_path}", dt.date(2024, 2, 29)))
    order["tables"][0]["sources"] = ["/etc/passwd"]
    with pytest.raises(InvalidMessage, match="s3://lake/sales/"):
        TaskTest(example.app, "report.publish").run(order)
