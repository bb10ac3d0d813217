"""The preview of a report: its columns, its first rows as they would be written, and how large it would
be."""

from __future__ import annotations

import datetime as dt

import msgspec

from holdfast.reports.names import remote_name
from holdfast.reports.order import ReportOrder
from holdfast.reports.report import Report
from holdfast.reports.sources.places import Secrets

SAMPLE_BYTES = 8 << 20
"""So much of a source is read, at least, to tell how large all of the report would be."""


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
    """That of all files, in bytes, and whether it is exact: else that of a sample made to its end, which what
    is made ahead doesn't blur, for so much more as there is to read."""
    made = sum(len(chunk) for file in report.files(SAMPLE_BYTES) for chunk in file.chunks)
    if not report.cut:
        return made, True
    return round(made / max(report.progress.fraction, 1e-9)), False
