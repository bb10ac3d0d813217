"""The processors and the memory of the machine that this process may use, within the limits of its container.

Control groups (cgroups) limit containers, and the system's own figures ignore them. Both versions of cgroups
are read. A limit may be set at any group above this process, so the smallest counts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
UNLIMITED_BYTES = 1 << 60
"""Bytes above which the first version of cgroups means no limit."""


class _Limit(NamedTuple):
    """The limit of a group, in cores or bytes, and the group's folder."""

    most: float
    folder: Path


class Machine:
    """Processors and memory that this process may use. Limits are read once, when it is made."""

    def __init__(self, groups: Path = GROUPS, own: Path = OWN) -> None:
        v2, v1_cpu, v1_cpu_time, v1_memory = (
            _folders(groups, own, name) for name in ("", "cpu", "cpuacct", "memory")
        )
        self._cpu = _smallest([*_limits(v2, _cores_v2), *_limits(v1_cpu, _cores_v1)])
        self._memory = _smallest([*_limits(v2, _bytes_v2), *_limits(v1_memory, _bytes_v1)])
        self._cpu_time = None if self._cpu is None else _cpu_time(self._cpu.folder, v1_cpu_time)
        self._last: tuple[float, float] | None = None

    @property
    def cores(self) -> float:
        """The number of cores that this process may use at once. A container's share may be a fraction."""
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return allowed if self._cpu is None else min(allowed, self._cpu.most)

    @property
    def whole_cores(self) -> int:
        """The number of cores that this process may use at once, rounded down, and at least 1."""
        return max(1, int(self.cores))

    @property
    def memory_bytes(self) -> int:
        """The memory that this process may use, in bytes."""
        import psutil  # noqa: PLC0415

        whole = psutil.virtual_memory().total
        return whole if self._memory is None else min(whole, int(self._memory.most))

    def shares(self) -> tuple[float, float]:
        """Return the share of the processors that was in use since the last call, and the share of memory in
        use now. A share is 0 if the system can't be read, as without free file descriptors; the first call
        has 0 for the processors."""
        import psutil  # noqa: PLC0415

        try:
            return self._cpu_share(), self._memory_share()
        except (OSError, psutil.Error):
            return 0.0, 0.0

    def _cpu_share(self) -> float:
        import psutil  # noqa: PLC0415

        if self._cpu_time is None:
            return psutil.cpu_percent() / 100
        now, used_s = time.monotonic(), self._cpu_s()
        then, used_then_s = self._last or (now, used_s)
        self._last = now, used_s
        return min(1.0, max(0.0, used_s - used_then_s) / (max(now - then, 1e-3) * self.cores))

    def _memory_share(self) -> float:
        import psutil  # noqa: PLC0415

        whole = psutil.virtual_memory()
        if self._memory is None or self._memory.most >= whole.total:
            return whole.percent / 100
        return min(1.0, _held_bytes(self._memory.folder) / self._memory.most)

    def _cpu_s(self) -> float:
        if self._cpu_time is None:
            return 0.0
        if self._cpu_time.name == "cpuacct.usage":
            return int(self._cpu_time.read_text()) / 1e9
        return read_table(self._cpu_time)["usage_usec"] / 1e6


def _folders(groups: Path, own: Path, controller: str) -> list[Path]:
    """Return the folders of the groups of this process, its own first. ``controller`` is empty for the second
    version of cgroups. A container often has its own group as the root, whatever its path is."""
    mount = groups / controller
    text = _text(own) or ""
    entries = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for _, names, path in entries:
        if controller in names.split(","):
            group = mount / path.lstrip("/")
            inside = [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
            return [folder for folder in inside if ".." not in folder.parts]
    return [mount]


def _limits(folders: list[Path], read: Callable[[Path], float]) -> list[_Limit]:
    return [_Limit(most, folder) for folder in folders if (most := read(folder)) < math.inf]


def _smallest(limits: list[_Limit]) -> _Limit | None:
    return min(limits, key=lambda limit: limit.most, default=None)


def _cores_v2(folder: Path) -> float:
    quota, _, period = (_text(folder / "cpu.max") or "max").strip().partition(" ")
    return math.inf if quota == "max" else int(quota) / int(period or 100_000)


def _cores_v1(folder: Path) -> float:
    quota, period = (int(_text(folder / f"cpu.cfs_{name}_us") or -1) for name in ("quota", "period"))
    return quota / period if quota > 0 and period > 0 else math.inf


def _bytes_v2(folder: Path) -> float:
    most = (_text(folder / "memory.max") or "max").strip()
    return math.inf if most == "max" else int(most)


def _bytes_v1(folder: Path) -> float:
    most = int(_text(folder / "memory.limit_in_bytes") or UNLIMITED_BYTES)
    return most if most < UNLIMITED_BYTES else math.inf


def _cpu_time(limited: Path, v1: list[Path]) -> Path | None:
    """Return the file that counts the processor time of the limited group; None without one."""
    files = (limited / "cpu.stat", limited / "cpuacct.usage", *(folder / "cpuacct.usage" for folder in v1))
    return next((path for path in files if _counts(path)), None)


def _counts(path: Path) -> bool:
    text = _text(path)
    return text is not None and (path.name == "cpuacct.usage" or "usage_usec" in text)


def _held_bytes(folder: Path) -> int:
    """Return the bytes that a group holds, without files in the cache that the system can drop."""
    v2 = folder / "memory.current"
    held = int((v2 if v2.exists() else folder / "memory.usage_in_bytes").read_text())
    cached = read_table(folder / "memory.stat")
    return max(0, held - cached.get("total_inactive_file", cached.get("inactive_file", 0)))


def read_table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
