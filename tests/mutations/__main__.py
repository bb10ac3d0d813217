"""``make mutate``: break the code in one place at a time, and see that a test finds it.

Each mutation of :mod:`tests.mutations.table` is applied to a copy of the tree, in which only the tests named
beside it run. The last line is JSON: how many were found, which survived, and which no longer apply,
because the text that they replace is gone or stands there twice, or a test has another name. Exit code 0 says
that all were found.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from shutil import copyfile
from typing import Literal

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
SHARED = (".venv", ".cache")
"""What a copy has in common with the tree."""

LIMIT_S = 600.0
"""Tests that a mutation has hang so long have found it."""

TESTS_FAILED, COLLECTION_FAILED, NO_SUCH_TEST = 1, 2, 4
"""Exit codes of pytest."""

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


def ran(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """The exit code of pytest, and what it said."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return TESTS_FAILED, f"no end within {LIMIT_S:g} s"
    return done.returncode, done.stdout + done.stderr


def tried(folder: Path, mutation: Mutation) -> tuple[Fate, str]:
    """What becomes of a mutation in a copy, which is as before afterwards; and what says so."""
    file = folder / mutation.file
    text = file.read_text() if file.exists() else ""
    if (count := text.count(mutation.old)) != 1:
        return "no longer applies", f"its text stands {count} times in {mutation.file}"
    file.write_text(text.replace(mutation.old, mutation.new))
    try:
        code, said = ran(folder, mutation.tests)
    finally:
        file.write_text(text)
    if code in (TESTS_FAILED, COLLECTION_FAILED):
        [*_, last] = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))] or [""]
        return "found", last
    if code == NO_SUCH_TEST:
        return "no longer applies", f"there is no {' '.join(mutation.tests)}"
    if code:
        raise RuntimeError(f"pytest ended with {code} for {mutation.tests}:\n{said}")
    return "survived", f"by {' '.join(mutation.tests)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="mutations that have this in their name"
    )
    parser.add_argument("--jobs", type=int, default=1, help="copies to try in at once")
    parser.add_argument("--no-baseline", action="store_true", help="don't see first that the tests pass")
    options = parser.parse_args()
    mutations = [each for each in MUTATIONS if not options.only or any(n in each.name for n in options.only)]
    fates: dict[Fate, list[str]] = {"found": [], "survived": [], "no longer applies": []}
    folders = SimpleQueue[Path]()

    def judge(mutation: Mutation) -> tuple[Fate, str]:
        folder = folders.get()
        try:
            return tried(folder, mutation)
        finally:
            folders.put(folder)

    with tempfile.TemporaryDirectory(prefix="holdfast-mutate-") as scratch:
        for number in range(options.jobs):
            folders.put(copied(Path(scratch, str(number))))
        if not options.no_baseline:
            folder = folders.get()
            code, said = ran(folder, sorted({test for mutation in mutations for test in mutation.tests}))
            folders.put(folder)
            if code:
                print(said)
                print("the tests fail without any mutation: mend that first")
                return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutation, (fate, why) in zip(mutations, pool.map(judge, mutations), strict=True):
                fates[fate].append(mutation.name)
                print(f"{fate:17} {mutation.name}: {why}", flush=True)
    print(json.dumps({"mutations": len(mutations), **fates, "found": len(fates["found"])}))
    return 0 if len(fates["found"]) == len(mutations) else 1


if __name__ == "__main__":
    sys.exit(main())
