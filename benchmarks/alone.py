"""Measure a function in a process of its own: its time without start and imports, and the memory of it all.

Run as ``python -m benchmarks.alone MODULE FUNCTION ARGUMENT…``, which :func:`measure` does.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple


class Measured(NamedTuple):
    """``written_mb``: what the process wrote to files and sockets. ``cpu_s``: of all its threads."""

    time_s: float
    peak_mb: float
    written_mb: float
    cpu_s: float


def measure(module: str, function: str, *arguments: str) -> Measured:
    """Call a function, which takes texts, in a new process."""
    command = [sys.executable, "-m", "benchmarks.alone", module, function, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Call it, and print what was measured."""
    _, module, name, *arguments = sys.argv
    function = getattr(importlib.import_module(module), name)
    written, cpu_s, begun_at = _written(), time.process_time(), time.monotonic()
    function(*arguments)
    taken_s, cpu_s = time.monotonic() - begun_at, time.process_time() - cpu_s
    # Not getrusage: its peak is that of the process that started this one, if that is higher.
    peak_mb = int(_told("status")["VmHWM"].split()[0]) / 1024
    print(json.dumps([taken_s, peak_mb, (_written() - written) / 1e6, cpu_s]))


def _written() -> int:
    return int(_told("io")["wchar"])


def _told(file: str) -> dict[str, str]:
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


if __name__ == "__main__":
    main()
