"""The outbox store in memory. A transaction works on a copy of the tables, which replaces them at its end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar

import msgspec

from holdfast.devices.ports.outbox import (
    DeviceStatus,
    KnownDevice,
    NewCommand,
    OnResult,
    WriterSettings,
    fenced,
    on_store_clock,
    place_command,
)
from holdfast.devices.rules import device_queue as queue
from holdfast.devices.rules import device_turn
from holdfast.devices.rules.device_queue import (
    CLOSED,
    TABLE,
    Cause,
    CommandState,
    Head,
    HeadPhase,
    StoredCommand,
)
from holdfast.devices.rules.device_turn import Arrival, Cancel, Rollout, TurnRequest, TurnResult, TurnRows
from holdfast.devices.rules.group_rate import Pair
from holdfast.errors import ConfigError
from holdfast.extend import Bell, Clock
from holdfast.extend.tools import run_user_code

K = TypeVar("K")
V = TypeVar("V")

WAITING_MAX = 1000
"""Waiting commands of a device that are counted, at most."""


def rows_of(table: Mapping[int, tuple[str, V]], outbox: str) -> list[V]:
    """Return the rows of an outbox in a table by id."""
    return [row for name, row in table.values() if name == outbox]


def values_of(table: Mapping[tuple[str, K], V], outbox: str) -> dict[K, V]:
    """Return the values of an outbox in a table by outbox and key."""
    return {key: value for (name, key), value in table.items() if name == outbox}


class Tables:
    """All rows by their keys, each with its outbox first. ``values`` are the business's own."""

    def __init__(self) -> None:
        self.ids = 0
        self.commands: dict[int, tuple[str, StoredCommand]] = {}
        self.heads: dict[tuple[str, Pair], Head] = {}
        self.arrivals: dict[int, tuple[str, Arrival]] = {}
        self.cancels: dict[int, tuple[str, Cancel]] = {}
        self.paused: dict[tuple[str, str], float] = {}
        self.shards: dict[tuple[str, int], int] = {}
        self.lanes: dict[str, int] = {}
        self.seen: dict[tuple[str, str], tuple[float | None, bool]] = {}
        self.rollouts: dict[int, tuple[str, Rollout]] = {}
        self.cursors: dict[tuple[str, str], str] = {}
        self.untold: dict[int, int] = {}
        self.briefs: dict[int, float | None] = {}
        self.archive: dict[int, StoredCommand] = {}
        self.values: dict[str, Any] = {}

    def copy(self) -> Tables:
        """Return the same rows in other tables. Rows never change."""
        copied = Tables()
        for name, table in vars(self).items():
            setattr(copied, name, copy(table))
        return copied


