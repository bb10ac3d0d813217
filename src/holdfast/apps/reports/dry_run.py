"""What a report would be: its columns, its first rows as they would be written, and how large."""

from __future__ import annotations

import datetime as dt

import msgspec

from holdfast.apps.reports.names import remote_name
from holdfast.apps.reports.order import ReportOrder
from holdfast.apps.reports.report import Report, ReportFile
from holdfast.apps.reports.sources.places import Secrets

SAMPLE_BYTES = 4 << 20
"""So much of the report is made, at most, to tell how large all of it would be."""


class Outlook(msgspec.Struct, frozen=True):
    """A report that was not sent.

    ``columns``: title and type of each column of the first table; ``lines``: its header and first rows as
    CSV; ``rows``: of all tables, None where unknown; ``size``: in bytes, of all files; ``exact``: it is no
    estimate.
    """

    name: str
    columns: list[tuple[str, str]]
    lines: list[str]
    rows: int | None
    size: int
    exact: bool


def look_ahead(order: ReportOrder, ordered_at: dt.datetime, secrets: Secrets, rows: int) -> Outlook:
    """Open the sources, and make a sample of the report. Raises as ``Report`` does."""
    with Report(order, ordered_at=ordered_at, secrets=secrets) as report:
        table = report.tables[0]
        columns = [
            (column.title or column.source, str(table.schema.field(column.source).type))
            for column in table.columns
        ]
        lines = b"".join(report.preview(rows)).decode(errors="replace").splitlines()
        size, exact = _size(report)
        return Outlook(remote_name(order, ordered_at), columns, lines, report.rows_total, size, exact)


def _size(report: Report) -> tuple[int, bool]:
    made = 0
    for file in report.files():
        for chunk in file.chunks:
            made += len(chunk)
            if made >= SAMPLE_BYTES:
                return round(made / max(_written(report, file), 1e-9)), False
    return made, True


def _written(report: Report, file: ReportFile) -> float:
    """How much of the report is made, from 0 to 1. What is read is a little ahead: rows tell better."""
    if report.rows_total and file.rows:
        return file.rows / report.rows_total
    return report.progress.fraction
