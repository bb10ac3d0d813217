"""Runs benchmarks: one by its name, or all, and compares the results with the stored ones.

python -m benchmarks NAME ARGUMENT…
python -m benchmarks all [--keep] [NAME…]
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cluster import ROOT
from benchmarks.kept import RESULTS, TOLERANCE, worse

BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "streams": ("streams",),
    "streams-postgres": ("streams", "--on", "postgres"),
    "tasks": ("tasks",),
    "tasks-postgres": ("tasks", "--on", "postgres"),
    "effects": ("effects",),
    "deep-key": ("deep_key",),
    "sqs-throughput": ("sqs_throughput",),
    "postgres-horizon": ("postgres_horizon",),
    "outbox": ("outbox",),
    "outbox-depth": ("outbox_depth",),
    "publish-csv": ("publish_csv",),
    "overhead": ("overhead",),
    "traced": ("traced",),
    "observed": ("observed",),
    "idle": ("idle",),
    "console": ("console",),
    "failover": ("failover",),
    "move": ("move",),
    "gateway": ("gateway",),
    "gateway-failover": ("gateway_failover",),
    "rolling": ("rolling",),
    "image": ("image",),
}
"""The module of each benchmark, and what it is always given."""


def run(name: str, arguments: Sequence[str]) -> None:
    """Run one benchmark in this process."""
    module, *given = BENCHMARKS[name]
    sys.argv[1:] = [*given, *arguments]
    importlib.import_module(f"benchmarks.{module}").main()


def run_all(arguments: Sequence[str]) -> int:
    """Run benchmarks one after the other, and compare or keep their results; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks all", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="these alone")
    parser.add_argument("--keep", action="store_true", help="keep the results, in place of the earlier ones")
    asked = parser.parse_args(arguments)
    found: dict[str, list[str]] = {}
    for name in asked.names or BENCHMARKS:
        result = measured(name)
        stored = RESULTS / f"{name}.json"
        if result is None:
            found[name] = ["it failed"]
        elif asked.keep:
            RESULTS.mkdir(exist_ok=True)
            stored.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        elif stored.exists():
            found[name] = worse(json.loads(stored.read_text()), result)
    complaints = [f"{name}: {text}" for name, texts in found.items() for text in texts]
    for complaint in complaints:
        print(complaint)
    print(
        f"{len(asked.names or BENCHMARKS)} benchmarks, {len(complaints)} findings (tolerance {TOLERANCE:.0%})"
    )
    return 1 if complaints else 0


def measured(name: str) -> dict[str, Any] | None:
    """Run one in a process of its own, whose lines are shown; returns its last one, or None if it failed."""
    command = [sys.executable, "-m", "benchmarks", name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for last in process.stdout:
            print(last, end="", flush=True)
    result: dict[str, Any] | None = json.loads(last) if process.returncode == 0 else None
    return result


def main() -> int:
    """Run what the command line names."""
    name, *arguments = sys.argv[1:] or [""]
    if name == "all":
        return run_all(arguments)
    if name not in BENCHMARKS:
        print(f"usage: python -m benchmarks all|{'|'.join(BENCHMARKS)} ARGUMENT…", file=sys.stderr)
        return 2
    run(name, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
