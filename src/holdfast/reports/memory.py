"""The settings that limit how much freed memory a process keeps."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import pyarrow as pa

M_ARENA_MAX = -8
"""The option of glibc's ``mallopt`` that limits the number of arenas."""

ARENAS = 2


@cache
def limit_kept_memory() -> None:
    """Have Arrow and the C library keep little freed memory. Arrow's other pools keep a quarter of the peak,
    and glibc, with an arena for each thread, a tenth."""
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
