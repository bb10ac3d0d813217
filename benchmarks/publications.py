"""Reports as the benchmarks publish them. Nothing else is imported here: the process's memory is measured."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.reports.deliver import deliver_file
from holdfast.reports.deliver_plan import FileToDeliver
from holdfast.reports.order import Csv, ReportOrder, Table, Xlsx
from holdfast.reports.ports.sink import Sink
from holdfast.reports.report import Report
from holdfast.system.clock import SystemClock

NAME = "report"


def csv(source: str, target: str) -> None:
    """A CSV file on disk."""
    _write(_order(source, Csv()), target)


def xlsx(source: str, target: str) -> None:
    """A workbook on disk."""
    _write(_order(source, Xlsx()), target)


def deliver_csv(source: str, destination: str) -> None:
    """A CSV file at an FTP server or in S3."""
    clock = SystemClock()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Sink]:
        sink = _sink(destination, clock)
        try:
            yield sink
        finally:
            await sink.close()

    with _report(_order(source, Csv())) as report:
        asyncio.run(deliver_file(FileToDeliver(name=NAME, content=report.id), report.chunks, connect, clock))


def _order(source: str, form: Csv | Xlsx) -> ReportOrder:
    return ReportOrder(customer="c", report="r", name=NAME, tables=(Table(sources=(source,)),), format=form)


def _report(order: ReportOrder) -> Report:
    return Report(order, ordered_at=dt.datetime.now(dt.UTC))


def _write(order: ReportOrder, target: str) -> None:
    with _report(order) as report, Path(target).open("wb") as out:
        for file in report.files():
            out.writelines(file.chunks)


def _sink(destination: str, clock: SystemClock) -> Sink:
    # Only the one that is used: botocore alone takes 30 MB.
    parts = urlsplit(destination)
    if parts.scheme == "s3":
        from holdfast.reports.sinks.s3.sink import S3Sink, S3SinkUrl  # noqa: PLC0415

        return S3Sink(S3SinkUrl.parse(destination), clock)
    from holdfast.reports.sinks.ftp.sink import FtpSink  # noqa: PLC0415
    from holdfast.reports.sinks.ftp.url import FtpUrl  # noqa: PLC0415

    url = FtpUrl.parse(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
    return FtpSink(url, unquote(parts.username or ""), unquote(parts.password or ""))
