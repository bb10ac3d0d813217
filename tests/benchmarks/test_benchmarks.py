"""The benchmarks run, and the last line is as programs expect it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SMALL = {
    "streams": ("--only holdfast --messages 200 --keys 8 --rounds 1", {"messages_per_s"}),
    "overhead": (
        "--seconds 0.4 --width 160 --streams 2 --processes 1 --rounds 1",
        {"frames_per_s", "vs_bare_loop"},
    ),
}
"""Arguments for those that can be small, and their figures."""


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_in_small(name: str) -> None:
    arguments, figures = SMALL[name]
    line = json.loads(run(name, *arguments.split()).splitlines()[-1])
    assert line["benchmark"] == name
    assert line["cores"] >= 1
    assert line["figures"].keys() == figures
    assert {"versions", "durability"} <= line["detail"].keys()


@pytest.mark.parametrize("name", ["streams", "overhead", "failover", "idle"])
def test_help(name: str) -> None:
    assert "--full" in run(name, "--help")
