"""Parquet to an Excel workbook, in one pass, against four libraries that write a file.

Each runs in a process of its own and writes to a file on disk; what is timed begins after its imports.

Run as ``python -m benchmarks.publish_xlsx``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import tables
from benchmarks.alone import Measured, measure
from benchmarks.peers import workbooks
from benchmarks.report import Report

FASTEST = ("rustpy", "pyexcelerate")
BUDGET_S = 40.0
START_S = 1.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.publish_xlsx", description=__doc__)
    parser.add_argument("--full", action="store_true", help="a million rows, all peers")
    parser.add_argument("--rows", type=int, help="default 200,000, with --full 1,000,000")
    parser.add_argument("--rounds", type=int, help="at most; the median counts (default 9, with --full 3)")
    asked = parser.parse_args()
    rows = asked.rows or (1_000_000 if asked.full else 200_000)
    peers = tuple(workbooks.SETTINGS) if asked.full else FASTEST
    report = Report("publish_xlsx")
    report.say(f"publish_xlsx: {rows:,} rows of 10 mixed columns, Parquet to XLSX")
    for name in peers:
        report.say(f"  {name}: {workbooks.SETTINGS[name]}")
    contenders = {"holdfast": ("benchmarks.publications", "xlsx")}
    contenders |= {name: ("benchmarks.peers.workbooks", name) for name in peers}
    results: dict[str, list[Measured]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as folder:
        source = tables.make(Path(folder) / "source.parquet", rows)
        begun_at, limit_s = time.monotonic(), math.inf if asked.full else BUDGET_S
        size = 0.0
        for done in range(asked.rounds or (3 if asked.full else 9)):
            # All of them once, and then again only the best: the others are several times slower.
            names = list(contenders) if done == 0 else ["holdfast", best(results)]
            expected_s = sum(results[name][0].time_s + START_S for name in names if done)
            if done and time.monotonic() + expected_s - begun_at > limit_s:
                break
            for name in names:
                target = Path(folder) / f"{name}.xlsx"
                module, function = contenders[name]
                results[name].append(measure(module, function, str(source), str(target)))
                last = results[name][-1]
                if name == "holdfast":
                    size = target.stat().st_size / 1e6
                target.unlink()
                report.say(f"    {name} {last.time_s:.2f} s, {last.peak_mb:,.0f} MB")
    times = {name: median(one.time_s for one in measured) for name, measured in results.items()}
    ours = results["holdfast"]
    report.figure("rows_per_s", rows / times["holdfast"])
    report.figure("time_vs_best", times["holdfast"] / times[best(results)], "≤ 0.7")
    report.figure("peak_mb", max(one.peak_mb for one in ours), "≤ 380")
    report.figure("temporary_disk_mb", max(0.0, max(one.written_mb for one in ours) - size), "0")
    report.end(
        ["polars", "pyarrow", "rustpy-xlsxwriter", "xlsxwriter", "pyexcelerate"],
        rows=rows,
        best=best(results),
        file_mb=round(size, 1),
        times_s={name: [round(one.time_s, 3) for one in measured] for name, measured in results.items()},
        peaks_mb={name: round(max(one.peak_mb for one in measured)) for name, measured in results.items()},
    )


def best(results: dict[str, list[Measured]]) -> str:
    """The peer that was fastest when all were measured."""
    return min((name for name in results if name != "holdfast"), key=lambda name: results[name][0].time_s)


if __name__ == "__main__":
    main()
