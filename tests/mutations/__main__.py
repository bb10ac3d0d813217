"""``make mutate``: break the code in one place at a time, and see that a test finds it.

Each mutation of :mod:`tests.mutations.table` is applied to a copy of the tree, in which only the tests named
beside it run. The last line is JSON: how many were found, which survived, and which no longer apply,
because the text that they replace is gone or stands there twice, or a test has another name. Exit code 0 says
that all were found.

Tests run in children that this process forks once it has imported what all of them need: that takes longer
than most of the tests do.
"""

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from types import ModuleType
from typing import Literal, NoReturn

import pytest

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
SHARED = (".venv", ".cache")
"""What a copy has in common with the tree."""

PRELOADED = (
    "_hypothesis_pytestplugin", "_pytest.assertion.rewrite", "aiohttp.web", "anyio.pytest_plugin", "asyncio",
    "hypothesis", "msgspec", "prometheus_client", "psutil", "pygments", "pytest_asyncio.plugin",
    "pytest_timeout", "ssl", "structlog", "unittest.mock",
)  # fmt: skip
"""Imported before children are forked; nothing of the tree is among it."""

LIMIT_S, TEST_LIMIT_S = 600.0, 60.0
"""Tests, or one of them, that a mutation has hang so long have found it."""

OPTIONS = (
    *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--timeout={TEST_LIMIT_S:g}"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
"""The warning is about what is preloaded."""

NO_SUCH_TEST = 4
"""An exit code of pytest."""

Fate = Literal["found", "survived", "no longer applies"]


def copied(folder: Path) -> Path:
    """A copy of what git knows of the tree, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listing.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(ROOT / name, folder / name)
    for name in SHARED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def written(file: Path, text: str) -> None:
    """Write a file, at a time that no bytecode was ever made for: that knows its source by whole seconds."""
    at = file.stat().st_mtime + 10.0
    file.write_text(text)
    os.utime(file, (at, at))


@dataclass
class Run:
    """Tests that run in a copy, in a child of this process."""

    folder: Path
    tests: Sequence[str]
    limit_s: float | None = LIMIT_S

    def __post_init__(self) -> None:
        self.said = self.folder / "said.txt"
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            self._be_pytest()

    def _be_pytest(self) -> NoReturn:
        code = 70
        with contextlib.suppress(BaseException), self.said.open("wb") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            if self.limit_s is not None:
                faulthandler.dump_traceback_later(self.limit_s, exit=True)
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = str(self.folder / "src")
            sys.path[:] = [
                str(self.folder),
                str(self.folder / "src"),
                *(path for path in sys.path if path and Path(path) not in (ROOT, ROOT / "src")),
            ]
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "holdfast")]:
                del sys.modules[name]
            sys.modules["__main__"] = ModuleType("__main__")
            code = int(pytest.main([*OPTIONS, *self.tests]))
            sys.stdout.flush()
        os._exit(code)


@dataclass
class Trial:
    """A mutation that stands in a copy, and its tests, which run there."""

    mutation: Mutation
    run: Run
    file: Path
    text: str

    def fate(self, code: int) -> tuple[Fate, str]:
        """What became of it, and what says so; the copy is as before afterwards."""
        written(self.file, self.text)
        said = self.run.said.read_text(errors="replace")
        tests = " ".join(self.mutation.tests)
        if code == 0:
            return "survived", f"by {tests}"
        if code == NO_SUCH_TEST:
            return "no longer applies", f"there is no {tests}"
        if code not in (
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.INTERRUPTED,
        ):  # the latter: in collection
            raise RuntimeError(f"pytest ended with {code} for {tests}:\n{said}")
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "found", failed[-1] if failed else "it did not end"


def begun(folder: Path, mutation: Mutation) -> Trial | str:
    """A trial in a copy, or why there can be none."""
    file = folder / mutation.file
    text = file.read_text() if file.exists() else ""
    if (count := text.count(mutation.old)) != 1:
        return f"its text stands {count} times in {mutation.file}"
    written(file, text.replace(mutation.old, mutation.new))
    return Trial(mutation, Run(folder, mutation.tests), file, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="mutations that have this in their names")
    parser.add_argument("--jobs", type=int, default=1, help="copies to try in at once")
    parser.add_argument("--no-baseline", action="store_true", help="don't see first that the tests pass")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if options.only is None or any(part in m.name for part in options.only)]
    fates: dict[Fate, list[str]] = {"found": [], "survived": [], "no longer applies": []}

    def tell(mutation: Mutation, fate: Fate, why: str) -> None:
        fates[fate].append(mutation.name)
        print(f"{fate:17} {mutation.name}: {why}", flush=True)

    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="holdfast-mutate-") as scratch:
        free = [copied(Path(scratch, str(number))) for number in range(options.jobs)]
        if not options.no_baseline:
            tests = sorted({test for mutation in chosen for test in mutation.tests})
            run = Run(free[0], tests, limit_s=None)  # each has its own limit
            if os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1]):
                print(run.said.read_text())
                print("the tests fail without any mutation: mend that first")
                return 1
        waiting, running = deque(chosen), dict[int, Trial]()
        while waiting or running:
            while waiting and free:
                trial = begun(free[-1], waiting[0])
                if isinstance(trial, Trial):
                    running[trial.run.pid] = trial
                    free.pop()
                else:
                    tell(waiting[0], "no longer applies", trial)
                waiting.popleft()
            if running:
                pid, status = os.wait()
                trial = running.pop(pid)
                tell(trial.mutation, *trial.fate(os.waitstatus_to_exitcode(status)))
                free.append(trial.run.folder)
    print(json.dumps({"mutations": len(chosen), **fates, "found": len(fates["found"])}))
    return 0 if len(fates["found"]) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
