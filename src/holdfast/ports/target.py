"""A target of effects: a stream, a task, a queue, a webhook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class OutgoingEffect(msgspec.Struct, frozen=True):
    """An effect that is handed over. ``id`` is the same at each repeat, so that a target can know it.
    ``target`` is what the handler named, and ``key`` the target's key, "" for none. ``sender`` is the full
    key of the stream that sent it, and ``cause`` the identity of that message; or ``sender`` is type
    and task id of a task, and ``cause`` its task id. ``hops`` counts the effects that led to it,
    with this one. ``refused`` is why its target doesn't take it, for dead letters. ``traceparent`` is its
    place in a trace, "" for none, which a target passes on as W3C Trace Context says."""

    id: str
    target: str
    key: str
    body: bytes
    sender: str
    cause: str
    hops: int = 1
    refused: str = ""
    traceparent: str = ""


class Target(Protocol):
    """Takes effects.

    Attributes:
        max_batch: the most effects in one call.
        ordered: whether one call may hold several effects of one sender to one key. If so, what a failed call
            has taken of them are the first ones.
    """

    max_batch: int
    ordered: bool

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        """Take effects, all of them when this returns. An error that may be retried means that some may have
        been taken; they are sent again. Any other error means that the target never takes one of them; a
        single effect is then refused."""
