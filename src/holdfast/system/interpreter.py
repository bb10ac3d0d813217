"""The Python interpreter of this process and its children."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

REFUSED = (errno.EACCES, errno.EPERM)

SWITCH_S = 0.0001
"""Seconds for which a busy thread may keep the interpreter from a ready one (Python's default is 0.005)."""


class QuickSwitches:
    """A short switch interval for the process while any caller holds it. The last release restores the
    interval, unless the program has set another one meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was = 0.0

    def hold(self) -> None:
        """Begin a hold, which ``release`` ends."""
        with self._lock:
            if not self._holders:
                self._was = sys.getswitchinterval()
                sys.setswitchinterval(min(self._was, SWITCH_S))
            self._holders += 1

    def release(self) -> None:
        """End a hold."""
        with self._lock:
            self._holders -= 1
            if not self._holders and abs(sys.getswitchinterval() - min(self._was, SWITCH_S)) < SWITCH_S / 10:
                sys.setswitchinterval(self._was)


quick_switches = QuickSwitches()
"""The switch interval of this process."""


def not_run(error: OSError, folder: Path | None = None) -> str:
    """Return why this Python could not be run in ``folder``, or in the working directory, and what to do. An
    event loop's error names no path."""
    text = f"can't run {sys.executable}"
    if folder is not None:
        text += f" in {folder}"
    text += f": {error.strerror or error}"
    if error.errno in REFUSED:
        return (
            f"{text}; let the user with id {os.geteuid()} execute it and enter all folders on its path, or"
            " install Holdfast where that user may"
        )
    if error.errno == errno.ENOENT:
        return f"{text}; if it was moved or removed, install Holdfast again and restart this process"
    return text
