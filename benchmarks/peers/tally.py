"""Counts what the worker processes of a peer have done: a file to which each task appends one byte."""

from __future__ import annotations

import os
import time
from pathlib import Path

CHECK_S = 0.005


class Tally:
    """Opened by whoever counts, in any process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def count(self) -> None:
        """One more is done."""
        os.write(self._fd, b".")

    @property
    def counted(self) -> int:
        """How many are done."""
        return self._path.stat().st_size

    def wait_for(self, count: int, timeout_s: float) -> float:
        """Wait until so many are done; returns the monotonic time of that."""
        deadline = time.monotonic() + timeout_s
        while self.counted < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.counted} of {count} tasks are done after {timeout_s:g} s")
            time.sleep(CHECK_S)
        return time.monotonic()
