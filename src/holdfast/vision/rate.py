"""Leaves frames out, so that no more are taken than are wanted."""

from __future__ import annotations


class FrameRate:
    """Tells which frames of a video are taken, so that at most ``fps`` remain of each second; None: all."""

    def __init__(self, fps: float | None) -> None:
        self._fps = fps
        self._due_s = self._last_s = 0.0

    def takes(self, time_s: float) -> bool:
        """Return whether the frame of that time, in seconds from the first, is taken."""
        if self._fps is None:
            return True
        # A hair early is on time, for timestamps are rounded; and a clock that was set back is right.
        if self._last_s <= time_s < self._due_s - 1e-3:
            return False
        # What a gap leaves out is not made up for.
        due_s = self._due_s + 1 / self._fps
        self._due_s = max(due_s, time_s) if time_s >= self._last_s else time_s + 1 / self._fps
        self._last_s = time_s
        return True
