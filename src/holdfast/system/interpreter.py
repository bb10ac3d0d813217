"""This process' Python, which child processes run too."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

REFUSED = (errno.EACCES, errno.EPERM)


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
