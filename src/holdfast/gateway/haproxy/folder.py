"""The private folder of one gateway's HAProxy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

PREFIX = "holdfast-gateway-"
LOCK = "lock"


class Folder:
    """A folder that only this user can enter. Its maker deletes the folders of gateways that were killed."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 0700
        new = self.path / f"{LOCK}.new"
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._hidden: dict[str, int] = {}
        self._closed = False
        new.rename(self.path / LOCK)  # renamed, so that no other gateway sees an unlocked folder

    @property
    def descriptors(self) -> Collection[int]:
        """The file descriptors that processes inherit to read the hidden secrets."""
        return self._hidden.values()

    def close(self) -> None:
        """Delete the folder, once."""
        if self._closed:
            return
        self._closed = True
        shutil.rmtree(self.path, ignore_errors=True)
        for descriptor in (self._lock, *self.descriptors):
            os.close(descriptor)

    def hide(self, text: str, name: str) -> str:
        """Return a path where processes that inherit ``descriptors`` read the latest secret of this name. On
        Linux the secret is only in memory; elsewhere it is in a file of this folder."""
        if sys.platform != "linux":
            file = self.path / name
            file.touch(mode=0o600)
            file.write_text(text)
            return str(file)
        if (descriptor := self._hidden.get(name)) is None:
            descriptor = self._hidden[name] = os.memfd_create(name)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        return f"/proc/self/fd/{descriptor}"


def _sweep(parent: Path) -> None:
    """Delete this user's unlocked folders. The kernel frees a lock when its process ends."""
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
