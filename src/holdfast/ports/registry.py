"""The registry: small documents by name that the nodes, producers and operators of an app share."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.errors import TooLarge


class Document(msgspec.Struct, frozen=True):
    """A document. ``version`` grows with each change, and is never used twice for a name."""

    name: str
    version: int
    body: bytes


def check_document(name: str, body: bytes, max_bytes: int) -> None:
    """Raise TooLarge for a document over the limit of a registry."""
    if len(body) > max_bytes:
        raise TooLarge(f"{name}: a document of {len(body)} bytes is over max_bytes, {max_bytes}")


class Registry(Protocol):
    """Documents by name, each changed by compare-and-set on its version.

    Raises Unavailable (nothing happened) or OutcomeUnknown.

    Attributes:
        max_bytes: the largest document in bytes.
    """

    max_bytes: int

    async def get(self, name: str) -> Document | None:
        """Return the document, or None."""

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        """Write a document if its version is ``expect`` (0: the document is new), and return the new
        document. Return None if it has another version. Raises TooLarge."""

    async def drop(self, name: str, expect: int) -> bool:
        """Delete a document if its version is ``expect``; return False if it has another version, or doesn't
        exist."""

    async def list(self, prefix: str) -> list[Document]:
        """Return all documents whose names begin with ``prefix``, in order of name."""

    async def changed(self, name: str, version: int, wait_s: float) -> Document | None:
        """Wait until the document's version differs from ``version`` (0: the document doesn't exist), at most
        ``wait_s``; return the document."""

    async def close(self) -> None:
        """Close all connections. Waiting calls end with the present document."""
