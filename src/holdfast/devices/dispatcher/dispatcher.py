"""The dispatcher of one outbox on one node: turn after turn, as events come.

While one turn is written, answers gather for the next. So the busier a node is, the more commands are closed
and sent by one commit. A silent device delays no other, because each turn takes all due heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from holdfast.devices.dispatcher.pending import RecentWrites, TakenEvents
from holdfast.devices.dispatcher.sender import Sender
from holdfast.devices.dispatcher.served import ServedShards
from holdfast.devices.dispatcher.shard import ServedShard
from holdfast.devices.dispatcher.shared import Part, Shared
from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.device import Connect
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.rules.device_turn import TurnRequest, TurnResult
from holdfast.devices.traces import CommandSpans
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.extend.products import Host
from holdfast.extend.tools import Backoff

LOOK_S = 2.0
"""Seconds without a signal after which a turn is taken anyway."""

BUSY_S = 0.01
"""Seconds without an event after which the database is asked for the next due time."""

SWEEP_S = 5.0
"""Seconds between sweeps, which close expired commands in the queues."""


class Dispatcher(Part):
    """Serves its shards while the node's membership lives.

    Args:
        connect: makes the devices of a shard.
        on_lost: called with a shard that another node owns.

    Attributes:
        on_closed: called when commands have been closed.
        served: opens and closes shards.
        shards: the served shards.
    """

    def __init__(
        self,
        outbox: Outbox,
        store: OutboxStore,
        connect: Connect,
        host: Host,
        *,
        on_lost: Callable[[int], None],
    ) -> None:
        shared = Shared(outbox.spec, store, host)
        super().__init__(shared)
        self._outbox = outbox
        self._store = store
        self._host = host
        self._spans = None if host.tracer is None else CommandSpans(host.tracer, outbox.spec.name)
        self._recent = RecentWrites()
        self._sender = Sender(shared, self._spans)
        self.served = ServedShards(shared, store, connect, host, on_lost=on_lost)
        self.counts = shared.counts
        self.shards: Mapping[int, ServedShard] = shared.shards
        self._backoff = Backoff(0.1, 5.0)
        self._listening: asyncio.Task[None] | None = None
        self._paused = False
        self._has_moved = False
        self._sweeps_at = 0.0
        self.on_closed: Callable[[], None] = lambda: None

    @property
    def away(self) -> int:
        """The number of devices that are away."""
        return len(self._register.away)

    @property
    def in_flight(self) -> int:
        """The number of devices with an awaited answer."""
        return self._in_flight.count

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._listening is None:
            self._listening = self._host.tasks.repeat(self._listen, self._clock, self._log)
        failures = 0
        while True:
            await self._wait()
            ended = self._signals.begin()
            if not self._may_turn:
                self._sender.forget()
                ended.set()
                continue
            self._signals.idle.clear()
            try:
                await self.served.reopen_doubted()
                await self._take_turn()
                failures = 0
            except HoldfastError as error:
                failures += 1
                self._in_flight.mark_stale()
                if failures == 1:
                    self._recent.put_back(self._pending)
                self._log.warning(
                    "cannot reach the outbox's database", outbox=self._spec.name, error=str(error)
                )
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
                self._signals.wake.set()
            finally:
                self._signals.idle.set()
                ended.set()

    @property
    def _may_turn(self) -> bool:
        return bool(self.shards) and self._host.membership.alive

    async def _wait(self) -> None:
        """Wait until something happens, or is due."""
        if not await self._clock.wait(self._signals.wake, BUSY_S):
            await self._clock.wait(self._signals.wake, await self._pause_s())

    async def _pause_s(self) -> float:
        """Return how many seconds to wait for the next thing to happen; 0 if something is due already."""
        if not self._may_turn:
            return LOOK_S
        now, monotonic = self._clock.wall(), self._clock.monotonic()
        waits_s = [LOOK_S, *self.served.send_waits_s(monotonic)]
        # Otherwise due commands wait for answers, or for an operator.
        if self.in_flight < self._limits.in_flight_max and not self._paused:
            try:
                due = await self._store.next_due(self._spec.name, self.served.sendable(monotonic))
            except HoldfastError:
                due = None  # the next turn logs the error
            if due is not None:
                waits_s.append(max(due - now, self._limits.wait_s(monotonic), 0.0))
        return min(waits_s)

    async def _listen(self) -> None:
        """Wake at additions."""
        while True:
            try:
                await self._store.wait_for_arrival(self._spec.name, LOOK_S)
            except HoldfastError as error:
                self._log.warning("cannot listen for commands", outbox=self._spec.name, error=str(error))
                await self._clock.sleep(LOOK_S)
            self._signals.wake.set()

    # --- turns

    async def _take_turn(self) -> None:
        monotonic, now = self._clock.monotonic(), self._clock.wall()
        self._notice_jump(now, monotonic)
        await self._in_flight.refresh(self.shards)
        sweep = monotonic >= self._sweeps_at
        if sweep:
            self._sweeps_at = monotonic + SWEEP_S
            self._register.settle()
            for shard in self.shards.values():
                self._pending.still_out += shard.take_unconfirmed(monotonic)
        taken = self._pending.take(self.shards)
        request = self._request(taken, now, monotonic, sweep=sweep)
        taking = asyncio.ensure_future(self._store.take_turn(request, self._outbox.results))
        self._sender.send_marked()
        try:
            result = await taking
        except HoldfastError as error:
            self._put_back(taken, request, in_doubt=isinstance(error, OutcomeUnknown))
            raise
        self._clock_watch.shift_s = 0.0
        self._limits.note_turn(self._clock.monotonic() - monotonic)
        self._note_result(taken, result)
        self._sender.mark(result, monotonic)
        self._recent.note(monotonic, taken, result)
        if not self._signals.wake.is_set():
            self._sender.send_marked()  # otherwise while the next turn is written

    def _request(self, taken: TakenEvents, now: float, monotonic: float, *, sweep: bool) -> TurnRequest:
        spec, limits = self._spec, self._limits
        return TurnRequest(
            outbox=spec.name,
            grants={shard.number: shard.epoch for shard in self.shards.values()},
            sendable=self.served.sendable(monotonic),
            now=now,
            patience=spec.patience,
            answers=taken.answers,
            unsent=taken.unsent,
            room=limits.in_flight_max - self.in_flight,
            rate=limits.sendable(monotonic),
            limit=limits.turn_max,
            away=self._register.away,
            back=list(taken.back),
            shards=spec.shards,
            seen=self._register.news(now) if sweep else {},
            shift_s=self._clock_watch.shift_s,
            still_out=taken.still_out,
            fresh=list(taken.fresh),
            check_dues=sweep and self._clock_watch.is_doubted(monotonic),
            sweep=sweep,
            groups=limits.groups,
            rollouts=limits.rollouts,
            brief=bool(spec.briefs),
            slow=self._register.answer_times.slow(),
        )

    def _put_back(self, taken: TakenEvents, request: TurnRequest, *, in_doubt: bool) -> None:
        """Put back the events of a turn that failed, or with ``in_doubt`` may have failed."""
        if in_doubt:
            self._clock_watch.shift_s = 0.0  # it may have been stored
            self._clock_watch.doubt()
            self.served.doubt(request.grants)
        self._pending.put_back(taken, in_doubt=in_doubt)
        self._register.put_back(request.seen)

    def _note_result(self, taken: TakenEvents, result: TurnResult) -> None:
        self.counts.add(result)
        self._in_flight.add(result)
        if self._spans is not None:
            for entry in result.closed:
                self._spans.closed(entry)
        self._log_result(result)
        self._pending.put_back_shards(taken, result.lost)
        for number in result.lost:
            self.served.give_up(number)
        if result.closed:
            self.on_closed()
        if result.more:
            self._signals.wake.set()

    def _log_result(self, result: TurnResult) -> None:
        if result.paused != self._paused:
            self._paused = result.paused
            if result.paused:
                self._log.warning("outbox paused", outbox=self._spec.name)
            else:
                self._log.warning("outbox resumed", outbox=self._spec.name)
        if result.moved and not self._has_moved:
            self._has_moved = True
            self._log.warning(
                "commands moved to their shards",
                outbox=self._spec.name,
                device=result.moved[0],
                fix=f"declare shards={self._spec.shards} in that program, and update its Holdfast",
            )
        for answer in result.unmatched:
            id_ = str(answer.correlation)
            self.served.listener.log_unmatched(answer.device, id_, "it fits no published command")

    def _notice_jump(self, now: float, monotonic: float) -> None:
        if jump_s := self._clock_watch.notice_jump(now, monotonic):
            self._limits.forget_times(len(self.shards))
            self._log.warning("clock change detected", outbox=self._spec.name, by_s=round(jump_s, 1))
