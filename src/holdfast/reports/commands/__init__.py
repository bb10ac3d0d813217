"""The command ``holdfast reports``."""

from __future__ import annotations

from holdfast.extend.commands import LazyCommand

REPORTS = LazyCommand(
    "holdfast.reports.commands.reports:app",
    "Publish a report, and list ordered ones.",
)
