"""Sending to streams."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.streams.declared import run_by_nodes
from holdfast.wiring.services import Services


async def stream_warning(services: Services, stream: str) -> str:
    """Return a warning if nodes live and none runs the stream, as for a misspelt name; else an empty text."""
    try:
        declared = await run_by_nodes(services.coordinator())
    except HoldfastError:  # the messages wait in their queue anyway
        return ""
    if not declared or stream in declared:
        return ""
    return f"no node runs a stream {stream!r}; messages wait until one does. Nodes run {', '.join(declared)}"
