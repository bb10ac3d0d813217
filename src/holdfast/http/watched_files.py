"""Files that are watched for changes."""

from __future__ import annotations

import time
from pathlib import Path

LOOK_S = 1.0
"""Seconds between two checks for changes."""

Stamp = tuple[int, int, int, int]


class WatchedFiles:
    """Files to watch. A link that is set to another file counts as a change. Within ``pause_s`` after a
    check there is no other one, because each check waits for the file system."""

    def __init__(self, *paths: Path, pause_s: float = 0.0) -> None:
        self._paths = paths
        self._pause_s = pause_s
        self._again_at = 0.0
        self._stamps = self._read_stamps()

    @property
    def changed(self) -> bool:
        """True once after each change."""
        if time.monotonic() < self._again_at:
            return False
        self._again_at = time.monotonic() + self._pause_s
        before, self._stamps = self._stamps, self._read_stamps()
        return self._stamps != before

    def _read_stamps(self) -> list[Stamp | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp | None:
    """Return times, size and inode of a file, which differ after a change of contents or mode; None on
    errors."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
