"""What is public is typed: both checkers pass what is right in ``good``, and find each line that is marked
``# error`` in ``bad``, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = sorted([*HERE.glob("good/*.py"), *HERE.glob("bad/*.py")])

Found = dict[tuple[str, int], list[str]]
"""What a checker says, by file and line."""


def marked() -> set[tuple[str, int]]:
    """The lines in which there is an error."""
    return {
        (file.relative_to(HERE).as_posix(), number)
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if line.endswith("# error")
    }


def mypy() -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--output", "json", *map(str, FILES)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    found: Found = {}
    for line in ran.stdout.splitlines():
        said = json.loads(line)
        if said["severity"] == "error":
            place = Path(ROOT, said["file"]).relative_to(HERE).as_posix(), said["line"]
            found.setdefault(place, []).append(said["message"])
    return found


def pyright() -> Found:
    program = Path(sys.executable).with_name("basedpyright")
    command: list[str | Path] = [
        program,
        "--outputjson",
        "--project",
        HERE / "pyrightconfig.json",
        "--pythonpath",
        sys.executable,
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert told["summary"]["filesAnalyzed"] == len(FILES)
    found: Found = {}
    for said in told["generalDiagnostics"]:
        if said["severity"] == "error":
            place = Path(said["file"]).relative_to(HERE).as_posix(), said["range"]["start"]["line"] + 1
            found.setdefault(place, []).append(said["message"])
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_type_checker_finds_each_mistake_and_nothing_else(checker: Callable[[], Found]) -> None:
    found = checker()
    assert marked() - found.keys() == set(), "mistakes that were not found"
    extra = {place: said for place, said in found.items() if place not in marked()}
    assert extra == {}, "found where there is no mistake"
