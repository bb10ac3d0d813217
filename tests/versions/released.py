"""The release before this version: its wheel, built from its commit, and an environment that runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

import holdfast

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".cache" / "released"


def version() -> str:
    """The version of the last release, from the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    versions: list[str] = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    return next(version for version in versions if version != holdfast.__version__)


def wheel() -> Path:
    """The wheel of the last release, which is built once."""
    [found] = _once(version(), _build).glob("*.whl")
    return found


def python() -> Path:
    """The Python of an environment with the released wheel, which is made once. Whatever else it needs is
    taken from the environment of the tests."""
    minor = ".".join(map(str, sys.version_info[:2]))
    return _once(f"{version()}-python{minor}", _install) / "bin/python"


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; make it if it isn't there."""
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            make(made)
            made.rename(folder)  # nothing in it names its own place
        except OSError:  # another process was faster
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _build(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "tools/release"), version(), "--into", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for file in (folder / version()).iterdir():
        file.rename(folder / file.name)


def _install(folder: Path) -> None:
    venv.create(folder, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    subprocess.run([*command, "--no-index", "--no-deps", str(wheel())], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for place in Path(sysconfig.get_path("purelib")).iterdir():
        # Neither the code under test nor its entry points: its distribution has another name than this one.
        if "holdfast" not in place.name and place.suffix != ".pth" and not (packages / place.name).exists():
            (packages / place.name).symlink_to(place)
