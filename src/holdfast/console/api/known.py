"""Checks of the names in requests. They keep a request that only reads from creating queues and stores for
unknown names."""

from __future__ import annotations

from holdfast.console.parts import ConsoleParts
from holdfast.errors import NotKnown
from holdfast.operate import tasks


async def check_queue(parts: ConsoleParts, name: str) -> None:
    """Raise NotKnown for an unknown queue."""
    if name in parts.overview.queues or name in parts.index.names:
        return
    if any(name in member.load.queues for member in parts.overview.members):
        return
    if name not in await parts.services.queue_names():
        raise NotKnown(f"no queue {name[:200]!r} is known; GET /api/v1/overview lists all")


async def check_app(parts: ConsoleParts, name: str) -> None:
    """Raise NotKnown for an app without tasks."""
    if any(known.app == name for known in parts.overview.tasks):
        return
    try:
        await tasks.check_app(parts.services, name)
    except NotKnown as error:
        raise NotKnown(f"{error}; GET /api/v1/tasks lists all apps") from None
