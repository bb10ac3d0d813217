"""The port that sends metrics to a collector, beside the page that serves them."""

from __future__ import annotations

from typing import Protocol


class MetricsPush(Protocol):
    """Sends the metrics of one program to a collector. No call waits long for the collector, or fails because
    of it."""

    async def run(self) -> None:
        """Send them at intervals, until cancelled."""

    async def close(self) -> None:
        """Send them once more, within two seconds."""
