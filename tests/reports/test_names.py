"""Remote names stay below the customer's root, whatever fills them."""

from __future__ import annotations

import datetime as dt
from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidMessage
from holdfast.reports.names import remote_name
from holdfast.reports.order import check
from tests.reports.making import ORDERED_AT, ordered


@pytest.mark.parametrize(
    "template, zone, part, name",
    [
        ("{report}.csv", "UTC", 1, "sales.csv"),
        ("{customer}/{report}-{date}.csv", "UTC", 1, "acme/sales-2024-03-01.csv"),
        ("{date:%d.%m.%Y}.csv", "Asia/Tokyo", 1, "02.03.2024.csv"),
        ("{report}.csv.gz", "UTC", 2, "sales-2.csv.gz"),
        ("{report}_{part:03}.xlsx", "UTC", 7, "sales_007.xlsx"),
        ("{date:%Y/%m}/{{x}}.csv", "UTC", 1, ""),
        ("{{{report}}}", "UTC", 1, "{sales}"),
    ],
)
def test_templates_of_file_names_are_filled(template: str, zone: str, part: int, name: str) -> None:
    order = ordered("x", name=template, time_zone=zone)
    if not name:
        with pytest.raises(InvalidMessage, match="isn't a format of this field"):
            check(order)
        return
    check(order)
    assert remote_name(order, ORDERED_AT, part) == name


def test_a_date_in_the_order_is_used_unchanged() -> None:
    order = ordered("x", name="{date}", date=dt.date(2020, 2, 29), time_zone="Asia/Tokyo")
    assert remote_name(order, ORDERED_AT) == "2020-02-29"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../up.csv",
        "a/../b.csv",
        "a//b.csv",
        "./a.csv",
        "a/",
        "nul\0.csv",
        "line\nbreak.csv",
        "cr\r.csv",
        "\x1b[31m.csv",
        "back\\slash.csv",
        "\u2028.csv",
        "x" * 300,
        "é" * 128,
        "/".join(["long"] * 300),
        "half\ud800.csv",
    ],
)
def test_a_file_name_that_could_do_harm_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        check(ordered("x", name=name))
    assert refused.value.field == "name"


@pytest.mark.parametrize(
    "template", ["{secret}", "{report.x}", "{report!r}", "{date:%s}", "{part:>9999}", "{", "{}"]
)
def test_a_template_with_unknown_fields_or_formats_is_refused(template: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        check(ordered("x", name=template))
    assert refused.value.field == "name"


@pytest.mark.parametrize("customer", ["../other", "..", "a/b", "a\0b", "x" * 300])
def test_a_customer_cannot_leave_the_root(customer: str) -> None:
    with pytest.raises(InvalidMessage):
        check(ordered("x", name="{customer}/{report}.csv", customer=customer))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=40), st.text(min_size=1, max_size=40))
def test_what_is_accepted_stays_below_the_root(template: str, report: str) -> None:
    order = ordered("x", name=template + "{report}", report=report)
    try:
        check(order)
    except InvalidMessage:
        return
    name = remote_name(order, ORDERED_AT)
    path = PurePosixPath("/root") / name
    assert path.parts[:2] == ("/", "root")
    assert ".." not in path.parts
    assert name.isprintable() or not any(ord(c) < 32 for c in name)
