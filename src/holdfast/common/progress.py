"""Decisions about progress: whether work hangs, and which deliveries to extend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Visibility(msgspec.Struct):
    """The queue's lease on one delivery. It ends at ``expires_at`` (monotonic seconds) unless extended."""

    receipt: str
    expires_at: float
    stale: bool = False


def hung(progress_at: float, now: float, timeout_s: float) -> bool:
    """Return True if work that last advanced at ``progress_at`` has made no progress for too long."""
    return now >= progress_at + timeout_s


def due(deliveries: Iterable[Visibility], now: float, visibility_s: float) -> list[Visibility]:
    """Return the deliveries to extend now: less than half of their visibility is left, and they aren't stale.

    So one call covers all deliveries of about the same time, and a failed call leaves time for another."""
    horizon = now + visibility_s / 2
    return [delivery for delivery in deliveries if not delivery.stale and delivery.expires_at <= horizon]


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut a list into parts of at most ``size``."""
    return [items[i : i + size] for i in range(0, len(items), size)]
