"""A release is what is committed, the same bytes each time, and runs where nothing else is installed."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WHAT_IT_HAS = ("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
PROGRAM = """
from holdfast import App, Context, __version__
from holdfast.testing import node_for_tests

app = App("meters")

@app.stream("readings", key="meter", seq="number", first_seq=0)
def double(message: dict, context: Context) -> float:
    return 2 * message["kwh"]

with node_for_tests(app) as node:
    node.stream("readings").send({"meter": "m", "number": 0, "kwh": 1.5})
    print(__version__, [result.value for result in node.results("readings", 1)])
"""


def interpreters() -> dict[str, str]:
    """The Python of these tests, and those of other versions that are found here and run."""
    found = {}
    for minor in range(11, 15):
        installed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        path = next(map(str, installed), None) or shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-V"], capture_output=True, check=False).returncode == 0:
            found[f"3.{minor}"] = path
    return found | {".".join(map(str, sys.version_info[:2])): sys.executable}


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def told_by_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of this code, whose version is 9.9.9 and told in the changelog."""
    folder = tmp_path / "checkout"
    for name in WHAT_IT_HAS:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    init = folder / "src/holdfast/__init__.py"
    init.write_text(re.sub(r'__version__ = ".*"', '__version__ = "9.9.9"', init.read_text()))
    changelog = folder / "CHANGELOG.md"
    text = changelog.read_text().replace(
        "## Unreleased\n",
        "## Unreleased\n\n- Later.\n\n## 9.9.9 - 2030-01-31\n\n- New.\n\n## 9.9.8 - 2030-01-01\n",
        1,
    )
    changelog.write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "A release")
    return folder


def release(checkout: Path, into: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/release"), "--root", str(checkout), "--into", str(into)]
    command += options
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_same_commit_gives_the_same_files_and_their_checksums_agree(
    checkout: Path, tmp_path: Path
) -> None:
    for name in ("once", "again"):
        done = release(checkout, tmp_path / name)
        assert done.returncode == 0, done.stderr
        os.utime(checkout / "README.md", (0, 0))
    folder = tmp_path / "again/9.9.9"
    sums = (folder / "SHA256SUMS").read_text()
    assert sums == (tmp_path / "once/9.9.9/SHA256SUMS").read_text()
    told = {file: digest for digest, file in map(str.split, sums.splitlines())}
    assert set(told) == {"holdfast_streams-9.9.9-py3-none-any.whl", "holdfast_streams-9.9.9.tar.gz"}
    for file, digest in told.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest
    assert (folder / "NOTES.md").read_text() == "# Holdfast 9.9.9\n\n- New.\n"
    again = release(checkout, tmp_path / "again")
    assert again.returncode == 1
    assert "is there already" in again.stderr


@pytest.mark.nightly
def test_an_earlier_version_is_built_again_from_its_commit(checkout: Path, tmp_path: Path) -> None:
    assert release(checkout, tmp_path / "then").returncode == 0
    init = checkout / "src/holdfast/__init__.py"
    init.write_text(init.read_text().replace('"9.9.9"', '"10.0.0.dev0"'))
    git(checkout, "commit", "-q", "-am", "Begin 10.0.0")
    init.write_text("work in progress")
    done = release(checkout, tmp_path / "now", "9.9.9")
    assert done.returncode == 0, done.stderr
    sums = [(tmp_path / when / "9.9.9/SHA256SUMS").read_text() for when in ("then", "now")]
    assert sums[0] == sums[1]
    # The tag that the last line names is of that commit, and its text is all of the notes.
    (command,) = re.findall(r"^To publish it: git (tag .*), and upload", done.stdout, re.MULTILINE)
    git(checkout, *shlex.split(command))
    assert told_by_git(checkout, "rev-parse", "v9.9.9^{}") == told_by_git(checkout, "rev-parse", "HEAD^")
    notes = (tmp_path / "now/9.9.9/NOTES.md").read_text()
    assert told_by_git(checkout, "tag", "-l", "--format=%(contents)", "v9.9.9") == notes.strip()


@pytest.mark.slow
def test_a_version_that_no_commit_has_is_not_built(checkout: Path, tmp_path: Path) -> None:
    done = release(checkout, tmp_path, "9.9.8")
    assert done.returncode == 1
    assert "no commit has version 9.9.8" in done.stderr
    assert "--unshallow" in done.stderr


@pytest.mark.slow
def test_what_is_not_committed_is_not_released(checkout: Path, tmp_path: Path) -> None:
    (checkout / "src/holdfast/app.py").write_text("")
    done = release(checkout, tmp_path)
    assert done.returncode == 1
    assert "app.py" in done.stderr


@pytest.mark.slow
def test_a_version_without_its_changes_is_not_released(checkout: Path, tmp_path: Path) -> None:
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## 9.9.9 - 2030-01-31", "## 9.9.7 - 2030-01-31"))
    git(checkout, "commit", "-q", "-am", "Forget the changes")
    done = release(checkout, tmp_path)
    assert done.returncode == 1
    assert "## 9.9.9 - YYYY-MM-DD'; rename its section 'Unreleased' to that" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters().keys())
@pytest.mark.timeout(600)  # it installs all that Holdfast needs
def test_the_released_wheel_runs_a_stream_where_nothing_else_is_installed(
    checkout: Path, tmp_path: Path, python: str
) -> None:
    assert release(checkout, tmp_path / "dist").returncode == 0
    bare = tmp_path / "bare"
    subprocess.run([python, "-m", "venv", str(bare)], check=True)
    wheel = next((tmp_path / "dist/9.9.9").glob("*.whl"))
    install = [str(bare / "bin/python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    # Pinned, but without their hashes: with these, pip would ask for one of the wheel too.
    pins = re.findall(r"^[a-z0-9-]+==\S+", (ROOT / "locks/demo.txt").read_text(), re.MULTILINE)
    (tmp_path / "pins.txt").write_text("\n".join(pins))
    done = subprocess.run(
        [*install, "-c", str(tmp_path / "pins.txt"), str(wheel)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [str(bare / "bin/python"), str(tmp_path / "program.py")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "9.9.9 [3.0]" in ran.stdout.splitlines(), ran.stdout + ran.stderr
