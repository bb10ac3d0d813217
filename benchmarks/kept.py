"""Compares a benchmark's result with the stored one in ``results/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

TOLERANCE = 0.3
"""Share by which a ratio may be worse. Those of the same code differ by up to a quarter within an hour, on
machines that others share."""


def worse(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what is worse than it was, a line each: ratios beyond the tolerance, and promises that are
    broken. Only ratios are compared: a rate or a time is that of its machine. Nothing is compared with a
    result of another size, for ratios depend on that too."""
    targets = now["detail"].get("targets", {})
    alike = stored["detail"].get("arguments") == now["detail"].get("arguments")
    found = []
    for name, value in now["figures"].items():
        target, before = targets.get(name, ""), stored["figures"].get(name)
        if target == "0" and value:
            found.append(f"{name} is {value:g}, and has to be 0")
        elif (
            alike
            and before
            and is_ratio(name)
            and fell(before, value, lower_is_better=target[:1] in ("<", "≤"))
        ):
            found.append(f"{name} is {value:g}, and was {before:g}")
    return found


def is_ratio(name: str) -> bool:
    """Return whether a figure compares two measurements of one run."""
    return "vs" in name.split("_")


def fell(before: float, now: float, *, lower_is_better: bool) -> bool:
    """Return whether a ratio is worse beyond the tolerance."""
    return now > before * (1 + TOLERANCE) if lower_is_better else now < before * (1 - TOLERANCE)
