"""The rows of one outbox in a transaction: the reads and writes of a turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from holdfast.devices.rules.device_queue import Head, StoredCommand
from holdfast.devices.rules.device_turn import Arrival, Cancel, Rollout, TurnRequest, TurnRows
from holdfast.devices.rules.group_rate import Pair
from holdfast.devices.services.sqlalchemy.records import (
    ARRIVAL_KINDS,
    CANCEL_KINDS,
    HEAD_KINDS,
    ROLLOUT_KINDS,
    Row,
    RowFilter,
    has_phase,
    to_command,
    to_head,
    to_rollout,
)
from holdfast.devices.services.sqlalchemy.statements import (
    COMMAND_FIELDS,
    HEAD_FIELDS,
    SAVED,
    Statements,
    array,
)
from holdfast.devices.services.sqlalchemy.transaction import OutboxTransaction, Query, Rows, Statement


class SqlRows:
    """The rows of one outbox, in a transaction."""

    def __init__(
        self, transaction: OutboxTransaction, outbox: str, statements: Statements, filter_: RowFilter
    ) -> None:
        self._transaction = transaction
        self._outbox = outbox
        self._sql = statements
        self._filter = filter_
        self._list = statements.list

    def read(self, request: TurnRequest) -> TurnRows:
        granted, sendable = self._list(request.grants), self._list(request.sendable)
        queries = {
            "epochs": self._query(self._sql.epochs, shards=granted),
            "arrivals": self._query(self._sql.arrivals, shards=granted, limit=request.limit),
            "cancels": self._query(self._sql.cancels, shards=granted, limit=request.limit),
            "paused": self._query(self._sql.paused),
        }
        if request.command_ids:
            queries["named"] = self._query(self._sql.named, ids=self._list(request.command_ids))
        if request.back:
            queries["held"] = self._query(self._sql.held, devices=self._list(request.back))
        if request.out_max:
            queries["out"] = self._query(
                self._sql.due_out, shards=sendable, now=request.now, limit=request.out_max
            )
        if request.ready_max:
            queries["ready"] = self._query(
                self._sql.due, shards=sendable, now=request.now, limit=request.ready_max
            )
        found = dict(zip(queries, self._transaction.read(*queries.values()), strict=True))
        # Invalid marks are deleted, because every turn would read them again.
        arrived = self._filter.valid("arrival", found["arrivals"], ARRIVAL_KINDS)
        self._drop_invalid(self._sql.drop_arrivals, found["arrivals"], arrived)
        cancels = self._filter.valid("cancel", found["cancels"], CANCEL_KINDS)
        self._drop_invalid(self._sql.drop_cancels, found["cancels"], cancels)
        heads: list[Row] = [(*row[1:4], *row[6:]) for row in arrived if row[6] is not None]
        width = len(COMMAND_FIELDS)
        named_rows = found.get("named", ())
        heads += [row[width:] for row in named_rows if row[width] is not None]
        return TurnRows(
            epochs={row[0]: row[1] for row in found["epochs"]},
            commands={row[0]: to_command(row[:width]) for row in named_rows},
            held=self._to_heads(found.get("held", ())),
            arrivals=[Arrival(*row[:6]) for row in arrived],
            heads={each.pair: each for each in self._to_heads(heads)},
            out=self._to_heads(found.get("out", ())),
            ready=self._to_heads(found.get("ready", ())),
            cancels=[Cancel(*row) for row in cancels],
            paused={row[0] for row in found["paused"]},
        )

    def _to_heads(self, rows: Iterable[Sequence[Any]]) -> list[Head]:
        return [to_head(row) for row in self._filter.valid("head", rows, HEAD_KINDS, has_phase)]

    def _drop_invalid(self, drop: Statement, rows: Rows, valid: Rows) -> None:
        if invalid := {row[0] for row in rows} - {row[0] for row in valid}:
            self._transaction.write(drop, {"ids": self._list(invalid)})

    def epochs(self, shards: Collection[int]) -> Mapping[int, int]:
        """Return the current epochs, locked until the transaction ends."""
        return {row[0]: row[1] for row in self._rows(self._sql.epochs, shards=self._list(shards))}

    def _query(self, statement: Statement, **parameters: Any) -> Query:
        return statement, {"outbox": self._outbox, **parameters}

    def _rows(self, statement: Statement, **parameters: Any) -> Rows:
        [rows] = self._transaction.read(self._query(statement, **parameters))
        return rows

    def commands(self, ids: Collection[int]) -> Mapping[int, StoredCommand]:
        return {row[0]: to_command(row) for row in self._rows(self._sql.commands, ids=self._list(ids))}

    def heads(self, pairs: Collection[Pair]) -> Mapping[Pair, Head]:
        found = self._rows(self._sql.heads, **self._pairs(pairs))
        return {each.pair: each for each in self._to_heads(found)}

    def shift(self, shards: Collection[int], by_s: float) -> None:
        statement = self._sql.shift_on if by_s > 0 else self._sql.shift_back
        self._transaction.write(*self._query(statement, shards=self._list(shards), by_s=by_s))

    def cap_due(self, shards: Collection[int], latest: float) -> None:
        for statement in self._sql.cap_due:
            self._transaction.write(*self._query(statement, shards=self._list(shards), latest=latest))

    def postpone(self, shards: Collection[int], until: float) -> None:
        for statement in self._sql.postpone:
            self._transaction.write(*self._query(statement, shards=self._list(shards), until=until))

    def misplaced_arrivals(self, shards: int, limit: int) -> list[Arrival]:
        found = self._rows(self._sql.misplaced_arrivals, shards=shards, limit=limit)
        valid = self._filter.valid("arrival", found, ARRIVAL_KINDS)
        self._drop_invalid(self._sql.drop_arrivals, found, valid)
        return [Arrival(*row) for row in valid]

    def gather_cancels(self, shards: int) -> None:
        self._transaction.write(*self._query(self._sql.gather_cancels, shards=shards))

    def move_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        marks = ({"id": each.id, "shard": each.shard} for each in arrivals)
        self._transaction.write(self._sql.move_arrival, *marks)
        devices = {each.device: each.shard for each in arrivals}
        for device, shard in sorted(devices.items()):
            self._transaction.write(*self._query(self._sql.move_commands, device=device, shard=shard))

    def drop_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        ids = self._list([arrival.id for arrival in arrivals])
        self._transaction.write(self._sql.drop_arrivals, {"ids": ids})

    def superseded_by(self, arrivals: Sequence[Arrival]) -> list[StoredCommand]:
        newest: dict[tuple[str, str | None], int] = {}
        for arrival in arrivals:
            place = arrival.device, arrival.supersede_key
            newest[place] = max(arrival.command, newest.get(place, 0))
        rows = [(*place, command) for place, command in newest.items()]
        marks = self._sql.table("marks", ("devices", "keys", "ids"), rows)
        return [to_command(row) for row in self._rows(self._sql.superseded_by, **marks)]

    def replaced(self, entries: Sequence[StoredCommand]) -> Set[int]:
        ids = self._list([entry.id for entry in entries])
        return {row[0] for row in self._rows(self._sql.replaced, ids=ids)}

    def drop_cancels(self, cancels: Sequence[Cancel]) -> None:
        self._transaction.write(self._sql.drop_cancels, {"ids": self._list([each.id for each in cancels])})

    def matching_cancels(self, cancels: Sequence[Cancel], limit: int) -> list[StoredCommand]:
        ids = self._list([each.id for each in cancels])
        queries = [self._query(statement, ids=ids, limit=limit) for statement in self._sql.matching_cancels]
        found = {row[0]: row for rows in self._transaction.read(*queries) for row in rows}
        return [to_command(row) for row in [*found.values()][:limit]]

    def next_commands(self, pairs: Collection[Pair], now: float) -> Mapping[Pair, StoredCommand | float]:
        found: dict[Pair, StoredCommand | float] = {}
        for device, lane, earliest, *ready in self._rows(
            self._sql.next_commands, now=now, **self._pairs(pairs)
        ):
            if ready[0] is not None:
                found[device, lane] = to_command(ready)
            elif isinstance(earliest, (int, float)):
                found[device, lane] = earliest
        return found

    def overdue(self, shards: Collection[int], now: float, limit: int) -> list[StoredCommand]:
        mine = self._list(shards)
        found = self._rows(self._sql.overdue, shards=mine, now=now, limit=limit)
        known = {row[0] for row in found}
        if aborted := [number for (number,) in self._rows(self._sql.aborted)]:
            more = self._rows(self._sql.of_rollouts, shards=mine, ids=self._list(aborted), limit=limit)
            found = [*found, *(row for row in more if row[0] not in known)]
        return [to_command(row) for row in found[:limit]]

    def rollouts(self, ids: Collection[int]) -> Mapping[int, Rollout]:
        found = self._rows(self._sql.rollouts, ids=self._list(ids))
        return {row[0]: to_rollout(row) for row in self._filter.valid("rollout", found, ROLLOUT_KINDS)}

    def save(self, entries: Sequence[StoredCommand]) -> None:
        rows = [
            (
                e.id,
                e.state.value,  # a driver would store the member's name
                e.tries,
                e.spent,
                e.epoch,
                e.published_at,
                e.closed_at,
                e.answer,
                e.reason,
            )
            for e in entries
        ]
        self._write(self._sql.save, rows, SAVED)

    def save_heads(self, heads: Sequence[Head]) -> None:
        rows = [(h.device, h.lane, h.shard, h.phase.value, h.command, h.due) for h in heads]
        self._write(self._sql.save_heads, rows, HEAD_FIELDS)

    def _write(self, statement: Statement, rows: Sequence[Sequence[Any]], names: Sequence[str]) -> None:
        """Write many rows: by an execution a row, or by one that gets a list a column."""
        if self._sql.postgresql:
            columns = dict(zip(names, map(array, zip(*rows, strict=True)), strict=True))
            self._transaction.write(*self._query(statement, **columns))
        else:
            outbox = {"outbox": self._outbox}
            filled = [outbox | dict(zip(names, row, strict=True)) for row in rows]
            self._transaction.write(statement, *filled)

    def save_rollouts(self, closed: Mapping[int, tuple[int, int]]) -> None:
        # In order, so that dispatchers lock rollouts in the same order.
        rows = [
            {"id": number, "more_done": done, "more_failed": failed}
            for number, (done, failed) in sorted(closed.items())
        ]
        self._transaction.write(self._sql.save_rollout, *rows)

    def save_briefs(self, closed: Sequence[StoredCommand]) -> None:
        rows = [
            {"outbox": self._outbox, "shard": e.shard, "command": e.id, "closed_at": e.closed_at}
            for e in closed
        ]
        self._transaction.write(self._sql.save_brief, *rows)

    def drop_briefs(self, shards: Collection[int]) -> None:
        self._transaction.write(*self._query(self._sql.drop_briefs, shards=self._list(shards)))

    def save_seen(self, seen: Mapping[str, float | None], away: Set[str]) -> None:
        rows = [
            {"outbox": self._outbox, "device": device, "seen_at": at, "away": device in away}
            for device, at in sorted(seen.items())
        ]
        self._transaction.write(self._sql.save_seen, *rows)

    def _pairs(self, pairs: Collection[Pair]) -> dict[str, Any]:
        return self._sql.table("pairs", ("devices", "lanes"), pairs)
