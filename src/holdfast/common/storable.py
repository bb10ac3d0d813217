"""Texts that UTF-8 can carry, so that every store, log and terminal takes them."""

from __future__ import annotations


def storable(text: str) -> str:
    """Return a text with an escape for each character that UTF-8 has no form for, as names of files and texts
    of users' code may hold."""
    return text.encode("utf-8", "backslashreplace").decode()
