"""The number of nodes that apps need, from two samples of coordinator and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.errors import HoldfastError
from holdfast.rules.cluster.scaling import ClusterSample, ScalingAdvice, advise, apps_of
from holdfast.wiring.services import Services


async def nodes_wanted(services: Services, app: str, over_s: float) -> list[ScalingAdvice]:
    """Return how many nodes ``app`` needs, or if that is "" each app that living nodes run. The two samples
    are ``over_s`` seconds apart. Raises Unavailable if the coordinator doesn't answer."""
    before = await _sample(services)
    await services.clock.sleep(over_s)
    now = await _sample(services)
    return [advise(name, before, now) for name in ([app] if app else apps_of(now.members))]


async def _sample(services: Services) -> ClusterSample:
    members = await services.coordinator().members()
    at = services.clock.monotonic()
    queues = sorted({queue for member in members for work in member.load.works for queue in work.queues})
    return ClusterSample(at, members, await _ready(services, queues))


async def _ready(services: Services, queues: Iterable[str]) -> dict[str, int]:
    """Return how many messages are ready in each queue that answers."""
    found: dict[str, int] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = (await services.queue(name).depth()).ready
        except HoldfastError:
            return  # the rule treats the depth as unknown

    await asyncio.gather(*(ask(name) for name in queues))
    return found
