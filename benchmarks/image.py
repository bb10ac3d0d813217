"""What it takes to build and push an image: of an app with compiled packages (numpy, av), on a Debian, to a
registry on this machine. First with no cache, then after a change of the app's code, which is what people
wait for. Beside it what ``podman build`` takes for the Containerfile: by buildah, its engine, which needs no
namespaces, with the fastest of its stores.

Run as ``python -m benchmarks.image``. Packages come from the index that uv is configured to use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from simulator.servers import Buildah, DockerRegistryServer, buildah, debian_base

APP = """
import av
import numpy

from holdfast import App

app = App("cameras")


@app.stream("frames")
def frames(message, context):
    return {"change": CHANGE}
"""
CONTAINERFILE = Path(__file__).parents[1] / "deploy/Containerfile"
PROJECT = '[project]\nname = "cameras"\nversion = "1"\ndependencies = ["holdfast-streams", "numpy", "av"]\n'
MB = 1_000_000


def build(project: Path, base: str, registry: str) -> tuple[float, dict[str, Any]]:
    """Build and push once, as a process; returns its seconds and its report."""
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
    built = subprocess.run(command, cwd=project, stdout=subprocess.PIPE, check=True).stdout
    return time.monotonic() - before, json.loads(built)


def change(project: Path, number: int) -> None:
    """Change the app's code."""
    (project / "cameras.py").write_text(APP.replace("CHANGE", str(number)))


def build_by_podman(folder: Path, base: str, registry: str, rounds: int) -> list[float]:
    """Build and push what ``deploy/Containerfile`` says of the same project, once and after changes; returns
    the seconds of each. Its packages come from a folder, not from an index."""
    project, cache = folder / "project", folder / "cache"
    cache.mkdir()
    wheels = buildah.write_wheels(folder / "wheels", "numpy", "av")
    (project / "requirements.txt").write_text("--no-index\n-f /wheels\nholdfast\nnumpy\nav\n")
    images, took_s = Buildah(cache), []
    try:
        for number in range(rounds + 1):
            change(project, rounds + 1 + number)
            before = time.monotonic()
            images.build(project, CONTAINERFILE, "cameras:1", wheels=wheels, BASE=base)
            images.push("cameras:1", f"docker://{registry}/by-podman:1")
            took_s.append(time.monotonic() - before)
    finally:
        images.close()
    return took_s


async def measure(folder: Path, rounds: int, report: Report) -> None:
    """Build once with no cache, then after ``rounds`` changes."""
    base = debian_base.write(folder / "base")
    project = folder / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    async with DockerRegistryServer() as registry:
        warm_s, pushed_kb = [], []
        change(project, 0)
        cold_s, built = await asyncio.to_thread(build, project, base, registry.address)
        for number in range(rounds):
            change(project, number + 1)
            seconds, built = await asyncio.to_thread(build, project, base, registry.address)
            warm_s.append(seconds)
            pushed_kb.append(built["pushed"]["bytes"] / 1000)
        podman_s = []
        if not os.geteuid():  # it builds without namespaces only for root
            podman_s = await asyncio.to_thread(build_by_podman, folder, base, registry.address, rounds)
    layers = built["platforms"][0]["layers"]
    over_base = sum(layer["size"] for layer in layers if layer["what"] != "base")
    report.say(f"an app with numpy and av; median of {rounds} changes of its code, each built and pushed")
    report.figure("warm_s", statistics.median(warm_s), "< 5")
    report.figure("code_push_kb", max(pushed_kb), "< 100")
    if podman_s:
        first_s, *later_s = podman_s
        report.figure("vs_podman", statistics.median(later_s) / statistics.median(warm_s), "> 1")
        report.figure("podman_warm_s", statistics.median(later_s))
        report.figure("podman_cold_s", first_s)
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
