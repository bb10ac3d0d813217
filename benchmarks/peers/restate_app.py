"""Services of Restate, for ``benchmarks.restate``: a virtual object keeps a sum for each key, and sends one
message to another object for each that it handles. Hypercorn serves ``app``.
"""

from __future__ import annotations

from typing import Any

import restate

teller = restate.VirtualObject("teller")
sink = restate.VirtualObject("sink")


@sink.handler()  # type: ignore[untyped-decorator]
async def take(context: restate.ObjectContext, number: int) -> None:
    """Count what came."""
    context.set("count", (await context.get("count", type_hint=int) or 0) + 1)


@sink.handler(kind="shared")  # type: ignore[untyped-decorator]
async def count(context: restate.ObjectSharedContext) -> int:
    """Tell how much came."""
    return await context.get("count", type_hint=int) or 0


@teller.handler()  # type: ignore[untyped-decorator]
async def tell(context: restate.ObjectContext, number: int) -> None:
    """Add to the key's sum, and send the number on."""
    context.set("sum", (await context.get("sum", type_hint=int) or 0) + number)
    context.object_send(take, key=context.key(), arg=number)


app: Any = restate.app(services=[teller, sink])
