"""Drops briefs that no program has read for as long as outcomes are kept. A program that only waits for its
tasks reads none, and nor does the clock that sends periodic ones."""

from __future__ import annotations

import math

from holdfast.errors import InvalidMessage
from holdfast.ports.queue import Queue
from holdfast.tasks.producer import BRIEF_VISIBILITY_S
from holdfast.tasks.wire import decode_brief

DROPPED_MAX = 10_000
"""The most briefs that are dropped at one time; the next time goes on."""


async def drop_old(queue: Queue, before: float, holder: str) -> int:
    """Drop the briefs of outcomes that are older than this wall time; returns how many. A queue that can't be
    looked through from its oldest message on, such as one of SQS, has a retention of its own."""
    dropped = 0
    while queue.by_key and dropped < DROPPED_MAX:
        deliveries = await queue.receive(queue.max_batch, 0.0, BRIEF_VISIBILITY_S, holder)
        old = [delivery.receipt for delivery in deliveries if _ended_at(delivery.body) < before]
        others = [delivery.receipt for delivery in deliveries if delivery.receipt not in old]
        if others:
            await queue.give_back(others, 0.0)
        if old:
            await queue.delete(old)
        dropped += len(old)
        if others or not old:
            break
    return dropped


def _ended_at(body: bytes) -> float:
    """Return when the task of a brief ended, in seconds since 1970; infinity if that isn't known. A brief
    that can't be read is for its readers, who set it aside."""
    try:
        return decode_brief(body).ended_at or math.inf
    except InvalidMessage:
        return math.inf
