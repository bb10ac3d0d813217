"""The port that brings metrics to where they are kept, beside the page where they can be asked for."""

from __future__ import annotations

from typing import Protocol


class MetricsPush(Protocol):
    """Brings the metrics of one program to where they are kept. No call waits long for that place, or fails
    because of it."""

    async def run(self) -> None:
        """Bring them at intervals, until cancelled."""

    async def close(self) -> None:
        """Bring them once more, within two seconds."""
