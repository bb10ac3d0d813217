"""What a benchmark prints: a summary for people, then one line of JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass
class Report:
    """One run of the benchmark ``name``. ``figures`` are what targets are set for, ``detail`` the rest."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """A line of the summary."""
        print(text, flush=True)

    def figure(self, name: str, value: float, target: str = "") -> None:
        """A measured number, and the target it is held to."""
        self.figures[name] = round(value, 3)
        if target:
            self.detail.setdefault("targets", {})[name] = target
        self.say(f"  {name:<22}{self.figures[name]:>12,}{f'   target {target}' if target else ''}")

    def end(self, packages: Sequence[str] = (), **detail: Any) -> None:
        """Say where it was measured, and print the JSON line."""
        self.detail |= detail | {"arguments": sys.argv[1:]}
        self.detail["versions"] = versions(packages)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        found = ", ".join(f"{name} {number}" for name, number in self.detail["versions"].items())
        self.say(f"on {cores} cores; {found}")
        line = {"benchmark": self.name, "cores": cores, "figures": self.figures, "detail": self.detail}
        self.say(json.dumps(line, default=str))


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python, SQLite, the system, and of installed packages."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in ("holdfast-streams", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | {"system": f"{platform.system()} {platform.release()}"}


class Unmeasurable(Exception):
    """What is to be measured didn't take place."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values don't exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
