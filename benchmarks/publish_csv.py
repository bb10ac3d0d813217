"""Parquet to CSV at an FTP server and in S3, against libraries that write a file, or write and upload it.

Each runs in a process of its own, with default settings; what is timed begins after its imports. In that time
Holdfast does more: it guards against formulas, checks every text, sums up what it sends, and renames or
completes the file at its destination. The servers run beside it, on the same cores.

Run as ``python -m benchmarks.publish_csv``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from urllib.parse import quote

import boto3

from benchmarks import tables
from benchmarks.alone import Measured, measure
from benchmarks.peers import csv_files
from benchmarks.publications import NAME
from benchmarks.report import Report
from holdfast.testing.servers import FauxqsServer, FtpServer

BUCKET = "reports"
BUDGET_S = 35.0
START_S = 1.0
COMPARED = ("holdfast to FTP", "polars", "polars, then FTP")
ME = "benchmarks.publications"
PEERS = "benchmarks.peers.csv_files"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.publish_csv", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="10 million rows, and three times that for memory"
    )
    parser.add_argument("--rows", type=int, help="default 3,000,000, with --full 10,000,000")
    parser.add_argument("--rounds", type=int, help="at most; the median counts (default 5)")
    asked = parser.parse_args()
    asyncio.run(_measure(asked))


async def _measure(asked: argparse.Namespace) -> None:
    rows = asked.rows or (10_000_000 if asked.full else 3_000_000)
    report = Report("publish_csv")
    report.say(f"publish_csv: {rows:,} rows of 10 mixed columns, Parquet to CSV")
    for name, settings in csv_files.SETTINGS.items():
        report.say(f"  {name}: {settings}")
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        source = tables.make(folder / "source.parquet", rows)
        other = tables.make(folder / "other.parquet", 3 * rows if asked.full else rows // 3)
        async with FtpServer() as ftp, FauxqsServer() as s3:
            os.environ.update(s3.environment())
            boto3.client("s3").create_bucket(
                Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": os.environ["AWS_REGION"]}
            )
            told = ftp.url.replace("://", f"://{quote(ftp.user, safe='')}:{quote(ftp.password, safe='')}@")
            runs = _runs(str(source), str(folder / "out.csv"), told)
            results = _rounds(runs, asked.rounds or 5, math.inf if asked.full else BUDGET_S, report)
            size = (ftp.files / NAME).stat().st_size
            other_mb = measure(ME, "deliver_csv", str(other), told).peak_mb
    _tell(report, rows, size, results, other_mb, full=asked.full)


def _runs(source: str, target: str, ftp: str) -> dict[str, Callable[[], Measured]]:
    def clean(measured: Measured) -> Measured:
        Path(target).unlink(missing_ok=True)
        return measured

    s3 = f"s3://{BUCKET}/out"
    return {
        "holdfast to FTP": lambda: measure(ME, "deliver_csv", source, ftp),
        "holdfast to S3": lambda: measure(ME, "deliver_csv", source, s3),
        "holdfast to disk": lambda: clean(measure(ME, "csv", source, target)),
        "polars": lambda: clean(measure(PEERS, "polars", source, target)),
        "duckdb": lambda: clean(measure(PEERS, "duckdb_copy", source, target)),
        "pyarrow": lambda: clean(measure(PEERS, "pyarrow", source, target)),
        "polars, then FTP": lambda: clean(measure(PEERS, "write_then_ftp", "polars", source, target, ftp)),
        "polars, then S3": lambda: clean(measure(PEERS, "write_then_s3", "polars", source, target, s3)),
    }


def _rounds(
    runs: dict[str, Callable[[], Measured]], rounds: int, budget_s: float, report: Report
) -> dict[str, list[Measured]]:
    """All of them once, and then those that the targets compare as often as time allows."""
    results: dict[str, list[Measured]] = {name: [] for name in runs}
    begun_at = time.monotonic()
    for done in range(rounds):
        names = runs if done == 0 else COMPARED
        expected_s = sum(results[name][0].time_s + START_S for name in names if done)
        if done and time.monotonic() + expected_s - begun_at > budget_s:
            break
        for name in names:
            results[name].append(last := runs[name]())
            report.say(f"    {name} {last.time_s:.2f} s, {last.peak_mb:,.0f} MB")
    return results


def _tell(
    report: Report, rows: int, size: int, results: dict[str, list[Measured]], other_mb: float, *, full: bool
) -> None:
    times = {name: median(one.time_s for one in measured) for name, measured in results.items()}
    peaks = {name: max(one.peak_mb for one in measured) for name, measured in results.items()}
    fastest = min(csv_files.WRITERS, key=lambda name: times[name])
    report.figure("rows_per_s", rows / times["holdfast to FTP"])
    report.figure("mb_per_s", size / 1e6 / times["holdfast to FTP"])
    report.figure("time_vs_fastest_to_disk", times["holdfast to FTP"] / times[fastest], "≤ 1.1")
    report.figure("s3_time_vs_fastest_to_disk", times["holdfast to S3"] / times[fastest], "≤ 1.1")
    report.figure("disk_time_vs_fastest_to_disk", times["holdfast to disk"] / times[fastest])
    report.figure("time_vs_write_then_upload", times["holdfast to FTP"] / times["polars, then FTP"], "< 1")
    report.figure("s3_time_vs_write_then_upload", times["holdfast to S3"] / times["polars, then S3"], "< 1")
    report.figure("peak_mb", max(peaks["holdfast to FTP"], peaks["holdfast to S3"], other_mb), "≤ 350")
    less, more = (
        sorted([other_mb, peaks["holdfast to FTP"]]) if full else (other_mb, peaks["holdfast to FTP"])
    )
    report.figure("peak_at_three_times_the_rows", more / less, "≤ 1.2")
    report.end(
        ["polars", "pyarrow", "duckdb", "boto3", "pyftpdlib"],
        rows=rows,
        file_mb=round(size / 1e6, 1),
        fastest_to_disk=fastest,
        times_s={name: [round(one.time_s, 3) for one in measured] for name, measured in results.items()},
        peaks_mb={name: round(peak) for name, peak in peaks.items()},
    )


if __name__ == "__main__":
    main()
