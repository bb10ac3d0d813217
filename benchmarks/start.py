"""What it takes a process to start: processor time of an import, and of the command line, against that of a
Python that does nothing.

Run as ``python -m benchmarks.start``.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

from benchmarks.report import Report

BARE = "bare_s"
COMMANDS = {
    BARE: ["-c", "pass"],
    "import_s": ["-c", "import holdfast"],
    "client_s": ["-c", "from holdfast import Client"],
    "help_s": ["-m", "holdfast", "--help"],
    "status_help_s": ["-m", "holdfast", "status", "--help"],
    "config_show_s": ["-m", "holdfast", "config", "show"],
}
TARGETS = {"import_s": "<= 0.15", "help_s": "<= 0.25", "status_help_s": "<= 0.25", "config_show_s": "<= 0.25"}


def cpu_s(arguments: list[str], folder: str) -> float:
    """Processor seconds of one Python with ``arguments``."""
    # Without this every process would compile all of the code anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="each command so many times, in turn")
    parser.add_argument("--full", action="store_true", help="51 rounds")
    given = parser.parse_args()
    rounds = 51 if given.full else given.rounds
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="holdfast-start-") as folder:
        for arguments in COMMANDS.values():  # the first compiles
            cpu_s(arguments, folder)
        for _ in range(rounds):
            for name, arguments in COMMANDS.items():
                taken[name].append(cpu_s(arguments, folder))
    report = Report("start")
    report.say(f"processor time of a process, median of {rounds}")
    middle = {name: statistics.median(times) for name, times in taken.items()}
    for name, seconds in middle.items():
        report.figure(name, seconds, TARGETS.get(name, ""))
    for name in TARGETS:
        report.figure(f"{name.removesuffix('_s')}_vs_bare", middle[name] / middle[BARE])
    report.end(("msgspec", "cyclopts", "rich", "pydantic"), rounds=rounds, durability="nothing is stored")


if __name__ == "__main__":
    main()
