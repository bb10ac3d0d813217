"""A process with all that it started: who they are, and how much memory they use together."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

MIB = 1 << 20

KERNEL_TELLS = Path("/proc/thread-self/children").exists()
"""Which children a process has; else every process there is must be looked through."""


def family(pid: int) -> list[psutil.Process]:
    """The processes that live at this moment, the eldest first; none if it is gone."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        eldest = psutil.Process(pid)
        found.append(eldest)
        if not KERNEL_TELLS:
            return [eldest, *eldest.children(recursive=True)]
        for parent in found:
            found += _children(parent.pid)
    return found


def memory_mb(pid: int, limit_mb: int) -> int:
    """Return how much memory a process uses with all that it started, in MiB. Above ``limit_mb`` that is
    exact: a page that several of them share counts once; below it may be told as more."""
    members = family(pid)
    used = sum(_resident(member) for member in members)
    if used > limit_mb * MIB:
        used = sum(_proportional(member) for member in members)
    return used // MIB


def _children(pid: int) -> list[psutil.Process]:
    children: list[psutil.Process] = []
    with contextlib.suppress(OSError):  # it, or a thread of it, has ended
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
        told = process.memory_full_info()
        return int(getattr(told, "pss", told.rss))
    return 0
