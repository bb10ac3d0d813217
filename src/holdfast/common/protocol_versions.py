"""The versions of the protocol between nodes. Two processes use the highest version that both support."""

from __future__ import annotations

import re
from typing import NamedTuple

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class ProtocolVersions(NamedTuple):
    """A range of versions, with both ends. As text it is ``1-2``, or ``1`` for a single version."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"

    def common(self, other: ProtocolVersions) -> int | None:
        """Return the highest version in both ranges; None if the ranges don't overlap."""
        if self.newest < other.oldest or other.newest < self.oldest:
            return None
        return min(self.newest, other.newest)


OUR_VERSIONS = ProtocolVersions(1, 1)
"""The versions that this release supports. A change that the previous release would misread gets a new
version; the range keeps the version of that release, so that nodes of both run in one cluster."""

VERSIONS_OF_0_2 = ProtocolVersions(1, 1)
"""The versions of a node of Holdfast 0.2, which doesn't announce them."""


def parse_versions(text: str | None) -> ProtocolVersions | None:
    """Return the range in a text; None without one."""
    found = _RANGE.fullmatch(text or "")
    return ProtocolVersions(int(found[1]), int(found[2] or found[1])) if found else None


def no_common_version(theirs: ProtocolVersions, ours: ProtocolVersions) -> str:
    """Return the error text for two processes that have no version in common."""
    return (
        f"it speaks peer protocol {theirs}, this process {ours}; only a release and the one before it run in"
        " one cluster: see `holdfast doctor --upgrade`"
    )
