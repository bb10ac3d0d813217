"""This process' Python, which child processes run too."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

REFUSED = (errno.EACCES, errno.EPERM)

SWITCH_S = 0.0001
"""How long a busy thread may keep the interpreter from one that is ready (Python's default is 0.005)."""


class QuickSwitches:
    """Cuts the time that a busy thread keeps the interpreter, for all of the process, while anything holds
    this. Then the time is as it was before, unless the program has set another one meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was = 0.0

    def hold(self) -> None:
        """Hold it; as often as that, ``release`` it."""
        with self._lock:
            if not self._holders:
                self._was = sys.getswitchinterval()
                sys.setswitchinterval(min(self._was, SWITCH_S))
            self._holders += 1

    def release(self) -> None:
        """Hold it no longer."""
        with self._lock:
            self._holders -= 1
            if not self._holders and abs(sys.getswitchinterval() - min(self._was, SWITCH_S)) < SWITCH_S / 10:
                sys.setswitchinterval(self._was)


quick_switches = QuickSwitches()
"""That of this process."""


def not_run(error: OSError, folder: Path | None = None) -> str:
    """Return why this Python could not be run in ``folder``, or where this process works, and what to do.
    An event loop's error names no path."""
    told = f"can't run {sys.executable}"
    if folder is not None:
        told += f" in {folder}"
    told += f": {error.strerror or error}"
    if error.errno in REFUSED:
        return (
            f"{told}; let the user with id {os.geteuid()} execute it and enter all folders on its path, or"
            " install Holdfast where that user may"
        )
    if error.errno == errno.ENOENT:
        return f"{told}; if it was moved or removed, install Holdfast again and start this process anew"
    return told
