"""Reports: files, progress, ends of all kinds, and memory that doesn't grow with the rows."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from holdfast.reports.faults import UnreadableSource, UnwritableColumn
from holdfast.reports.order import Column, Condition, Csv, ReportDelivery, Table, Xlsx
from holdfast.reports.report import Report, ReportProgress
from simulator.servers import FauxqsServer, FtpServer
from tests.reports.making import ORDERED_AT, csv_of, made, ordered, stored


def threads() -> set[str]:
    return {
        thread.name for thread in threading.enumerate() if thread.name.startswith(("read-ahead", "format"))
    }


# --- files


@pytest.mark.parametrize("form", [Csv(), Csv(compression="gzip"), Xlsx()])
def test_an_empty_result_makes_a_file_or_none_as_ordered(tmp_path: Path, form: Any) -> None:
    source = stored(tmp_path, {"n": pa.array([], pa.int64())})
    assert len(made(ordered(source, form=form))) == 1
    assert made(ordered(source, form=form, empty="nothing")) == []
    assert csv_of(source) == "n\n"


def test_what_a_filter_leaves_empty_is_empty_too(tmp_path: Path) -> None:
    table = Table(sources=(stored(tmp_path, {"n": [1]}),), filter=(Condition(column="n", op=">", value=1),))
    assert csv_of(table) == "n\n"
    assert made(ordered(table, empty="nothing")) == []


def test_an_empty_file_has_its_mark(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": pa.array([], pa.int64())})
    assert made(ordered(source, form=Csv(encoding="utf-8-bom", header=False))) == [b"\xef\xbb\xbf"]
    assert made(ordered(source, form=Csv(header=False))) == [b""]


def test_a_file_is_read_to_its_end_before_the_next(tmp_path: Path) -> None:
    with Report(ordered(stored(tmp_path, {"n": [1]})), ordered_at=ORDERED_AT) as report:
        files = report.files()
        next(files)
        with pytest.raises(RuntimeError, match="weren't read to their end"):
            next(files)


def test_the_bytes_of_one_file_are_made_again_and_again(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(10_000)}, row_group_size=1000)
    order = ordered(source, form=Xlsx(rows_per_sheet=4000, overflow="files"))
    whole = made(order)
    before = threads()
    with Report(order, ordered_at=ORDERED_AT) as report:
        for number in (1, 3, 1, 2):
            half = report.chunks(number)
            next(half)  # a delivery that broke off
            assert b"".join(report.chunks(number)) == whole[number - 1]
        assert report.progress.bytes_out == len(whole[0]) + len(whole[1])
        assert list(report.chunks(4)) == []
    assert threads() == before


def test_the_id_is_that_of_the_bytes(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": [1]})

    def id_of(at: dt.datetime = ORDERED_AT, **changes: Any) -> str:
        with Report(ordered(source, **changes), ordered_at=at) as report:
            return report.id

    first = id_of()
    assert id_of() == first
    assert id_of(delivery=ReportDelivery(destination="sftp://host/")) == first
    assert id_of(ORDERED_AT + dt.timedelta(hours=1)) != first  # another day, another name
    assert id_of(form=Csv(delimiter=";")) != first
    stored(tmp_path, {"n": [1, 2]})
    assert id_of() != first


def test_a_preview_reads_only_what_it_shows(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(100), "t": ["=x"] * 100}, row_group_size=3)
    before = threads()
    with Report(
        ordered(source, form=Csv(delimiter=";", compression="gzip")), ordered_at=ORDERED_AT
    ) as report:
        assert b"".join(report.preview(5)).decode().splitlines() == ["n;t", *(f"{n};'=x" for n in range(5))]
    with Report(ordered(source, form=Xlsx()), ordered_at=ORDERED_AT) as report:
        assert len(b"".join(report.preview(1000)).splitlines()) == 101
    assert threads() == before


# --- progress, and ends


def test_progress_is_told_and_reaches_the_end(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(100_000)}, row_group_size=10_000)
    reported: list[ReportProgress] = []
    with Report(ordered(source), ordered_at=ORDERED_AT, on_progress=reported.append) as report:
        size = sum(len(b"".join(file.chunks)) for file in report.files())
    assert reported == sorted(reported, key=lambda progress: progress.bytes_out)
    assert reported[0].fraction < 1
    last = reported[-1]
    assert (last.rows, last.rows_total, last.bytes_out) == (100_000, 100_000, size)
    assert last.fraction == 1
    assert 0 < last.source_bytes <= last.source_bytes_total == Path(source).stat().st_size


def test_progress_without_known_rows_is_that_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n\n" + "12345678\n" * 300_000)
    reported: list[ReportProgress] = []
    with Report(ordered(str(path)), ordered_at=ORDERED_AT, on_progress=reported.append) as report:
        for file in report.files():
            for _ in file.chunks:
                pass
    assert reported[-1].rows_total is None
    assert reported[-1].source_bytes == path.stat().st_size
    assert 0 <= reported[0].fraction < reported[-1].fraction == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", [Csv(), Csv(compression="zstd"), Xlsx()])
def test_a_report_given_up_leaves_no_threads(tmp_path: Path, form: Any) -> None:
    source = stored(tmp_path, {"n": range(1_000_000)}, row_group_size=10_000)
    before = threads()
    with Report(ordered(source, form=form), ordered_at=ORDERED_AT) as report:
        next(next(report.files()).chunks)
    assert threads() == before


def test_what_goes_wrong_on_the_way_is_raised_where_the_chunks_are_read(tmp_path: Path) -> None:
    good = stored(tmp_path, {"t": ["fine"] * 100_000}, "1.parquet")
    bad = stored(tmp_path, {"t": ["fine", "nul\0"]}, "2.parquet")
    before = threads()
    sent: list[bytes] = []
    with Report(ordered(Table(sources=(good, bad))), ordered_at=ORDERED_AT) as report:
        chunks = next(report.files()).chunks
        with pytest.raises(UnwritableColumn, match="'t' holds a NUL"):
            sent.extend(chunks)
    assert b"".join(sent).startswith(b"t\nfine\n")
    assert threads() == before


# --- S3


@pytest.mark.slow
def test_a_dataset_on_s3_is_read(
    tmp_path: Path, kept_fauxqs: FauxqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in kept_fauxqs.environment().items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    bucket = "reports-sources"
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    for day in ("1", "2"):
        rows = {"n": [int(day)] * 50_000, "t": [f"{n} of {day}" for n in range(50_000)]}
        path = stored(tmp_path, rows, f"day={day}/a b.parquet", row_group_size=20_000)
        client.upload_file(path, bucket, f"result/day={day}/a b.parquet")
    local = csv_of(f"{tmp_path}/")
    assert csv_of(f"s3://{bucket}/result/") == local
    assert csv_of(f"s3://{bucket}/result*") == local
    assert csv_of(f"s3://{bucket}/result/day=1/a%20b.parquet").startswith("n,t\n1,0 of 1\n")
    secret = {"access_key_id": "a", "secret_access_key": "b", "endpoint_url": kept_fauxqs.endpoint}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    named = Table(sources=(f"s3://{bucket}/result/",), columns=(Column(source="day"),), credentials="lake")
    with Report(ordered(named), ordered_at=ORDERED_AT, secrets={"lake": secret}.__getitem__) as report:
        assert sum(len(b"".join(file.chunks)) for file in report.files()) == len("day\n") + 2 * 100_000
    with pytest.raises(UnreadableSource, match=r"no data files|there is no file|can't be read"):
        made(ordered(Table(sources=(f"s3://{bucket}/nothing/",))))


# --- memory


PEAK = """
import asyncio, contextlib, datetime as dt, re, sys
from holdfast.reports.order import (Csv, ReportOrder, Table, Xlsx)
from holdfast.reports.report import Report
source, form, destination = sys.argv[1:]
form = Xlsx() if form == "xlsx" else Csv(compression=form)
order = ReportOrder(customer="c", report="r", name="r", tables=(Table(sources=(source,)),), format=form)

