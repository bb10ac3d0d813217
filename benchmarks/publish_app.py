"""The app of the benchmark ``publish_night``."""

from __future__ import annotations

from holdfast import App
from holdfast.reports import publish_reports

app = App("night")
publish_reports(app, preload=["s3"])
