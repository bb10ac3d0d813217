"""Each module of rules is covered, branch by branch, by its own test files."""

import io
import re
import subprocess
import sys
from pathlib import Path

import coverage
import pytest
from coverage.exceptions import NoDataError

from tests.rules.modules import FOLDERS, MODULES, ROOT, SOURCE, TESTS, own_tests


@pytest.mark.nightly
def test_the_tests_of_each_rules_module_cover_its_branches(tmp_path: Path) -> None:
    data = tmp_path / "coverage"
    own = [test for path in MODULES.values() for test in own_tests(path) if test.exists()]
    tests = list(dict.fromkeys(own))
    packages = [".".join(folder.relative_to(SOURCE.parent).parts) for folder in FOLDERS]
    measure: list[str | Path] = [
        *("coverage", "run", "--branch", "--source", ",".join(packages)),
        *("--data-file", data),
    ]
    quiet = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.rules.by_file"]
    command: list[str | Path] = [sys.executable, "-m", *measure, "-m", *quiet, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = coverage.Coverage(data)
    measured.load()
    missed = {name: told for name, path in MODULES.items() if (told := missing(measured, path))}
    assert not missed, "\n".join(missed.values())


def missing(measured: coverage.Coverage, path: Path) -> str:
    """What its own tests leave out of a module, as coverage tells it; nothing if they leave out nothing."""
    told = io.StringIO()
    try:
        covered = measured.report(
            include=[str(path)],
            contexts=["^$", *(f"^{re.escape(str(own.relative_to(TESTS)))}$" for own in own_tests(path))],
            show_missing=True,
            skip_covered=True,
            file=told,
        )
    except NoDataError:
        return f"{path}: nothing of it runs"
    return "" if covered == 100 else told.getvalue()
