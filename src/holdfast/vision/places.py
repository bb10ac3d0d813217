"""The names of frames in the object store."""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def object_name(video: str, run: int, number: int) -> str:
    """Return the name of a frame's object. A video id that isn't a plain folder name is replaced by its
    digest."""
    folder = video if _PLAIN.fullmatch(video) else hashlib.sha256(video.encode()).hexdigest()[:32]
    return f"frames/{folder}/{run}/{number:08d}.jpg"
