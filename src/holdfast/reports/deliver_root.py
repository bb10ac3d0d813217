"""The check that a destination's URL lies below a customer's root. In doubt it doesn't.

Servers read double encoding, ``..`` and odd letters in different ways. A URL that some server could take for
another folder lies below no root.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

PORTS = {"ftp": 21, "ftpes": 21, "ftps": 990, "sftp": 22, "http": 80, "https": 443}
HIDES = re.compile(r"[\x00-\x20\x7f\\]|%(?:25|2f|5c|0|1|7f)", re.IGNORECASE)
"""Forbidden in a path: controls, spaces, backslashes; and encoded slashes, backslashes, controls and per cent
signs."""


class _Place(NamedTuple):
    """``absolute``: from the server's root, not from the login folder."""

    scheme: str
    host: str
    port: int
    query: str
    absolute: bool
    segments: tuple[str, ...]


def is_below(url: str, root: str) -> bool:
    """Return whether ``url`` is ``root`` or a folder below it, with the same scheme, host, port, options and
    letters."""
    place, limit = _place(url), _place(root)
    if place is None or limit is None or place[:-1] != limit[:-1]:
        return False
    return place.segments[: len(limit.segments)] == limit.segments


def _place(url: str) -> _Place | None:
    """Return the parts of a URL; None if it can be read in two ways."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
        path = unquote(parts.path, errors="strict")
    except ValueError:
        return None
    if HIDES.search(url.partition("?")[0]) or parts.fragment or "@" in parts.netloc:
        return None
    if any(unicodedata.normalize("NFKC", each) in (".", "..") for each in path.split("/")):
        return None
    absolute = path.startswith("//")
    segments = _segments(parts, path.removeprefix("/").removeprefix("/").rstrip("/"))
    if "" in segments:
        return None
    # A bucket's name is case-sensitive, a host's isn't.
    host = parts.netloc if parts.scheme == "s3" else parts.hostname or ""
    return _Place(parts.scheme, host, port, parts.query, absolute, segments)


def _segments(parts: SplitResult, path: str) -> tuple[str, ...]:
    if parts.scheme == "file":  # links on this machine are followed
        return Path(unquote(parts.path)).resolve().parts
    return tuple(path.split("/")) if path else ()
