"""Objects: frames and files, by URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol


class Objects(Protocol):
    """A store of immutable objects."""

    async def get(self, url: str) -> bytes:
        """Return the object's bytes. Raises FileNotFoundError, Unavailable, or InvalidMessage for a URL that
        this store doesn't serve."""

    async def put(self, name: str, data: bytes) -> str:
        """Store ``data`` under ``name`` (segments separated by ``/``), completely or not at all; returns its
        URL."""

    def url(self, name: str) -> str:
        """Return the URL that an object of this name has, or would have. Raises InvalidMessage for a name
        that can't be."""

    def urls(self, under: str) -> AsyncIterator[str]:
        """Yield the URLs of all objects whose name begins with the segments ``under``, in any order. An
        object that is put meanwhile may be left out. Raises InvalidMessage for an invalid ``under``, and
        Unavailable."""

    async def close(self) -> None:
        """Close all connections."""
