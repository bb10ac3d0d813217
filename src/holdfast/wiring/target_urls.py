"""Targets of effects at URLs: queues by their URL, and targets in the group ``holdfast.targets``."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.common.acts import HOPS
from holdfast.common.redaction import redact
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import ConfigError, EffectRefused
from holdfast.ports.queue import Outgoing, Queue
from holdfast.ports.target import OutgoingEffect, Target
from holdfast.registration.targets import TargetService, check_target, target_service
from holdfast.registration.urls import shown, with_password
from holdfast.wiring.services import Services

SENDER = "source"
"""The attribute with the sender of an effect: a stream's full key, or a task's type and id."""


class TargetUrls:
    """The opener of targets by URL, with the services of a node."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(self, url: str) -> Target:
        """Open a target. Raises EffectRefused for a URL that can't be a target, and ConfigError for a URL
        that this node can't open as it is set up."""
        try:
            check_target(url)
        except ConfigError as error:
            raise EffectRefused(str(error)) from None
        try:
            return self._open(url)
        except ValueError as error:
            raise EffectRefused(f"target is {shown(url)!r}: {redact(str(error))}") from error

    def _open(self, url: str) -> Target:
        service = target_service(url)
        if isinstance(service, TargetService):
            return service.target(self._services.target_opening(url))
        place, name = service.queue_name(url)
        secret = self._services.target_opening(url).secret
        opening = self._services.opening("target", with_password(place, secret))
        return QueueTarget(opening.shared(("holdfast.target", url), lambda: service.queue(opening, name)))


class QueueTarget:
    """A queue as a target. The message has the effect's body, its id as the deduplication id, and its key as
    the key by which a FIFO queue keeps the order."""

    def __init__(self, queue: Queue) -> None:
        self.max_batch, self.ordered = queue.max_batch, queue.sends_in_order
        self._queue = queue

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        await self._queue.send([_outgoing(effect) for effect in effects])


def _outgoing(effect: OutgoingEffect) -> Outgoing:
    attributes = {"id": effect.id, SENDER: effect.sender, HOPS: str(effect.hops)}
    if effect.traceparent:
        attributes[TRACEPARENT] = effect.traceparent
    return Outgoing(effect.body, attributes, key=effect.key, dedupe_id=effect.id)
