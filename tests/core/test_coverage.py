"""Each module of the core is covered, branch by branch, by the test file that bears its name."""

import io
import subprocess
import sys
from pathlib import Path

import coverage
import pytest
from coverage.exceptions import NoDataError

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CORE = ROOT / "src" / "holdfast" / "core"
MODULES = sorted(path.stem for path in CORE.glob("[!_]*.py"))


@pytest.mark.slow
def test_own_tests_take_every_branch(tmp_path: Path) -> None:
    data = tmp_path / "coverage"
    tests = [path for module in MODULES if (path := HERE / f"test_{module}.py").exists()]
    measure: list[str | Path] = [
        "coverage",
        "run",
        "--branch",
        "--source",
        "holdfast.core",
        "--data-file",
        data,
    ]
    quiet: list[str | Path] = [
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "tests.core.by_file",
    ]
    command: list[str | Path] = [sys.executable, "-m", *measure, "-m", *quiet, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    missed = {module: told for module in MODULES if (told := missing(data, module))}
    assert not missed, "\n".join(missed.values())


def missing(data: Path, module: str) -> str:
    """What its own tests leave out of a module, as coverage tells it; nothing if they leave out nothing."""
    measured = coverage.Coverage(data)
    measured.load()
    told = io.StringIO()
    try:
        covered = measured.report(
            include=[str(CORE / f"{module}.py")],
            contexts=["^$", f"^test_{module}$"],
            show_missing=True,
            skip_covered=True,
            file=told,
        )
    except NoDataError:
        return f"{module}: nothing of it runs"
    return "" if covered == 100 else told.getvalue()
