"""Mappings that keep only their newest entries."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def remember(known: dict[str, T], key: str, value: T, most: int) -> None:
    """Keep a value as the newest one, and forget the oldest beyond ``most``: new keys appear for as long as a
    node runs."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]
