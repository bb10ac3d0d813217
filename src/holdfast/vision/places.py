"""Where frames are stored."""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def object_name(video: str, run: int, number: int) -> str:
    """Where a frame is stored. A video id that makes no good folder name is replaced by its digest."""
    folder = video if _PLAIN.fullmatch(video) else hashlib.sha256(video.encode()).hexdigest()[:32]
    return f"frames/{folder}/{run}/{number:08d}.jpg"
