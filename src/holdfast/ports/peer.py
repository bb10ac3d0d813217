"""Peers: calls from node to node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.common.protocol import Reply, Request

Handler = Callable[[Request], Awaitable[Reply]]


class Peer(Protocol):
    """Both sides of one node's traffic with other nodes."""

    async def serve(self, handler: Handler) -> str:
        """Begin to answer calls; returns the address that others reach this node at.

        Raises ConfigError if the address can't be bound or needs a shared secret."""

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        """Call the node at ``address``. The reply is Stranger if the membership called doesn't live there.

        Raises NobodyThere if no process listens there, which is evidence that the node is dead; Unavailable
        if the request was not taken for any other reason (the handler refused with an error that is safe to
        retry, say), OutcomeUnknown if it may have been."""

    async def gone(self, address: str, member: str) -> None:
        """Return when an open connection to that membership's process has closed, or none can be made."""

    async def close(self) -> None:
        """Stop answering and drop connections."""
