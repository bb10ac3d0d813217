"""Answers what operators and other nodes ask of a node's streams: why one waits, which wait, which are
busiest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.cluster.deliverer import Deliverer
from holdfast.cluster.host import Host
from holdfast.common.effects import PendingReport
from holdfast.common.protocol import Busiest, Done, Explain, Query, QueryReply, StreamChanged, Waiting
from holdfast.common.redaction import redact
from holdfast.errors import HoldfastError
from holdfast.rules.streams import activity
from holdfast.rules.streams.activity import FIGURES, Lag
from holdfast.streams.archiver import Archiver
from holdfast.streams.asking import fault_of
from holdfast.streams.loads import Loads
from holdfast.streams.obstacles import Obstacles
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.queries import Queries
from holdfast.streams.slots import SlotHandles, SlotWork
from holdfast.streams.waiting_streams import COMMIT_S, WaitingStreams


class StreamInquiries:
    """The answers of one node."""

    def __init__(
        self,
        host: Host,
        owners: OwnerRegistry,
        pool: SlotHandles,
        loads: Loads,
        obstacles: Obstacles,
        waiting_streams: WaitingStreams,
        archivers: Mapping[str, Archiver],
        deliverer: Deliverer,
        queries: Queries,
    ) -> None:
        self._host = host
        self._owners = owners
        self._pool = pool
        self._loads = loads
        self._obstacles = obstacles
        self._waits = waiting_streams
        self._archivers = archivers
        self._deliverer = deliverer
        self._queries = queries

    def listen(self) -> None:
        """Begin to answer."""
        inquiries = self._host.inquiries
        inquiries.add(StreamChanged, self.poke)
        inquiries.add(Explain, self.explain)
        inquiries.add(Waiting, self.list_waiting)
        inquiries.add(Busiest, self.list_busiest)
        inquiries.add(Query, self.query)

    def works(self) -> list[SlotWork]:
        """Return what the slots work at, with the messages of streams."""
        works = self._pool.works()
        for work in works:
            if (entry := self._owners.get(work.of)) is not None:
                running = entry.owner.runs.running
                work.message = running[0].name if running else ""
        return works

    async def poke(self, request: StreamChanged) -> Done:
        """Have an owner read what an operator has changed."""
        self._owners.poke(request.key)
        return Done()

    async def query(self, request: Query) -> QueryReply:
        """Answer a query of a stream."""
        try:
            answered = await self._queries.answer(
                request.stream, request.key, request.request, request.timeout_s
            )
        except HoldfastError as error:
            return QueryReply(fault=fault_of(error), error=str(error))
        return QueryReply(answered.body, answered.epoch, answered.number)

    async def explain(self, request: Explain) -> Done:
        """Answer why a stream is here and where it may go."""
        key = request.key
        entry = self._owners.get(key)
        if entry is None:
            return Done(ok=False, text=f"{key} is not owned here")
        here_s = self._host.clock.monotonic() - entry.since
        archiver = self._archivers.get(entry.spec.name)
        return _done(
            {
                "busy": self._loads.of(key),
                "here_s": here_s,
                "rests_s": max(0.0, self._host.limits.rest_s - here_s),
                "phase": entry.owner.phase.value,
                "waits": self._waits.of(entry),
                "runs": next((work for work in self.works() if work.of == key and work.message), None),
                "archive": archiver.error if archiver is not None else "",
                "parked": entry.owner.commits.parked,
                "state_bytes": len(entry.owner.commits.state or b""),
            }
        )

    async def list_waiting(self, request: Waiting) -> Done:
        """Answer which owned streams wait, and for what, which are behind, which can't run here, and which
        have pending effects, those with the oldest first."""
        clock, most = self._host.clock, request.most
        archives = {
            name: f"{archiver.waiting} committed messages wait for it: {archiver.error}"
            for name, archiver in self._archivers.items()
            if archiver.error
        }
        return _done(
            {
                "lacks": {name: known.reason for name, known in self._obstacles.streams.items()},
                "works": [work for work in self.works() if work.for_s >= COMMIT_S][:most],
                "archives": archives,
                "waits": self._waits.all()[:most],
                "effects": activity.unsent(self._pending(), clock.wall(), most),
                "targets": {redact(name): error for name, error in self._deliverer.errors.items()},
                "lags": activity.behind(self._lags(clock.monotonic()), most),
                "took": self._host.timings.delivery_seconds.total(),
            }
        )

    def _pending(self) -> Iterator[tuple[str, PendingReport]]:
        for entry in self._owners:
            if (effects := entry.owner.commits.effects.report()) is not None:
                yield entry.key, effects

    def _lags(self, now: float) -> Iterator[Lag]:
        for entry in self._owners.with_messages():
            owner = entry.owner
            yield Lag(entry.key, activity.oldest_s(owner.inbox.to_extend(), now), len(owner.inbox))

    async def list_busiest(self, request: Busiest) -> Done:
        """Answer which streams have most to do."""
        if request.by not in FIGURES:
            return Done(ok=False, text=f"streams have no {request.by!r}; they have {', '.join(FIGURES)}")
        now, found = self._host.clock.monotonic(), []
        for key in sorted({*self._loads.active, *(entry.key for entry in self._owners.with_messages())}):
            entry = self._owners.get(key)
            if entry is None or (request.only and entry.spec.name not in request.only):
                continue
            lag_s = activity.oldest_s(entry.owner.inbox.to_extend(), now)
            found.append(activity.activity(key, *self._loads.measured(key), len(entry.owner.inbox), lag_s))
        return _done(activity.busiest(found, request.by, request.most))


def _done(answer: Any) -> Done:
    return Done(text=msgspec.json.encode(answer).decode())
