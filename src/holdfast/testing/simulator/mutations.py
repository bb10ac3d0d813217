"""Protections that can be switched off, one at a time, to show that the simulator notices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

RULES: dict[str, str] = {}


@contextlib.contextmanager
def broken(rule: str | None) -> Iterator[None]:
    """Run with one protection switched off."""
    yield
