"""The times at which nodes ask stores what is due though no message comes: streams, and delayed tasks."""

from __future__ import annotations

ASK_EVERY_S = 5.0
"""How long a node pauses at least before it asks again, and at most a quarter longer."""

AHEAD_S = 1.5 * ASK_EVERY_S
"""What is due so soon is handed out early, which is harmless: the next time might be too late."""

LEASE_S = 30.0
"""After how long what is still due is handed to somebody else."""


def pause_s(random: float) -> float:
    """Return the pause before a node asks again; ``random`` is from 0 to 1."""
    return ASK_EVERY_S * (1.0 + random / 4)