async def delivered(report):
    from holdfast.reports.sinks.ftp.sink import FtpSink
    from holdfast.reports.sinks.ftp.url import FtpUrl
    from holdfast.system.clock import SystemClock
    from holdfast.reports.deliver import deliver_file
    from holdfast.reports.deliver_plan import FileToDeliver

    @contextlib.asynccontextmanager
    async def connect():
        sink = FtpSink(FtpUrl.parse(destination), "ann", "se:cret/1")
        yield sink
        await sink.close()

    file = FileToDeliver(name="r", content=report.id)
    done = await deliver_file(file, report.chunks, connect, SystemClock())
    return done.record.size

with Report(order, ordered_at=dt.datetime.now(dt.UTC), threads=2) as report:
    if destination:
        size = asyncio.run(delivered(report))
    else:
        size = sum(len(chunk) for file in report.files() for chunk in file.chunks)
# Not getrusage: its peak is that of the process that started this one, if that is higher.
print(size, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def peak(source: str, form: str, destination: str = "") -> tuple[int, int]:
    """Bytes made, and delivered if there is a destination, and the peak of memory in KiB, of a process of its
    own."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, source, form, destination], capture_output=True, text=True, check=True
    )
    size, memory = done.stdout.split()
    return int(size), int(memory)


def large(path: Path, rows: int) -> str:
    """A Parquet file whose rows have about 100 bytes of text."""
    step = 100_000
    writer: pq.ParquetWriter | None = None
    for start in range(0, rows, step):
        numbers = pa.array(range(start, start + step))
        text = pa.compute.binary_join_element_wise(numbers.cast(pa.string()), "of the rows", " ")
        table = pa.table(
            {"n": numbers, "a": text, "b": text, "c": text, "at": numbers.cast(pa.timestamp("us"))}
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return str(path)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("form", ["none", "xlsx"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, form: str) -> None:
    _, small = peak(large(tmp_path / "small.parquet", 300_000), form)
    _, larger = peak(large(tmp_path / "large.parquet", 900_000), form)
    assert larger < small * 1.2


@pytest.fixture(scope="module")
def ftp_server() -> Iterator[FtpServer]:
    server = FtpServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["none", "gzip", "xlsx"])
def test_memory_is_flat_at_any_size(tmp_path: Path, form: str, ftp_server: FtpServer) -> None:
    def peak_of(rows: int) -> tuple[int, int]:
        source = large(tmp_path / "source.parquet", rows)
        found = peak(source, form, ftp_server.url)
        assert (ftp_server.files / "r").stat().st_size == found[0]
        return found

    mb_100, small = peak_of(1_100_000)
    gb_1, larger = peak_of(11_000_000)
    gb_5, largest = peak_of(55_000_000)
    if form == "none":
        assert mb_100 > 10**8
        assert gb_1 > 10**9
        assert gb_5 > 5 * 10**9
    assert max(larger, largest) < small * 1.2
