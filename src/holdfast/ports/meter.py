"""The meter: counts the calls to services, which may cost money."""

from __future__ import annotations

from collections import Counter


class Meter:
    """The number of calls so far by service and operation, such as ``("sqs", "ReceiveMessage")``."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def count(self, service: str, operation: str, times: int = 1) -> None:
        """Count one more call, or several, whether or not they succeed."""
        self.calls[service, operation] += times

    def drain(self) -> list[tuple[str, str, int]]:
        """Return the counts and reset them, so that another meter can add them."""
        counts = [(service, operation, times) for (service, operation), times in self.calls.items()]
        self.calls.clear()
        return counts
