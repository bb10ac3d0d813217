"""What files hold after a power failure: only what the disk was asked to keep."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Keeps what a file held, and which names a folder had, when the disk was last asked to keep it.

    It stands between this process and the system: what SQLite's own code asks for is not seen.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self._and_keep(getattr(os, name)))
        full = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS
        control = fcntl.fcntl
        keeping = self._and_keep(control)
        monkeypatch.setattr(
            fcntl,
            "fcntl",
            lambda fd, command, *rest: (keeping if command == full else control)(fd, command, *rest),
        )

    def held(self, path: Path) -> bytes:
        """What the file there would hold; nothing if the disk was never asked."""
        return self._files.get(path.stat().st_ino, b"")

    def found(self, path: Path, root: Path) -> bytes | None:
        """What would be found by that name below ``root``, a folder that was there all along."""
        folder = root
        for name in path.relative_to(root).parts:
            number = self._folders.get(folder.stat().st_ino, {}).get(name)
            folder /= name
            if number != folder.stat().st_ino:
                return None
        return self.held(path)

    def _and_keep(self, sync: Callable[..., Any]) -> Callable[..., Any]:
        def synced(fd: int, *rest: Any) -> Any:
            done = sync(fd, *rest)
            about = os.fstat(fd)
            if stat.S_ISDIR(about.st_mode):
                self._folders[about.st_ino] = {entry.name: entry.inode() for entry in os.scandir(fd)}
            else:
                # By name: the file may be open for writing only.
                self._files[about.st_ino] = Path(f"/dev/fd/{fd}").read_bytes()
            return done

        return synced
