"""The return of freed memory to the system, which the C library would keep."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

SLACK_BYTES = 32 << 20
"""Bytes of growth before memory is given back. Usual messages stay below."""


class Resident:
    """The resident memory of this process, which is given back when it is free. Works with glibc only: other
    C libraries do this themselves, or have no such call."""

    def __init__(self) -> None:
        self._statm = -1
        self._trim = None
        with contextlib.suppress(AttributeError, OSError):
            trim = ctypes.CDLL(None).malloc_trim
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._trim = trim
        self._settled = self.held()

    def held(self) -> int:
        """Return the resident bytes; 0 if memory can't be given back."""
        if self._trim is None:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[1]) * mmap.PAGESIZE

    def settle(self) -> None:
        """Give free memory back if much was taken or freed since the last call. The check is one system
        call."""
        if self._trim is not None and abs(self.held() - self._settled) > SLACK_BYTES:
            self._trim(0)
            self._settled = self.held()
