"""Products of Holdfast, used as they should be."""

from __future__ import annotations

from typing import Any, assert_type

from holdfast import App, devices, reports, vision

app = App("office")
app.outbox(
    "doors",
    dialect=devices.JsonDialect(result_field="code", success=(200,)),
    patience=devices.Patience(retry_s=1.0, max_tries=20),
    presence=devices.PresenceRules(offline_after_s=6.0),
    topics=devices.Topics(command="doors/{device}", answer="doors/{device}/ack", heartbeat=""),
)
reports.publish_reports(
    app,
    limits=reports.PoolLimits(bytes_rate=reports.Rate(per_s=1e6, burst=1e6)),
    roots=["s3://lake/"],
    group_limit=2,
    tries=3,
)
app.stream("frames", message=vision.Frame, key="video", seq="frame")(vision.Tracking)

order = reports.ReportOrder(
    customer="acme",
    report="sales",
    name="{report}.csv",
    tables=(reports.Table(sources=("a.parquet",), columns=(reports.Column(source="id"),)),),
    format=reports.Csv(delimiter=";"),
)


def ended(db: Any, command: devices.StoredCommand) -> None:
    assert_type(command.state, devices.CommandState)
