"""Finds the programs of servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]
INSTALLED = Path(".cache/servers")
"""Where ``tools/servers/install`` puts what it gets, below the folder of a checkout."""


COMES_WITH = {"promtool": "prometheus"}
"""Programs that ``tools/servers/install`` gets with another one."""


def find(name: str, *, folders: Sequence[Path] | None = None) -> Path:
    """The program of a server: from the system, else as installed in the checkout of Holdfast that is
    worked in or that this module is of. Raises ConfigError if there is none."""
    folders = [Path.cwd(), CHECKOUT] if folders is None else folders
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    if found := shutil.which(name, path=path):
        return Path(found)
    for folder in folders:
        program = folder / INSTALLED / name / name
        if os.access(program, os.X_OK):
            return program.absolute()
    raise ConfigError(
        f"the server program {name} is missing: run tools/servers/install {COMES_WITH.get(name, name)} in a"
        " checkout of Holdfast, or put it on PATH"
    )


def find_file(name: str, file: str) -> Path:
    """A file that is no program, as installed in the checkout of Holdfast that is worked in or that this
    module is of. Raises ConfigError if there is none."""
    for folder in (Path.cwd(), CHECKOUT):
        path = folder / INSTALLED / name / file
        if path.is_file():
            return path.absolute()
    raise ConfigError(f"{file} is missing: run tools/servers/install {name} in a checkout of Holdfast")
