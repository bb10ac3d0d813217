"""The meter: counts calls to services, for what they cost."""

from __future__ import annotations

from collections import Counter


class Meter:
    """Calls so far by service and operation, such as ``("sqs", "ReceiveMessage")``."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def count(self, service: str, operation: str, times: int = 1) -> None:
        """One more call went out, or several, whatever comes of it."""
        self.calls[service, operation] += times

    def drain(self) -> list[tuple[str, str, int]]:
        """The counts, which begin anew: for another meter to add."""
        counts = [(service, operation, times) for (service, operation), times in self.calls.items()]
        self.calls.clear()
        return counts
