"""Queries on one node: questions that the handler of a stream answers from its last commit.

The state comes from the state store, which knows nothing that isn't committed, and a handler that is made for
the query answers in a slot. So any node can answer, for any key: a query claims and opens nothing, and no
message is charged with what it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.redaction import redact
from holdfast.common.user_code import raised_at
from holdfast.errors import (
    Busy,
    HoldfastError,
    InvalidMessage,
    NoQuery,
    OutcomeUnknown,
    QueryFailed,
    Unavailable,
)
from holdfast.ports.slots import QueryResult
from holdfast.ports.state import StateStore
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.streams.handler import StreamHandler
from holdfast.streams.obstacles import Obstacles
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.quarantine import Quarantine
from holdfast.streams.requests import BUSY_S, MODEL_MISSING
from holdfast.streams.slots import SlotCrash, SlotHandle, SlotHandles
from holdfast.streams.spec import StreamSpec

AGAIN_S = 0.02
"""Seconds for which a query pauses whose slot ended before its turn."""


class CommittedAnswer(msgspec.Struct, frozen=True):
    """The answer to a query, encoded as a result is, and the commit that it is of: epoch and number, 0 if
    nothing was committed yet."""

    body: bytes | None
    epoch: int
    number: int


class PendingQuery:
    """A query that is to be answered before ``deadline``. ``over`` is set when it has been, or has failed."""

    __slots__ = ("answer", "deadline", "error", "key", "over", "request", "spec")

    def __init__(self, spec: StreamSpec, key: str, request: bytes, deadline: float) -> None:
        self.spec = spec
        self.key = key
        self.request = request
        self.deadline = deadline
        self.over = asyncio.Event()
        self.answer: CommittedAnswer | None = None
        self.error: HoldfastError | None = None


class Queries:
    """The queries on one node, ``max_held`` at once."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, StreamSpec],
        state: StateStore,
        pool: SlotHandles,
        owners: OwnerRegistry,
        obstacles: Obstacles,
        quarantine: Quarantine,
    ) -> None:
        self._host = host
        self._specs = specs
        self._state = state
        self._pool = pool
        self.owners = owners
        self._obstacles = obstacles
        self._quarantine = quarantine
        self._clock, self._log = host.clock, host.log
        self._count = 0

    async def answer(self, stream: str, key: str, request: bytes, timeout_s: float) -> CommittedAnswer:
        """Answer a request, which is JSON. ``key`` is the full key.

        Raises NoQuery for a stream that answers none; InvalidMessage for a request that it can't understand;
        QueryFailed; Busy at once if too many wait; Unavailable; and OutcomeUnknown after ``timeout_s``."""
        spec = self._specs.get(stream)
        if spec is None or spec.handler.query is StreamHandler.query:
            known = sorted(n for n, s in self._specs.items() if s.handler.query is not StreamHandler.query)
            raise NoQuery(
                f"stream {stream!r} answers no queries, for its handler has no query(); these do: {known}"
            )
        if self._count >= self._host.limits.max_held:
            raise Busy(f"{key}: {self._count} queries wait on this node already (max_held)", BUSY_S)
        pending = PendingQuery(spec, key, request, self._clock.monotonic() + timeout_s)
        # It goes on without its caller: the next query of the slot waits until this one is really over.
        self._count += 1
        if self._host.tasks.spawn(self._serve(pending)) is None:
            self._count -= 1
            raise Unavailable(f"{key}: this node ends")
        if not await self._clock.wait(pending.over, timeout_s):
            raise OutcomeUnknown(f"{key}: no answer to the query within {timeout_s:g} s")
        if pending.error is not None:
            raise pending.error
        if pending.answer is None:
            raise Unavailable(f"{key}: this node ends")
        return pending.answer

    async def _serve(self, pending: PendingQuery) -> None:
        began_at, stats = self._clock.monotonic(), self._host.stats
        entry = self.owners.get(pending.key)
        models = pending.spec.models
        handle = entry.handle if entry is not None else None  # its models are loaded there
        is_guest = handle is None
        if handle is None:
            handle = self._pool.assign(models)
        try:
            pending.answer = await self._in(handle, pending)
        except HoldfastError as error:
            pending.error = error
        finally:
            self._count -= 1
            stats.queries += 1
            stats.queries_failed += pending.answer is None
            stats.query_seconds += self._clock.monotonic() - began_at
            if is_guest:
                self._pool.leave(handle, models)
            pending.over.set()

    async def _in(self, handle: SlotHandle, pending: PendingQuery) -> CommittedAnswer:
        """Have the query answered in a handle. A message there waits for one query at most."""
        if self._obstacles.of(pending.spec.name):
            raise Unavailable(f"{pending.key}: {MODEL_MISSING}")
        async with handle.queries:
            while self._clock.monotonic() < pending.deadline:
                checkpoint = await self.committed(pending.key)
                try:
                    queried = await self._ask(handle, pending, checkpoint)
                except SlotCrash as error:
                    if error.model:
                        raise Unavailable(f"{pending.key}: {MODEL_MISSING}") from error
                    if not error.guilty:  # something else ended the slot: nothing was asked
                        await self._clock.sleep(AGAIN_S)
                        continue
                    self._log_failure(pending, redact(str(error)), error.detail)
                    raise QueryFailed(f"{pending.key}: the query ended its slot: {error}") from error
                return self._judged(pending, checkpoint, queried)
        raise OutcomeUnknown(f"{pending.key}: the query's turn did not come in time")

    async def committed(self, key: str) -> Checkpoint:
        """Return the last checkpoint of a key, empty if it has none."""
        try:
            return await self._state.peek(key) or Checkpoint(key)
        except HoldfastError as error:  # its text is for operators only
            self._log.debug("could not read the state for a query", key=key, error=str(error))
            raise Unavailable(f"{key}: the state can't be read at present") from error

    async def _ask(self, handle: SlotHandle, pending: PendingQuery, checkpoint: Checkpoint) -> QueryResult:
        spec, key = pending.spec, pending.key.partition("/")[2]
        state, version = checkpoint.state, checkpoint.state_version
        await self._quarantine.opened()
        with self._quarantine.running:
            queried, _ = await self._pool.call(
                handle,
                spec.timeout_s,
                lambda slot, call: slot.query(spec.name, key, state, version, pending.request, call=call),
                of=f"a query of {pending.key}",
            )
        return queried

    def _judged(self, pending: PendingQuery, checkpoint: Checkpoint, queried: QueryResult) -> CommittedAnswer:
        if not queried.error:
            return CommittedAnswer(queried.answer, checkpoint.epoch, checkpoint.number)
        error = redact(queried.error)
        self._log_failure(pending, error, queried.detail)
        match queried.fault:
            case "request":
                raise InvalidMessage(error)
            case "state":
                raise Unavailable(f"{pending.key}: its state does not load on this node")
            case "model":
                raise Unavailable(f"{pending.key}: {MODEL_MISSING}")
        raise QueryFailed(f"{pending.key}: {error}")

    def _log_failure(self, pending: PendingQuery, error: str, detail: str) -> None:
        detail = redact(detail)
        self._log.warning(
            "query failed", key=pending.key, error=error, at=raised_at(detail), exception=detail
        )
