"""The changed files of a project, found by polling: a watched folder would often report its database, which
is written at each commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.ports.clock import Clock
from holdfast.system.projects import ENVIRONMENT, passed_over

LOOK_S = 0.3
"""Seconds between two polls."""


class ProjectFiles:
    """The Python files below ``folders``, and ``files``, which need not exist. Hidden files and virtual
    environments don't count."""

    def __init__(self, folders: Iterable[Path], files: Iterable[Path], clock: Clock) -> None:
        self._folders = [*folders]
        self._files = [*map(str, files)]
        self._clock = clock
        self._known = self._stamps()

    async def changed(self) -> list[str]:
        """Wait for changes, and until they stop; returns the files that were written, made or removed."""
        changed: set[str] = set()
        while True:
            await self._clock.sleep(LOOK_S)
            before, self._known = self._known, self._stamps()
            found = {path.removeprefix("./") for path, _ in before.items() ^ self._known.items()}
            changed |= found
            if changed and not found:
                return sorted(changed)

    def _stamps(self) -> dict[str, tuple[int, int, int]]:
        """Return time, size and inode of each file by its path: they change with every write."""
        known = {}
        for path in (*(path for folder in self._folders for path in python_files(folder)), *self._files):
            try:
                found = os.stat(path)  # noqa: PTH116 - a tenth of what Path takes, for thousands of files
            except OSError:
                continue
            known[path] = (found.st_mtime_ns, found.st_size, found.st_ino)
        return known


def python_files(folder: Path | str) -> Iterator[str]:
    """Yield the paths of the readable Python files in a folder and its subfolders."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == ENVIRONMENT for entry in entries):
        return
    for entry in entries:
        if passed_over(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from python_files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry.path
