"""Products of Holdfast, used with what there isn't."""

from __future__ import annotations

from holdfast import App, devices, reports, vision

app = App("office")
app.outbox("doors", patience=devices.Patience(retries=3))  # error
reports.publish_reports(app, tires=3)  # error
reports.publish_reports(app, tries="3")  # error
app.stream("frames", message=bytes)(vision.Tracking)  # error
devices.Patiense()  # error
reports.ReportOrders()  # error
