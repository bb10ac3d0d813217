"""Texts that people read: lengths of time, counts, and foreign texts made safe to store and to show.

Texts of messages, tasks and other programs may hold characters that a terminal obeys: colours, titles, a
cursor that moves over other text, text that is shown from right to left.
"""

from __future__ import annotations

import re

UNITS = (("years", 31_557_600), ("d", 86_400), ("h", 3_600), ("min", 60))

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tabs and line ends, marks of direction, separators of lines, and surrogates,
which UTF-8 can't carry."""


def storable(text: str) -> str:
    """Return a text with an escape for each character that UTF-8 can't carry, as file names may hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """Return a text with an escape for each character that a terminal would obey, such as ``\\x1b``."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def visible_json(text: str) -> str:
    """Return a JSON text as ``visible`` does, with the same value."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def duration(seconds: float) -> str:
    """Return a length of time in the largest unit of which it has two or more, else in seconds: ``95 s``."""
    value = max(0.0, seconds)
    for unit, length in UNITS:
        if value >= 2 * length:
            return f"{value / length:,.0f} {unit}"
    return f"{value:.0f} s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, whose plural ends in s: ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
