"""What it takes to build and push an image: of an app with compiled packages (numpy, av), on a Debian, to a
registry on this machine. First with nothing kept, then after a change of the app's code, which is what people
wait for.

Run as ``python -m benchmarks.image``. Packages come from the index that uv is configured to use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from simulator.servers import DockerRegistryServer, debian_base

APP = """
import av
import numpy

from holdfast import App

app = App("cameras")


@app.stream("frames")
def frames(message, context):
    return {"change": CHANGE}
"""
PROJECT = '[project]\nname = "cameras"\nversion = "1"\ndependencies = ["holdfast", "numpy", "av"]\n'
MB = 1_000_000


def build(project: Path, base: str, registry: str) -> tuple[float, dict[str, Any]]:
    """Build and push once, as a process; returns its seconds, and what it told."""
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "image",
        "build",
        "cameras:app",
        "-t",
        f"{registry}/cameras:1",
    ]
    command += ["--push", "--json", "--base", base, "--cache", str(project.parent / "cache")]
    before = time.monotonic()
    told = subprocess.run(command, cwd=project, stdout=subprocess.PIPE, check=True).stdout
    return time.monotonic() - before, json.loads(told)


async def measure(folder: Path, rounds: int, report: Report) -> None:
    """Build once with nothing kept, then after ``rounds`` changes."""
    base = debian_base.write(folder / "base")
    project = folder / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    async with DockerRegistryServer() as registry:
        warm_s, pushed_kb = [], []
        (project / "cameras.py").write_text(APP.replace("CHANGE", "0"))
        cold_s, told = await asyncio.to_thread(build, project, base, registry.address)
        for change in range(rounds):
            (project / "cameras.py").write_text(APP.replace("CHANGE", str(change + 1)))
            seconds, told = await asyncio.to_thread(build, project, base, registry.address)
            warm_s.append(seconds)
            pushed_kb.append(told["pushed"]["bytes"] / 1000)
    layers = told["platforms"][0]["layers"]
    over_base = sum(layer["size"] for layer in layers if layer["what"] != "base")
    report.say(f"an app with numpy and av; median of {rounds} changes of its code, each built and pushed")
    report.figure("warm_s", statistics.median(warm_s), "< 5")
    report.figure("code_push_kb", max(pushed_kb), "< 100")
    report.figure("cold_s", cold_s)
    report.figure("over_base_mb", over_base / MB)
    for layer in layers:
        report.say(f"    {layer['what']:<20}{layer['size'] / MB:>10.1f} MB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="20 changes instead of 3")
    rounds = 20 if parser.parse_args().full else 3
    report = Report("image")
    with tempfile.TemporaryDirectory(prefix="holdfast-image-") as folder:
        asyncio.run(measure(Path(folder), rounds, report))
    report.end(("uv", "aiohttp"), rounds=rounds)


if __name__ == "__main__":
    main()
