"""Names of files at a customer's server: always below the customer's root, which they are relative to."""

from __future__ import annotations

import unicodedata

from holdfast.errors import InvalidMessage

SEGMENT_BYTES_MAX = 255
NAME_BYTES_MAX = 1024
FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of Unicode: controls, lone surrogates, line and paragraph separators."""

PART = ".part"
"""The suffix of temporary names, which no customer's pattern takes for a report."""


def check(name: str) -> str:
    """Return the name. Raises InvalidMessage if it is absolute, has an empty segment, ``..``, a backslash or
    a control character, or is over 255 bytes a segment or 1,024 in all."""
    wrong = _wrong(name)
    if wrong:
        raise InvalidMessage(f"the remote name {_shown(name)} {wrong}", field="name")
    return name


def temporary(name: str, token: str) -> str:
    """Return the name of the unfinished file ``name``: hidden, in the same folder, and unique for each
    ``token`` (letters and digits)."""
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
    """Return a name for an error's text, which may end in a terminal or a log."""
    return ascii(name if len(name) <= 80 else f"{name[:80]}...")
