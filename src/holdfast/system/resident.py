"""Memory that a large piece of work took and freed, and that the C library would keep."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

SLACK_BYTES = 32 << 20
"""What a process may hold more than before without being tidied up: usual messages never do."""


class Resident:
    """Gives back to the system what this process freed and still holds. Only where the C library is glibc:
    others give it back themselves, or have no such call."""

    def __init__(self) -> None:
        self._statm = -1
        self._trim = None
        with contextlib.suppress(AttributeError, OSError):
            trim = ctypes.CDLL(None).malloc_trim
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._trim = trim
        self._settled = self.held()

    def held(self) -> int:
        """The bytes of memory that are resident now; 0 where nothing could be given back."""
        if self._trim is None:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[1]) * mmap.PAGESIZE

    def settle(self) -> None:
        """Give back what is free, if since the last time much more was taken, or much was freed. It takes one
        system call to look."""
        if self._trim is not None and abs(self.held() - self._settled) > SLACK_BYTES:
            self._trim(0)
            self._settled = self.held()
