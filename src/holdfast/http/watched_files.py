"""Notices that files change."""

from __future__ import annotations

import time
from pathlib import Path

LOOK_S = 1.0
"""How often whoever has no occasion of its own looks for changes."""

Stamp = tuple[int, int, int, int]


class WatchedFiles:
    """Files of which somebody has to know when they change. A link that is set to another file is a change
    too. ``pause_s`` is how long after a look nobody looks again, for those who ask often: each look waits for
    the file system."""

    def __init__(self, *paths: Path, pause_s: float = 0.0) -> None:
        self._paths = paths
        self._pause_s = pause_s
        self._again_at = 0.0
        self._stamps = self._look()

    @property
    def changed(self) -> bool:
        """True once after each change."""
        if time.monotonic() < self._again_at:
            return False
        self._again_at = time.monotonic() + self._pause_s
        before, self._stamps = self._stamps, self._look()
        return self._stamps != before

    def _look(self) -> list[Stamp | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp | None:
    """Return what differs when a file, or who may read it, has changed; None if it can't be looked at."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino
