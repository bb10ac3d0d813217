"""The example of door terminals and their back office, in small."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_all_terminals_agree_with_their_office() -> None:
    arguments = ("--terminals", "10", "--changes", "120", "--seconds", "3")
    ran = subprocess.run(
        [sys.executable, "-m", "examples.whitelist.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = dict(line.rsplit("  ", 1) for line in ran.stdout.splitlines() if "  " in line.strip())
    counts = {name.strip(): value.strip() for name, value in table.items()}
    assert counts["whitelists equal to the office's"] == "10 of 10"
    assert counts["failed or expired"] == "0"
    assert int(counts["commands"]) == int(counts["changes made in the office"]) == 120
