"""Gives memory back to the system that a large piece of work freed and the C library would keep."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

SLACK_BYTES = 32 << 20
"""How many more bytes a process may hold than before without giving memory back. Usual messages stay
below."""


class Resident:
    """Gives back to the system what this process freed and still holds. It works only with glibc; other C
    libraries do this themselves, or have no such call."""

    def __init__(self) -> None:
        self._statm = -1
        self._trim = None
        with contextlib.suppress(AttributeError, OSError):
            trim = ctypes.CDLL(None).malloc_trim
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._trim = trim
        self._settled = self.held()

    def held(self) -> int:
        """Return how many bytes of memory are resident now; 0 if nothing can be given back."""
        if self._trim is None:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[1]) * mmap.PAGESIZE

    def settle(self) -> None:
        """Give free memory back if much was taken or freed since the last call. The check is one system
        call."""
        if self._trim is not None and abs(self.held() - self._settled) > SLACK_BYTES:
            self._trim(0)
            self._settled = self.held()
