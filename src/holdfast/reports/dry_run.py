"""The dry run of a report: its columns, its first rows as they would be written, and its size."""

from __future__ import annotations

import datetime as dt

import msgspec

from holdfast.reports.names import remote_name
from holdfast.reports.order import ReportOrder
from holdfast.reports.report import Report
from holdfast.reports.sources.places import Secrets

SAMPLE_BYTES = 8 << 20
"""Bytes of a source that are read to estimate the report's size."""


class DryRunReport(msgspec.Struct, frozen=True):
    """The result of a dry run.

    ``columns``: title and type of each column of the first table; ``lines``: its header and first rows as
    CSV;
    ``rows``: of all tables, None where unknown; ``size``: of all files, in bytes; ``exact``: whether the size
    is no estimate.
    """

    name: str
    columns: list[tuple[str, str]]
    lines: list[str]
    rows: int | None
    size: int
    exact: bool


def dry_run(order: ReportOrder, ordered_at: dt.datetime, secrets: Secrets, rows: int) -> DryRunReport:
    """Open the sources, and make a sample of the report with its first ``rows`` rows. Raises the errors of
    ``Report``."""
    with Report(order, ordered_at=ordered_at, secrets=secrets) as report:
        table = report.tables[0]
        columns = [
            (column.title or column.source, str(table.schema.field(column.source).type))
            for column in table.columns
        ]
        lines = b"".join(report.preview(rows)).decode(errors="replace").splitlines()
        size, exact = _size(report)
        return DryRunReport(remote_name(order, ordered_at), columns, lines, report.rows_total, size, exact)


def _size(report: Report) -> tuple[int, bool]:
    """Return the size of all files, and whether it is exact. If not, it is the size of a sample, divided by
    the share of the sources that the sample has read."""
    made = sum(len(chunk) for file in report.files(SAMPLE_BYTES) for chunk in file.chunks)
    if not report.cut:
        return made, True
    return round(made / max(report.progress.fraction, 1e-9)), False
