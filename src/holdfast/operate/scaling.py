"""The number of nodes that apps want, as two looks at coordinator and queues tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.errors import HoldfastError
from holdfast.rules.cluster.scaling import Glance, NodeWish, apps_of, wish
from holdfast.wiring.services import Services


async def wishes(services: Services, app: str, over_s: float) -> list[NodeWish]:
    """Return how many nodes ``app`` wants, or if that is "" each app that living nodes run. The two looks are
    ``over_s`` seconds apart. Raises Unavailable if the coordinator doesn't answer."""
    before = await _look(services)
    await services.clock.sleep(over_s)
    now = await _look(services)
    return [wish(name, before, now) for name in ([app] if app else apps_of(now.members))]


async def _look(services: Services) -> Glance:
    members = await services.coordinator().members()
    at = services.clock.monotonic()
    queues = sorted({queue for member in members for work in member.load.works for queue in work.queues})
    return Glance(at, members, await _ready(services, queues))


async def _ready(services: Services, queues: Iterable[str]) -> dict[str, int]:
    """Return how many messages are ready in each queue that answers."""
    found: dict[str, int] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = (await services.queue(name).depth()).ready
        except HoldfastError:
            return  # it is then not known, which the rule tells

    await asyncio.gather(*(ask(name) for name in queues))
    return found
