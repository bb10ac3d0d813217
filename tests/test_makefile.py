"""``make``: which tests it runs where only some are wanted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def would_run(*arguments: str) -> tuple[str, str]:
    """What make would run of pytest, and what it complains about. A make that runs this test may have been
    given variables, and hands them on."""
    given = {name for name in os.environ if name.startswith("MAKE")} | {"ARGS", "PART"}
    environment = {name: value for name, value in os.environ.items() if name not in given}
    command = ["make", "--dry-run", *arguments]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return "".join(line for line in said.stdout.splitlines(True) if "-m pytest" in line), said.stderr


def test_folders_of_tests_are_found_by_their_names() -> None:
    made, _ = would_run("test", "PART=reports services/redis")
    *_, reports, redis = made.split()
    assert (Path(reports).name, Path(redis).parts[-2:]) == ("reports", ("services", "redis"))
    assert (ROOT / reports).is_dir()
    assert (ROOT / redis).is_dir()


def test_a_folder_of_tests_that_is_not_there_is_named() -> None:
    made, complaint = would_run("test", "PART=reports radis")
    assert not made
    assert 'No folder of tests is called "radis"' in complaint


def test_without_folders_the_quick_tests_run() -> None:
    made, _ = would_run("test")
    assert made.strip().endswith('-m "not slow and not nightly"')


def test_a_check_runs_the_slow_tests_too() -> None:
    made, _ = would_run("check")
    assert made.split()[-1] == "worksteal"


def test_the_night_runs_every_test() -> None:
    made, complaint = would_run("nightly")
    assert '-m "" --timeout 900' in made
    assert complaint == ""


def test_the_folders_of_the_quick_tests_exist() -> None:
    made, complaint = would_run("quick")
    folders = made.split()[made.split().index("tests/common") :]
    assert {"tests/rules", "tests/services/memory", "tests/services/sqlite"} <= set(folders)
    assert all((ROOT / folder).is_dir() for folder in folders)
    assert complaint == ""
