"""Names of files at a customer's server: below the customer's root, whatever a template was filled with.

A name is relative to the root, its segments split by ``/``.
"""

from __future__ import annotations

import unicodedata

from holdfast.errors import InvalidMessage

SEGMENT_BYTES_MAX = 255
NAME_BYTES_MAX = 1024
FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of Unicode: controls, lone surrogates, line and paragraph separators."""

PART = ".part"
"""How temporary names end, that no customer's pattern takes for a report's."""


def check(name: str) -> str:
    """The name itself. Raises InvalidMessage for one that is absolute, climbs, is empty in a segment, holds a
    backslash or a control character, or is over 255 bytes a segment or 1,024 in all."""
    wrong = _wrong(name)
    if wrong:
        raise InvalidMessage(f"the remote name {_shown(name)} {wrong}", field="name")
    return name


def temporary(name: str, token: str) -> str:
    """Return the name under which the file ``name`` is written until it is finished: hidden, in the same
    folder, and its own for each ``token`` (letters and digits)."""
    folder, slash, last = check(name).rpartition("/")
    end = f".{token}{PART}"
    room = SEGMENT_BYTES_MAX - len(end) - 1
    cut = last.encode()[:room].decode(errors="ignore")
    return check(f"{folder}{slash}.{cut}{end}")


def _wrong(name: str) -> str:
    if name.startswith("/"):
        return "is absolute: give one below the destination's folder"
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return "has an empty segment, '.' or '..'"
    if "\\" in name:
        return "holds a backslash"
    if any(unicodedata.category(letter) in FORBIDDEN for letter in name):
        return "holds a control character, a line separator or a lone surrogate"
    if max(len(segment.encode()) for segment in segments) > SEGMENT_BYTES_MAX:
        return f"has a segment of over {SEGMENT_BYTES_MAX} bytes"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"is over {NAME_BYTES_MAX} bytes"
    return ""


def _shown(name: str) -> str:
    """For an error's text, which may end in a terminal or a log."""
    return ascii(name if len(name) <= 80 else f"{name[:80]}...")
