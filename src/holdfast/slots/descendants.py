"""A process and its descendants, and the memory that they use together."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

MIB = 1 << 20

LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
"""Whether the kernel lists the children of a process; else psutil reads all processes."""


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its living descendants, parents before children; empty if the process has
    ended."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        eldest = psutil.Process(pid)
        found.append(eldest)
        if not LISTS_CHILDREN:
            return [eldest, *eldest.children(recursive=True)]
        for parent in found:
            found += _children(parent.pid)
    return found


def memory_mb(pid: int, limit_mb: int) -> int:
    """Return the memory of a process and its descendants, in MiB. Above ``limit_mb`` the number is exact: a
    shared page counts once. Below, the number may be too high."""
    members = family(pid)
    used = sum(_resident(member) for member in members)
    if used > limit_mb * MIB:
        used = sum(_proportional(member) for member in members)
    return used // MIB


def _children(pid: int) -> list[psutil.Process]:
    children: list[psutil.Process] = []
    with contextlib.suppress(OSError):  # the process or a thread has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                with contextlib.suppress(psutil.Error):
                    children.append(psutil.Process(int(child)))
    return children


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _proportional(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        used = process.memory_full_info()
        return int(getattr(used, "pss", used.rss))
    return 0
