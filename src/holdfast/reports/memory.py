"""The settings that limit how much freed memory a process keeps."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import pyarrow as pa

M_ARENA_MAX = -8
"""Of ``mallopt`` in glibc's ``malloc.h``."""

ARENAS = 2


@cache
def keep_little() -> None:
    """Have Arrow and the C library keep little. Arrow's other pools keep a quarter of the peak for ever, and
    glibc, with an arena for every thread, a tenth of it."""
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
