"""Peers: calls from node to node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.common.protocol import Reply, Request

Handler = Callable[[Request], Awaitable[Reply]]


class Peer(Protocol):
    """Calls other nodes, and answers their calls."""

    async def serve(self, handler: Handler) -> str:
        """Start to answer calls; returns the address at which others reach this node.

        Raises ConfigError if the address can't be bound or needs a shared secret."""

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        """Call the node at ``address``. The reply is UnknownMember if the called membership isn't alive
        there.

        Raises NobodyThere if no process listens there, which is evidence that the node is dead. Raises
        Unavailable if the request was not taken for another reason, such as an error of the handler that is
        safe to retry. Raises OutcomeUnknown if the request may have been taken."""

    async def gone(self, address: str, member: str) -> None:
        """Wait until an open connection to that membership's process has closed, or none can be made."""

    async def close(self) -> None:
        """Stop answering, and close all connections."""
