"""Parquet to CSV at an FTP server and in S3, against libraries that write a file, or write and upload it.

Each runs in a process of its own, with default settings; what is timed begins after its imports. In that time
Holdfast does more: it guards against formulas, checks every text, sums up what it sends, and renames or
completes the file at its destination. The servers run beside it, on the same cores: pyftpdlib, and a store of
the benchmark's own, for fauxqs takes 100 MB/s. Both write to disk; their rate for plain bytes is shown.
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

from benchmarks import tables
from benchmarks.alone import Measured, measure
from benchmarks.peers import csv_files
from benchmarks.peers.s3_store import S3Store
from benchmarks.publications import NAME
from benchmarks.report import Report
from simulator.servers import FtpServer

S3 = "s3://reports/out"
BUDGET_S = 35.0
START_S = 1.0
COMPARED = ("holdfast to FTP", "holdfast to S3", "polars", "polars, then FTP", "polars, then S3")
ME = "benchmarks.publications"
ME_S3 = "benchmarks.publications_s3"
PEERS = "benchmarks.peers.csv_files"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks publish-csv", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="10 million rows, and three times that for memory"
    )
    parser.add_argument("--rows", type=int, help="default 3,000,000, with --full 10,000,000")
    parser.add_argument("--rounds", type=int, help="at most; the median counts (default 5)")
    asked = parser.parse_args()
    asyncio.run(_measure(asked))


async def _measure(asked: argparse.Namespace) -> None:
    rows = asked.rows or (10_000_000 if asked.full else 3_000_000)
    report = Report("publish-csv")
    limits: dict[str, int] = {}
    report.say(f"publish_csv: {rows:,} rows of 10 mixed columns, Parquet to CSV")
    for name, settings in csv_files.SETTINGS.items():
        report.say(f"  {name}: {settings}")
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        source = tables.make(folder / "source.parquet", rows)
        other = tables.make(folder / "other.parquet", 3 * rows if asked.full else rows // 3)
        async with FtpServer() as ftp, S3Store() as s3:
            os.environ.update(s3.environment())
            login = ftp.url.replace("://", f"://{quote(ftp.user, safe='')}:{quote(ftp.password, safe='')}@")
            runs = _runs(str(source), str(folder / "out.csv"), login)
            results = _rounds(
                runs, asked.rounds or (3 if asked.full else 5), math.inf if asked.full else BUDGET_S, report
            )
            size = (ftp.files / NAME).stat().st_size
            for name, push, url in (("FTP server", "bytes_to_ftp", login), ("store", "bytes_to_s3", S3)):
                limits[name] = round(size / 1e6 / measure(PEERS, push, str(size), url).time_s)
            others = {
                name: measure(module, "deliver_csv", str(other), url).peak_mb
                for name, module, url in (("holdfast to FTP", ME, login), ("holdfast to S3", ME_S3, S3))
            }
    report.say("  bytes alone, MB/s: " + ", ".join(f"{name} {limit}" for name, limit in limits.items()))
    _tell(report, rows, size, results, others, limits, full=asked.full)


def _runs(source: str, target: str, ftp: str) -> dict[str, Callable[[], Measured]]:
    def clean(measured: Measured) -> Measured:
        Path(target).unlink(missing_ok=True)
        return measured

    return {
        "holdfast to FTP": lambda: measure(ME, "deliver_csv", source, ftp),
        "holdfast to S3": lambda: measure(ME_S3, "deliver_csv", source, S3),
        "holdfast to disk": lambda: clean(measure(ME, "csv", source, target)),
        "polars": lambda: clean(measure(PEERS, "polars", source, target)),
        "duckdb": lambda: clean(measure(PEERS, "duckdb_copy", source, target)),
        "pyarrow": lambda: clean(measure(PEERS, "pyarrow", source, target)),
        "polars, then FTP": lambda: clean(measure(PEERS, "write_then_ftp", "polars", source, target, ftp)),
        "polars, then S3": lambda: clean(measure(PEERS, "write_then_s3", "polars", source, target, S3)),
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
            report.say(f"    {name} {last.time_s:.2f} s, {last.cpu_s:.2f} s of CPU, {last.peak_mb:,.0f} MB")
    return results


def _tell(
    report: Report,
    rows: int,
    size: int,
    results: dict[str, list[Measured]],
    others: dict[str, float],
    limits: dict[str, int],
    *,
    full: bool,
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
    report.figure("peak_mb", max(*(peaks[name] for name in others), *others.values()), "≤ 350")
    grown = (others[name] / peaks[name] if full else peaks[name] / others[name] for name in others)
    report.figure("peak_at_three_times_the_rows", max(grown), "≤ 1.2")
    report.end(
        ["polars", "pyarrow", "duckdb", "boto3", "pyftpdlib"],
        rows=rows,
        file_mb=round(size / 1e6, 1),
        fastest_to_disk=fastest,
        times_s={name: [round(one.time_s, 3) for one in measured] for name, measured in results.items()},
        cpu_s={name: [round(one.cpu_s, 2) for one in measured] for name, measured in results.items()},
        peaks_mb={name: round(peak) for name, peak in peaks.items()},
        limits_mb_per_s=limits,
    )
