"""The private folder of one gateway's HAProxy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

PREFIX = "holdfast-gateway-"
LOCK = "lock"


class Folder:
    """A folder that only this user can enter. Made with those deleted that killed gateways have left."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 0700
        made = self.path / f"{LOCK}.new"
        self._lock = os.open(made, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.descriptors: list[int] = []
        made.rename(self.path / LOCK)  # never to be seen without

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)
        for descriptor in (self._lock, *self.descriptors):
            os.close(descriptor)

    def hide(self, text: str, name: str) -> str:
        """A path at which processes read a secret that inherit ``descriptors``. On Linux it is in memory
        alone, and so gone with them; else it is a file in here."""
        if sys.platform != "linux":
            file = self.path / name
            file.touch(mode=0o600)
            file.write_text(text)
            return str(file)
        descriptor = os.memfd_create(name)
        self.descriptors.append(descriptor)
        os.write(descriptor, text.encode())
        return f"/proc/self/fd/{descriptor}"


def _sweep(parent: Path) -> None:
    """Delete this user's folders that nobody has a lock on: the kernel frees it with the process."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
