"""The registry: small documents by name that the nodes, producers and operators of an app share."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Document(msgspec.Struct, frozen=True):
    """A document as it stands. ``version`` grows with each change, and never comes twice for a name."""

    name: str
    version: int
    body: bytes


class Registry(Protocol):
    """Documents by name, each changed by compare-and-set on its version.

    Raises Unavailable (nothing happened) or OutcomeUnknown.

    Attributes:
        max_bytes: largest document.
    """

    max_bytes: int

    async def get(self, name: str) -> Document | None:
        """The document, or None."""

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        """Write a document if its version is ``expect`` (0: there is none); returns it as it stands then.
        None if another version stands. Raises TooLarge."""

    async def drop(self, name: str, expect: int) -> bool:
        """Remove a document if its version is ``expect``; False if another stands, or none."""

    async def list(self, prefix: str) -> list[Document]:
        """All documents whose names begin so, in order of name."""

    async def changed(self, name: str, version: int, wait_s: float) -> Document | None:
        """The document once its version is another than ``version`` (0: there is none), or as it stands after
        ``wait_s``."""

    async def close(self) -> None:
        """Release connections. Waiting calls end with what stands."""
