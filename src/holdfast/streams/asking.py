"""Queries from programs that are no nodes: any node that declares the stream can answer."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from holdfast.common.codec import decode_plain, encode
from holdfast.common.message import check_key
from holdfast.common.protocol import Query, QueryReply
from holdfast.common.retry import Backoff
from holdfast.errors import (
    HoldfastError,
    InvalidMessage,
    NoQuery,
    OutcomeUnknown,
    QueryFailed,
    Unavailable,
)
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Coordinator
from holdfast.ports.peer import Peer
from holdfast.rules.cluster.placement import readers

TIMEOUT_S = 30.0
LATE_S = 1.0
"""Seconds beyond a node's own timeout for which its answer is awaited."""

AGAIN = Backoff(0.02, 0.5)

FAULTS: dict[str, type[HoldfastError]] = {
    "no-query": NoQuery,
    "failed": QueryFailed,
    "invalid": InvalidMessage,
    "unknown": OutcomeUnknown,
    "unavailable": Unavailable,
}
"""The errors of queries, as nodes name them to each other."""


class QueryAnswer(msgspec.Struct, frozen=True):
    """The answer to a query: what the handler returned, as bytes if it isn't JSON, and the epoch and number
    of the commit that it is of, 0 if nothing was committed yet. Later commits of a stream have a greater
    ``number``."""

    value: Any
    epoch: int
    number: int


def fault_of(error: HoldfastError) -> str:
    """Return how nodes name an error of a query."""
    return next((fault for fault, kind in FAULTS.items() if isinstance(error, kind)), "unavailable")


async def ask(
    coordinator: Coordinator,
    peer: Peer,
    clock: Clock,
    stream: str,
    key: str | int,
    request: Any = None,
    timeout_s: float = TIMEOUT_S,
) -> QueryAnswer:
    """Ask a stream, and ask other nodes while some don't answer. Raises as :meth:`holdfast.AsyncClient.query`
    does."""
    full_key = f"{stream}/{check_key(str(key), 'key')}"
    try:
        body = encode(request)
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"the request can't be sent as JSON: {error}") from None
    deadline, failures = clock.monotonic() + timeout_s, 0
    while True:
        left_s = deadline - clock.monotonic()
        try:
            claim = await coordinator.lookup(full_key)
            able = readers(full_key, await coordinator.members(), claim.member if claim is not None else "")
            if not able:
                break
            member = able[failures % len(able)]
            query = Query(member.id, stream, full_key, body, left_s)
            reply = await peer.call(member.address, query, left_s + LATE_S)
            if isinstance(reply, QueryReply):
                return _read(reply)
            failed: HoldfastError = Unavailable(f"{member.name} has just joined again")
        except (Unavailable, OutcomeUnknown) as error:
            failed = error
        failures += 1
        pause_s = AGAIN.delay_s(failures, clock.random())
        if clock.monotonic() + pause_s >= deadline:
            raise failed
        await clock.sleep(pause_s)
    raise Unavailable(f"no node that lives declares the stream {stream!r}; start one that does")


def _read(reply: QueryReply) -> QueryAnswer:
    if reply.fault:
        raise FAULTS.get(reply.fault, Unavailable)(reply.error)
    value: Any = reply.body
    if value is not None:
        with contextlib.suppress(ValueError):
            value = decode_plain(value)
    return QueryAnswer(value, reply.epoch, reply.number)
