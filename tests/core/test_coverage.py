"""Each module of the core is covered, branch by branch, by the test file that bears its name."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CORE = ROOT / "src" / "holdfast" / "core"
MODULES = sorted(path.stem for path in CORE.glob("[!_]*.py"))


def run(*args: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *args], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_own_tests_take_every_branch(module: str, tmp_path: Path) -> None:
    data, tests = tmp_path / "coverage", HERE / f"test_{module}.py"
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    run("coverage", "run", "--branch", "--data-file", data, "-m", "pytest", *quiet, tests)
    run("coverage", "report", "--data-file", data, "--include", CORE / f"{module}.py", "--fail-under", "100")
