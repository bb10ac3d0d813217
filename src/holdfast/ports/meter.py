"""The meter: counts calls to services, for what they cost."""

from __future__ import annotations

from collections import Counter


class Meter:
    """Calls so far by service and operation, such as ``("sqs", "ReceiveMessage")``."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def count(self, service: str, operation: str) -> None:
        """One more call went out, whatever comes of it."""
        self.calls[service, operation] += 1
