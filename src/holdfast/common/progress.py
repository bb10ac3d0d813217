"""Whether work advances, and which deliveries to extend because it does."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Visibility(msgspec.Struct):
    """The queue's lease on one delivery: it shows again at ``expires_at`` unless extended (monotonic)."""

    receipt: str
    expires_at: float
    stale: bool = False


def hung(progress_at: float, now: float, timeout_s: float) -> bool:
    """True if work that last advanced at ``progress_at`` has stood still for too long."""
    return now >= progress_at + timeout_s


def due(deliveries: Iterable[Visibility], now: float, visibility_s: float) -> list[Visibility]:
    """The deliveries to extend now: those with less than half of their visibility left.

    One call then covers everything that was received in the same while, and a failed call leaves time
    for another. A delivery known to be stale is never used again."""
    horizon = now + visibility_s / 2
    return [delivery for delivery in deliveries if not delivery.stale and delivery.expires_at <= horizon]


def chunks(items: list[str], size: int) -> list[list[str]]:
    """Cut a list into calls of at most ``size``."""
    return [items[i : i + size] for i in range(0, len(items), size)]