class MemoryTransaction:
    """A transaction that writes commands and the business's ``values``."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.tables = tables
        self._clock = clock
        self.values = tables.values
        self.added: set[str] = set()

    def add(self, commands: Sequence[NewCommand]) -> list[int]:
        return [self._add(command) for command in commands]

    def add_rollout(
        self, outbox: str, name: str, total: int, rate: float | None, abort_share: float, created_at: float
    ) -> int:
        number = self._number()
        rollout = Rollout(number, name, total, abort_share, created_at=created_at, rate=rate)
        self.tables.rollouts[number] = (outbox, rollout)
        return number

    def cancel(
        self, outbox: str, *, command: int = 0, device: str = "", supersede_key: str | None = None
    ) -> int:
        self.added.add(outbox)
        matching = [
            entry
            for entry in rows_of(self.tables.commands, outbox)
            if entry.state is CommandState.SCHEDULED
            and (entry.id == command if command else device in ("", entry.device))
            and supersede_key in (None, entry.supersede_key)
        ]
        below = {(entry.device, entry.shard): entry.id + 1 for entry in matching}
        for (of_device, shard), end in below.items():
            mark = Cancel(self._number(), of_device, shard, end, supersede_key, command)
            self.tables.cancels[mark.id] = (outbox, mark)
        return len(matching)

    def pause(self, outbox: str, device: str, at: float) -> None:
        self.added.add(outbox)
        self.tables.paused.setdefault((outbox, device), at)

    def resume(self, outbox: str, device: str) -> bool:
        self.added.add(outbox)
        for head in values_of(self.tables.heads, outbox).values():
            if head.device == device:
                mark = Arrival(self._number(), device, head.lane, head.shard)
                self.tables.arrivals[mark.id] = (outbox, mark)
        return self.tables.paused.pop((outbox, device), None) is not None

    def _add(self, new: NewCommand) -> int:
        if shards := len(values_of(self.tables.shards, new.outbox)):
            new = place_command(new, shards, self.tables.lanes[new.outbox])
        new = on_store_clock(new, self._clock.wall())
        self.added.add(new.outbox)
        for entry in rows_of(self.tables.commands, new.outbox):
            if (entry.device, entry.dedupe_key) == (
                new.device,
                new.dedupe_key,
            ) and entry.dedupe_key is not None:
                return entry.id
        number = self._number()
        fields = {name: getattr(new, name) for name in new.__struct_fields__ if name != "outbox"}
        entry = StoredCommand(id=number, state=CommandState.SCHEDULED, **fields)
        self.tables.commands[number] = (new.outbox, entry)
        mark = Arrival(self._number(), new.device, new.lane, new.shard, number, new.supersede_key)
        self.tables.arrivals[mark.id] = (new.outbox, mark)
        return number

    def _number(self) -> int:
        self.tables.ids += 1
        return self.tables.ids


class MemoryOutbox:
    """One outbox store, for all dispatchers."""

    def __init__(self, clock: Clock) -> None:
        self.tables = Tables()
        self._clock = clock
        self._bell = Bell(clock)
        self._settings: dict[str, WriterSettings] = {}
        self._rung: set[str] = set()
        self._closings = 0

    @contextmanager
    def transaction(self) -> Iterator[MemoryTransaction]:
        """Give a transaction of the business, which takes effect at its end unless it raises."""
        transaction = MemoryTransaction(self.tables.copy(), self._clock)
        yield transaction
        self.tables = transaction.tables
        if transaction.added:
            self._rung |= transaction.added
            self._bell.ring()

    # --- owners of shards

    async def prepare(self, outbox: str, shards: int, settings: WriterSettings = WriterSettings()) -> None:  # noqa: B008
        count = len(await self.epochs(outbox))
        if count not in (0, shards):
            raise ConfigError(f"outbox {outbox!r} has {count} shards; set shards to that, not {shards}")
        for shard in range(shards):
            self.tables.shards.setdefault((outbox, shard), 0)
        self.tables.lanes[outbox] = settings.lanes
        self._settings[outbox] = settings

    async def names(self) -> list[str]:
        return sorted({name for name, _ in self.tables.shards})

    async def writer_settings(self, outbox: str) -> WriterSettings | None:
        return self._settings.get(outbox)

    async def describe(self) -> str:
        return "memory; all tables are there"

    async def epochs(self, outbox: str) -> Mapping[int, int]:
        return values_of(self.tables.shards, outbox)

    async def open(self, outbox: str, shard: int, expect: int, member: str) -> int:
        current = self.tables.shards[outbox, shard]
        if current != expect:
            raise fenced(outbox, shard, current)
        epoch = self.tables.shards[outbox, shard] = max(current + 1, int(self._clock.wall()))
        return epoch

    async def known_devices(self, outbox: str, shard: int) -> list[KnownDevice]:
        devices = sorted({head.device for head in self._heads(outbox, [shard])})
        return [KnownDevice(each, *self.tables.seen.get((outbox, each), (None, False))) for each in devices]

    async def in_flight(self, outbox: str, shards: Collection[int]) -> int:
        return sum(head.phase is HeadPhase.OUT for head in self._heads(outbox, shards))

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        with self.transaction() as transaction:
            tables = transaction.tables
            result = device_turn.take_turn(MemoryRows(tables, request.outbox), request, self._clock.random)
            tables.untold |= {entry.id: 0 for entry in result.closed}
            unreported = sorted(tables.untold) if request.sweep else [entry.id for entry in result.closed]
            mine = request.grants.keys() - set(result.lost)
            for number in unreported:
                outbox, entry = tables.commands[number]
                if outbox == request.outbox and entry.shard in mine:
                    self.report(transaction, entry, on_result)
            return result

    def report(
        self, transaction: MemoryTransaction, entry: StoredCommand, on_result: OnResult | None
    ) -> None:
        """Call ``on_result`` for a closed command; a later sweep calls it again if it fails."""
        inner = MemoryTransaction(transaction.tables.copy(), self._clock)
        try:
            if on_result is not None:
                run_user_code(on_result, inner, entry)
        except Exception:  # noqa: BLE001 - the business's own; it is called again
            transaction.tables.untold[entry.id] += 1
            return
        del inner.tables.untold[entry.id]
        vars(transaction.tables).update(vars(inner.tables))
        transaction.added |= inner.added

    async def pending_briefs(self, outbox: str, shards: Collection[int], limit: int) -> list[StoredCommand]:
        closed = {number: self.tables.commands[number] for number in self.tables.briefs}
        return [entry for entry in rows_of(closed, outbox) if entry.shard in shards][:limit]

    async def confirm_briefs(self, outbox: str, sent: Sequence[StoredCommand]) -> None:
        for entry in sent:
            if self.tables.briefs.get(entry.id) == entry.closed_at:
                self.tables.briefs.pop(entry.id, None)

    async def next_due(self, outbox: str, shards: Sequence[int]) -> float | None:
        dues = (head.due for head in self._heads(outbox, shards) if head.due is not None)
        return min(dues, default=None)

    async def wait_for_arrival(self, outbox: str, timeout_s: float) -> None:
        deadline, closings = self._clock.monotonic() + timeout_s, self._closings
        while outbox not in self._rung and self._closings == closings:
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0:
                break
            await self._bell.wait(remaining_s)
        self._rung.discard(outbox)

    # --- sources

    async def add(self, commands: Sequence[NewCommand]) -> list[int]:
        with self.transaction() as transaction:
            return transaction.add(commands)

    async def fill(
        self, outbox: str, shard: int, epoch: int, source: str, cursor: str, commands: Sequence[NewCommand]
    ) -> None:
        with self.transaction() as transaction:
            current = transaction.tables.shards[outbox, shard]
            if current != epoch:
                raise fenced(outbox, shard, current)
            transaction.tables.cursors[outbox, source] = cursor
            transaction.add(commands)

    async def cursor(self, outbox: str, source: str) -> str | None:
        return self.tables.cursors.get((outbox, source))

    async def count_waiting(self, outbox: str, limit: int) -> int:
        scheduled = [e for e in self._entries(outbox) if e.state is CommandState.SCHEDULED]
        return min(limit, len(scheduled))

    # --- operators

    async def commands(
        self,
        outbox: str,
        *,
        after: int = 0,
        limit: int = 100,
        state: CommandState | None = None,
        device: str = "",
        newest: bool = False,
    ) -> list[StoredCommand]:
        found = [
            entry
            for entry in self._entries(outbox)
            if state in (None, entry.state) and device in ("", entry.device)
        ]
        if newest:
            return [entry for entry in found[::-1] if not after or entry.id < after][:limit]
        return [entry for entry in found if entry.id > after][:limit]

    async def command(self, command: int) -> StoredCommand | None:
        found = self.tables.commands.get(command)
        return found[1] if found else None

    async def retry(self, command: int) -> bool:
        with self.transaction() as transaction:
            outbox, entry = transaction.tables.commands.get(command, ("", None))
            if entry is None or (entry.state, Cause.RETRY) not in TABLE or not self._fully_reported(command):
                return False
            if entry.rollout is not None and self.tables.rollouts[entry.rollout][1].aborted:
                return False
            if any(queue.replaces(newer, entry) for newer in self._entries(outbox)):
                return False
            transaction.tables.commands[command] = (outbox, queue.retry(entry))
            self._mark(transaction, outbox, entry, failed=-1)
            return True

    async def cancel(self, command: int) -> bool:
        with self.transaction() as transaction:
            outbox, entry = transaction.tables.commands.get(command, ("", None))
            if entry is None or (entry.state, Cause.CANCEL) not in TABLE:
                return False
            cancelled = queue.close(entry, Cause.CANCEL, self._clock.wall())
            transaction.tables.commands[command] = (outbox, cancelled)
            transaction.tables.untold[command] = 0
            transaction.tables.briefs[command] = cancelled.closed_at
            self._mark(transaction, outbox, entry, failed=1)
            return True

    async def cancel_all(self, outbox: str, *, device: str = "", supersede_key: str | None = None) -> int:
        with self.transaction() as transaction:
            return transaction.cancel(outbox, device=device, supersede_key=supersede_key)

    async def pause(self, outbox: str, device: str = "") -> None:
        with self.transaction() as transaction:
            transaction.pause(outbox, device, self._clock.wall())

    async def resume(self, outbox: str, device: str = "") -> bool:
        with self.transaction() as transaction:
            return transaction.resume(outbox, device)

    async def paused(self, outbox: str) -> Mapping[str, float]:
        return values_of(self.tables.paused, outbox)

    def _mark(
        self, transaction: MemoryTransaction, outbox: str, entry: StoredCommand, *, failed: int
    ) -> None:
        if entry.rollout is not None:
            MemoryRows(transaction.tables, outbox).save_rollouts({entry.rollout: (0, failed)})
        mark = Arrival(transaction._number(), entry.device, entry.lane, entry.shard)
        transaction.tables.arrivals[mark.id] = (outbox, mark)
        transaction.added.add(outbox)

    async def counts(self, outbox: str) -> Mapping[CommandState, int]:
        states = [entry.state for entry in self._entries(outbox)]
        return {state: states.count(state) for state in CommandState if state in states}

    async def devices(
        self, outbox: str, *, after: str = "", limit: int = 100, device: str = ""
    ) -> list[DeviceStatus]:
        names = {device for device, _ in values_of(self.tables.heads, outbox)}
        names |= values_of(self.tables.seen, outbox).keys()
        listed = sorted(name for name in names if name > after and device in ("", name))
        return [self._status(outbox, name) for name in listed[:limit]]

    def _status(self, outbox: str, device: str) -> DeviceStatus:
        heads = [h for _, h in sorted(values_of(self.tables.heads, outbox).items()) if h.device == device]
        waiting = [e for e in self._entries(outbox) if e.device == device and e.state not in CLOSED]
        seen_at, away = self.tables.seen.get((outbox, device), (None, False))
        shard = queue.shard_of(device, len(values_of(self.tables.shards, outbox)))
        phases, count = tuple(head.phase for head in heads), min(WAITING_MAX, len(waiting))
        paused = (outbox, device) in self.tables.paused
        return DeviceStatus(outbox, device, shard, phases, count, seen_at, away, paused)

    async def rollouts(
        self, outbox: str, *, after: int = 0, limit: int = 100, newest: bool = False
    ) -> list[Rollout]:
        found = sorted(rows_of(self.tables.rollouts, outbox), key=lambda rollout: rollout.id, reverse=newest)
        return [each for each in found if (each.id < after or not after if newest else each.id > after)][
            :limit
        ]

    async def abort(self, outbox: str, rollout: int) -> bool:
        with self.transaction() as transaction:
            name, known = transaction.tables.rollouts.get(rollout, ("", None))
            if known is None or name != outbox or known.over or known.aborted:
                return False
            transaction.tables.rollouts[rollout] = (outbox, msgspec.structs.replace(known, aborted=True))
            transaction.added.add(outbox)
            return True

    async def now(self) -> float:
        return self._clock.wall()

    async def delete_closed(self, outbox: str, before: float, limit: int, *, archive: bool = False) -> int:
        old = [
            entry
            for entry in self._entries(outbox)
            if entry.closed_at is not None and entry.closed_at < before and self._fully_reported(entry.id)
        ]
        for entry in old[:limit]:
            del self.tables.commands[entry.id]
            if archive:
                self.tables.archive[entry.id] = entry
        return len(old[:limit])

    async def close(self) -> None:
        self._closings += 1
        self._bell.ring()

    def _fully_reported(self, command: int) -> bool:
        return command not in self.tables.untold and command not in self.tables.briefs

    def _entries(self, outbox: str) -> list[StoredCommand]:
        return rows_of(self.tables.commands, outbox)

    def _heads(self, outbox: str, shards: Collection[int]) -> list[Head]:
        return [head for head in values_of(self.tables.heads, outbox).values() if head.shard in shards]


class MemoryRows:
    """The rows of one outbox, in a transaction."""

    def __init__(self, tables: Tables, outbox: str) -> None:
        self._tables = tables
        self._outbox = outbox

    def read(self, request: TurnRequest) -> TurnRows:
        arrivals = self.arrivals(request.grants, request.limit)
        commands = self.commands(request.command_ids)
        pairs = {(arrival.device, arrival.lane) for arrival in arrivals}
        return TurnRows(
            epochs=self.epochs(request.grants),
            commands=commands,
            held=[h for h in self._heads() if h.phase is HeadPhase.HELD and h.device in request.back],
            arrivals=arrivals,
            heads=self.heads(pairs | {entry.pair for entry in commands.values()}),
            out=self._due(request, request.out_max, HeadPhase.OUT),
            ready=self._due(request, request.ready_max, HeadPhase.WAITING, HeadPhase.HELD),
            cancels=self._cancels(request),
            paused=values_of(self._tables.paused, self._outbox).keys(),
        )

    def _cancels(self, request: TurnRequest) -> list[Cancel]:
        marks = rows_of(self._tables.cancels, self._outbox)
        return [each for each in marks if each.shard in request.grants][: request.limit]

    def epochs(self, shards: Collection[int]) -> Mapping[int, int]:
        return {shard: self._tables.shards[self._outbox, shard] for shard in shards}

    def commands(self, ids: Collection[int]) -> Mapping[int, StoredCommand]:
        found = {number: self._tables.commands.get(number, ("", None)) for number in ids}
        return {number: entry for number, (name, entry) in found.items() if entry and name == self._outbox}

    def heads(self, pairs: Collection[Pair]) -> Mapping[Pair, Head]:
        found = {pair: self._tables.heads.get((self._outbox, pair)) for pair in pairs}
        return {pair: head for pair, head in found.items() if head is not None}

    def shift(self, shards: Collection[int], by_s: float) -> None:
        phases = (HeadPhase.OUT, HeadPhase.HELD) if by_s > 0 else tuple(HeadPhase)
        for head in self._heads():
            if head.due is not None and head.shard in shards and head.phase in phases:
                shifted = msgspec.structs.replace(head, due=head.due + by_s)
                self._tables.heads[self._outbox, head.pair] = shifted

    def cap_due(self, shards: Collection[int], latest: float) -> None:
        for head in self._heads():
            if head.due is not None and head.shard in shards and head.due > latest:
                self._tables.heads[self._outbox, head.pair] = msgspec.structs.replace(head, due=latest)

    def postpone(self, shards: Collection[int], until: float) -> None:
        for head in self._heads():
            if head.command and head.due is not None and head.shard in shards and head.due < until:
                self._tables.heads[self._outbox, head.pair] = msgspec.structs.replace(head, due=until)

    def arrivals(self, shards: Collection[int], limit: int) -> list[Arrival]:
        arrivals = rows_of(self._tables.arrivals, self._outbox)
        return [each for each in arrivals if each.shard in shards][:limit]

    def misplaced_arrivals(self, shards: int, limit: int) -> list[Arrival]:
        arrivals = rows_of(self._tables.arrivals, self._outbox)
        return [each for each in arrivals if each.shard not in range(shards)][:limit]

    def gather_cancels(self, shards: int) -> None:
        for mark in rows_of(self._tables.cancels, self._outbox):
            if mark.shard not in range(shards):
                self._tables.cancels[mark.id] = (self._outbox, msgspec.structs.replace(mark, shard=0))

    def move_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            self._tables.arrivals[arrival.id] = (self._outbox, arrival)
            of_device = [entry for entry in self.scheduled() if entry.device == arrival.device]
            self.save([msgspec.structs.replace(entry, shard=arrival.shard) for entry in of_device])

    def drop_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            del self._tables.arrivals[arrival.id]

    def superseded_by(self, arrivals: Sequence[Arrival]) -> list[StoredCommand]:
        named = self.commands({arrival.command for arrival in arrivals}).values()
        return [e for e in self.scheduled() if any(queue.replaces(newer, e) for newer in named)]

    def replaced(self, entries: Sequence[StoredCommand]) -> Set[int]:
        known = rows_of(self._tables.commands, self._outbox)
        return {e.id for e in entries if any(queue.replaces(newer, e) for newer in known)}

    def drop_cancels(self, cancels: Sequence[Cancel]) -> None:
        for cancel in cancels:
            del self._tables.cancels[cancel.id]

    def matching_cancels(self, cancels: Sequence[Cancel], limit: int) -> list[StoredCommand]:
        return [e for e in self.scheduled() if any(cancel.matches(e) for cancel in cancels)][:limit]

    def next_commands(self, pairs: Collection[Pair], now: float) -> Mapping[Pair, StoredCommand | float]:
        found: dict[Pair, StoredCommand | float] = {}
        for pair in pairs:
            scheduled = [entry for entry in self.scheduled() if entry.pair == pair]
            ready = [entry for entry in scheduled if entry.not_before <= now]
            if ready:
                found[pair] = min(ready, key=lambda entry: (-entry.priority, entry.id))
            elif scheduled:
                found[pair] = min(entry.not_before for entry in scheduled)
        return found

    def overdue(self, shards: Collection[int], now: float, limit: int) -> list[StoredCommand]:
        aborted = {rollout.id for _, rollout in self._tables.rollouts.values() if rollout.aborted}
        mine = [entry for entry in self.scheduled() if entry.shard in shards]
        expired = [e.id for e in mine if e.expires_at is not None and e.expires_at <= now]
        return [entry for entry in mine if entry.id in expired or entry.rollout in aborted][:limit]

    def rollouts(self, ids: Collection[int]) -> Mapping[int, Rollout]:
        return {number: self._tables.rollouts[number][1] for number in ids if number in self._tables.rollouts}

    def save(self, entries: Sequence[StoredCommand]) -> None:
        for entry in entries:
            self._tables.commands[entry.id] = (self._outbox, entry)

    def save_heads(self, heads: Sequence[Head]) -> None:
        for head in heads:
            self._tables.heads[self._outbox, head.pair] = head

    def save_rollouts(self, closed: Mapping[int, tuple[int, int]]) -> None:
        for number, (done, failed) in closed.items():
            name, rollout = self._tables.rollouts[number]
            self._tables.rollouts[number] = (name, rollout.after(done, failed))

    def save_seen(self, seen: Mapping[str, float | None], away: Set[str]) -> None:
        for device, at in seen.items():
            before, _ = self._tables.seen.get((self._outbox, device), (None, False))
            self._tables.seen[self._outbox, device] = (before if at is None else at, device in away)

    def save_briefs(self, closed: Sequence[StoredCommand]) -> None:
        self._tables.briefs |= {entry.id: entry.closed_at for entry in closed}

    def drop_briefs(self, shards: Collection[int]) -> None:
        closed = {number: self._tables.commands[number] for number in self._tables.briefs}
        for entry in rows_of(closed, self._outbox):
            if entry.shard in shards:
                del self._tables.briefs[entry.id]

    def _due(self, request: TurnRequest, limit: int, *phases: HeadPhase) -> list[Head]:
        heads = [h for h in self._heads() if h.shard in request.sendable and h.phase in phases]
        found = [h for h in heads if h.due is not None and h.due <= request.now]
        return sorted(found, key=lambda head: head.due or 0.0)[:limit]

    def _heads(self) -> list[Head]:
        return list(values_of(self._tables.heads, self._outbox).values())

    def scheduled(self) -> list[StoredCommand]:
        """Return the scheduled commands."""
        entries = rows_of(self._tables.commands, self._outbox)
        return [entry for entry in entries if entry.state is CommandState.SCHEDULED]
