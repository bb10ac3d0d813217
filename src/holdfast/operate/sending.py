"""Sending to streams."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.streams.declared import run_by_nodes
from holdfast.wiring.services import Services


async def stream_warning(services: Services, stream: str) -> str:
    """Return a warning if nodes live and none of them runs the stream; else an empty text. Most such names
    are misspelt."""
    try:
        declared = await run_by_nodes(services.coordinator())
    except HoldfastError:  # what is sent waits in its queue in any case
        return ""
    if not declared or stream in declared:
        return ""
    return (
        f"no node runs a stream {stream!r}; what is sent waits until one does. They run {', '.join(declared)}"
    )
