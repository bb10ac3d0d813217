"""The versions of Holdfast that may run in one cluster: this one, and the release before it."""

from __future__ import annotations

import re
from enum import Enum

import holdfast

OLDEST = "0.2"
"""The oldest release whose nodes run beside nodes of this version."""


class VersionStanding(Enum):
    """The relation of a node's version to this one."""

    SAME = "same"
    BEFORE = "before"
    """Older, and able to run beside this one."""
    TOO_OLD = "too old"
    NEWER = "newer"


def standing(version: str) -> VersionStanding:
    """Compare the version of a node with this one. All corrections of one release are the same. An empty
    text is a version before 0.2, which reported none."""
    other, own = release(version), release(holdfast.__version__)
    if other == own:
        return VersionStanding.SAME
    if other > own:
        return VersionStanding.NEWER
    return VersionStanding.BEFORE if other >= release(OLDEST) else VersionStanding.TOO_OLD


def version_text(version: str) -> str:
    """Return a node's version in words."""
    return version or "a version before 0.2"


def release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; zeros if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
