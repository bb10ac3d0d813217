"""Lengths of time and counts, as people read them."""

from __future__ import annotations

UNITS = (("years", 31_557_600), ("d", 86_400), ("h", 3_600), ("min", 60))


def duration(seconds: float) -> str:
    """Return a length of time in the largest unit of which it has two or more, else in seconds: ``95 s``."""
    value = max(0.0, seconds)
    for unit, length in UNITS:
        if value >= 2 * length:
            return f"{value / length:,.0f} {unit}"
    return f"{value:.0f} s"


def counted(count: int, noun: str) -> str:
    """Return a number of things whose plural ends in s: ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
