"""The times at which nodes ask stores for due streams and delayed tasks."""

from __future__ import annotations

ASK_EVERY_S = 5.0
"""Minimum seconds between two questions of a node. The maximum is a quarter longer."""

AHEAD_S = 1.5 * ASK_EVERY_S
"""Seconds by which due work is handed out early, because the next question might come too late."""

LEASE_S = 30.0
"""Seconds after which work that is still due is handed to another node."""


def pause_s(random: float) -> float:
    """Return the pause before a node asks again; ``random`` is from 0 to 1."""
    return ASK_EVERY_S * (1.0 + random / 4)
