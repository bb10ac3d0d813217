"""The rows of one outbox in a transaction: what a turn reads and writes.

Many rows go through one statement, and what a turn reads first comes in one round trip. Lists are given to
SQLite as JSON, and to PostgreSQL as arrays; that, and the locks that only PostgreSQL needs, is all that
differs. Conditions on ``state`` and ``phase`` are written out, because partial indexes are used only for what
is plain before values are bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import NoneType
from typing import Any
from zlib import crc32

from holdfast.devices.rules.device_queue import TRIES_MAX, CommandState, Head, HeadPhase, StoredCommand
from holdfast.devices.rules.device_turn import Arrival, Cancel, Rollout, TurnRequest, TurnRows
from holdfast.devices.rules.group_rate import Pair
from holdfast.devices.services.sqlalchemy.arrays import array
from holdfast.devices.services.sqlalchemy.transaction import OutboxTransaction, Query, Rows, Statement
from holdfast.extend import get_logger

NAMED_MAX, NAMED_CHARS_MAX = 1000, 60
"""How many spoilt rows are remembered, and how much of a value is told."""

log = get_logger(__name__)

COLUMNS = (
    "id, device, lane, shard, state, body, priority, not_before, expires_at, tries, spent, epoch, dedupe_key,"
    " supersede_key, trace_id, rollout, created_at, published_at, closed_at, answer, reason,"
    " traceparent"
)
"""Of a command, in the order of the fields of ``StoredCommand``."""

HEAD = "device, lane, shard, phase, command, due"
HEAD_WIDTH = len(HEAD.split(", "))
ROLLOUT = "id, name, total, abort_share, done, failed, aborted, created_at, rate"


class SqlDialect:
    """The form in which a database takes statements: how it is given lists, and what it must lock."""

    def __init__(self, *, postgresql: bool) -> None:
        self.postgresql = postgresql

    def statement(self, template: str) -> Statement:
        """A statement of a template: ``{C}``, ``{H}`` and so on are tables, ``<command>``, ``<head>`` and
        ``<rollout>`` their columns, ``[name]`` is a list of numbers or texts, ``<share>`` and ``<update>``
        are locks, ``<join>`` goes from what is on its left, ``<by …>`` names the index to use."""
        sql = template
        for name, columns in (("command", COLUMNS), ("head", HEAD), ("rollout", ROLLOUT)):
            sql = sql.replace(f"<{name}>", columns)
            for alias in re.findall(rf"<(\w)\.{name}>", sql):
                listed = ", ".join(f"{alias}.{column}" for column in columns.split(", "))
                sql = sql.replace(f"<{alias}.{name}>", listed)
        for short, table in TABLES.items():
            sql = sql.replace(f"{{{short}}}", f"holdfast_outbox_{table}")
        for name, kind in (("ids", "bigint"), ("shards", "int"), ("devices", "text")):
            values = (
                f"ANY(CAST(:{name} AS {kind}[]))"
                if self.postgresql
                else f"(SELECT value FROM json_each(:{name}))"  # noqa: S608
            )
            sql = sql.replace(f"IN [{name}]", f"= {values}" if self.postgresql else f"IN {values}")
        sql = sql.replace("<join>", "JOIN" if self.postgresql else "CROSS JOIN")  # SQLite reorders others
        by = "" if self.postgresql else r"INDEXED BY holdfast_outbox_\1"  # SQLite takes others for as good
        sql = re.sub(r"<by (\w+)>", by, sql)
        for lock, clause in (("<share>", "FOR SHARE"), ("<update>", "FOR UPDATE OF c")):
            sql = sql.replace(lock, clause if self.postgresql else "")
        return prepared(sql) if self.postgresql else Statement(sql)

    def list(self, values: Collection[int] | Collection[str]) -> Any:
        """A list, as a parameter."""
        return array([*values]) if self.postgresql else json.dumps(list(values))


def prepared(sql: str) -> Statement:
    """A statement that PostgreSQL prepares under a name of its own."""
    names = list(dict.fromkeys(re.findall(r":(\w+)", sql)))
    called = f"holdfast_{crc32(sql.encode()):08x}"
    values = f" ({', '.join(f'%({name})s' for name in names)})" if names else ""
    text = re.sub(r":(\w+)", lambda found: f"${names.index(found[1]) + 1}", sql)
    return Statement(f"EXECUTE {called}{values}", f"PREPARE {called} AS {text}")


TABLES = {
    "C": "command", "H": "head", "A": "arrival", "S": "shard", "D": "device", "R": "rollout", "B": "brief",
    "P": "pause", "X": "cancel",
}  # fmt: skip

PAIRS = {
    False: "(SELECT json_extract(value, '$[0]') AS device, json_extract(value, '$[1]') AS lane"
    " FROM json_each(:pairs)) p",
    True: "unnest(CAST(:devices AS text[]), CAST(:lanes AS int[])) AS p (device, lane)",
}

NEXT = """
    SELECT @ FROM {C} n
    WHERE n.outbox = :outbox AND n.device = p.device AND n.lane = p.lane AND n.state = 'scheduled'
    AND n.not_before <= :now ORDER BY n.priority DESC, n.id LIMIT 1"""

FIRST = """
SELECT p.device, p.lane, CASE WHEN c.id IS NULL THEN (
    SELECT min(n.not_before) FROM {C} n WHERE n.outbox = :outbox AND n.device = p.device AND n.lane = p.lane
    AND n.state = 'scheduled') END, <c.command>
FROM @pairs LEFT JOIN @next"""

NEXTS = {
    False: f"{{C}} c ON c.id = ({NEXT.replace('@', 'n.id')})",
    True: f"LATERAL ({NEXT.replace('@', '*')} FOR UPDATE) c ON TRUE",
}

ARRIVALS = """
SELECT a.id, a.device, a.lane, a.shard, a.command, a.supersede_key, h.phase, h.command, h.due
FROM (SELECT * FROM {A} WHERE outbox = :outbox AND shard IN [shards] LIMIT :limit) a LEFT JOIN @standing"""

NAMED = """
SELECT <a.command>, <h.head>
FROM (SELECT * FROM {C} WHERE outbox = :outbox AND id IN [ids]) a LEFT JOIN @standing"""

STANDING = {
    False: "{H} h ON h.outbox = :outbox AND h.device = a.device AND h.lane = a.lane",
    True: "LATERAL (SELECT * FROM {H} s WHERE s.outbox = :outbox AND s.device = a.device AND s.lane = a.lane"
    " LIMIT 1) h ON TRUE",  # no plan but that by its key
}

MARKS = {
    False: "(SELECT json_extract(value, '$[0]') AS device, json_extract(value, '$[1]') AS key,"
    " json_extract(value, '$[2]') AS command FROM json_each(:marks)) m",
    True: "unnest(CAST(:devices AS text[]), CAST(:keys AS text[]), CAST(:ids AS bigint[]))"
    " AS m (device, key, command)",
}

SAVE = {
    False: """
UPDATE {C} SET state = :state, tries = :tries, spent = :spent, epoch = :epoch, published_at = :published_at,
    closed_at = :closed_at, answer = :answer, reason = :reason WHERE id = :id""",
    True: """
UPDATE {C} SET state = v.state, tries = v.tries, spent = v.spent, epoch = v.epoch,
    published_at = v.published_at, closed_at = v.closed_at, answer = v.answer, reason = v.reason
FROM unnest(CAST(:id AS bigint[]), CAST(:state AS text[]), CAST(:tries AS int[]), CAST(:spent AS int[]),
    CAST(:epoch AS bigint[]), CAST(:published_at AS float8[]), CAST(:closed_at AS float8[]),
    CAST(:answer AS bytea[]), CAST(:reason AS text[]))
    AS v (id, state, tries, spent, epoch, published_at, closed_at, answer, reason)
WHERE {C}.id = v.id""",
}

SAVED = ("id", "state", "tries", "spent", "epoch", "published_at", "closed_at", "answer", "reason")

CONFLICT = """
ON CONFLICT (outbox, device, lane) DO UPDATE
SET shard = excluded.shard, phase = excluded.phase, command = excluded.command, due = excluded.due"""

SAVE_HEADS = {
    False: """
INSERT INTO {H} (outbox, device, lane, shard, phase, command, due)
VALUES (:outbox, :device, :lane, :shard, :phase, :command, :due) <conflict>""",
    True: """
INSERT INTO {H} (outbox, device, lane, shard, phase, command, due)
SELECT :outbox, v.* FROM unnest(CAST(:device AS text[]), CAST(:lane AS int[]), CAST(:shard AS int[]),
    CAST(:phase AS text[]), CAST(:command AS bigint[]), CAST(:due AS float8[])) v <conflict>""",
}

HEAD_FIELDS = ("device", "lane", "shard", "phase", "command", "due")


class Statements:
    """All statements of a turn, in one dialect."""

    def __init__(self, *, postgresql: bool) -> None:
        self.dialect = dialect = SqlDialect(postgresql=postgresql)

        def made(template: str) -> Statement:
            parts = {"@next": NEXTS, "@standing": STANDING, "@pairs": PAIRS, "@marks": MARKS}
            for name, part in parts.items():
                template = template.replace(name, part[postgresql])
            return dialect.statement(template)

        self.epochs = made(
            "SELECT shard, epoch FROM {S} WHERE outbox = :outbox AND shard IN [shards] ORDER BY shard <share>"
        )
        self.commands = made("SELECT <command> FROM {C} WHERE outbox = :outbox AND id IN [ids]")
        self.named = made(NAMED)
        self.heads = made(
            "SELECT h.device, h.lane, h.shard, h.phase, h.command, h.due FROM @pairs"
            " <join> {H} h ON h.outbox = :outbox AND h.device = p.device AND h.lane = p.lane"
        )
        self.held = made(
            "SELECT <head> FROM {H} WHERE outbox = :outbox AND device IN [devices] AND phase = 'held'"
        )
        shift = "UPDATE {H} SET due = due + :by_s WHERE outbox = :outbox AND shard IN [shards] AND "
        self.shift_back = made(shift + "phase <> 'idle'")
        self.shift_on = made(shift + "phase IN ('out', 'held')")
        cap_due = "UPDATE {H} SET due = :latest WHERE outbox = :outbox AND shard IN [shards] AND "
        self.cap_due = [
            made(cap_due + "due > :latest AND phase = 'out'"),
            made(cap_due + "due > :latest AND phase IN ('waiting', 'held')"),
        ]
        postpone = cap_due.replace(":latest", ":until") + "due < :until AND "
        self.postpone = [made(postpone + "phase = 'out'"), made(postpone + "phase = 'held' AND command <> 0")]
        self.arrivals = made(ARRIVALS)
        self.misplaced_arrivals = made(
            "SELECT id, device, lane, shard, command, supersede_key FROM {A}"
            " WHERE outbox = :outbox AND (shard < 0 OR shard >= :shards) LIMIT :limit"
        )
        self.gather_cancels = made(
            "UPDATE {X} SET shard = 0 WHERE outbox = :outbox AND (shard < 0 OR shard >= :shards)"
        )
        self.move = [
            made("UPDATE {A} SET shard = :shard WHERE id = :id"),
            made(
                "UPDATE {C} SET shard = :shard WHERE outbox = :outbox AND device = :device"
                " AND state = 'scheduled' AND shard <> :shard"
            ),
        ]
        self.drop_arrivals = made("DELETE FROM {A} WHERE id IN [ids]")
        self.older = made(
            "SELECT <c.command> FROM @marks <join> {C} c <by command_supersede> ON c.outbox = :outbox"
            " AND c.device = m.device AND c.supersede_key = m.key AND c.state = 'scheduled'"
            " AND c.id < m.command <update>"
        )
        self.replaced = made(
            "SELECT c.id FROM {C} c WHERE c.outbox = :outbox AND c.id IN [ids] AND EXISTS ("
            "SELECT 1 FROM {C} n WHERE n.outbox = :outbox AND n.supersede_key = c.supersede_key"
            " AND n.device = c.device AND n.id > c.id)"
        )
        self.paused = made("SELECT device FROM {P} WHERE outbox = :outbox")
        self.cancels = made(
            "SELECT id, device, shard, below, supersede_key, command FROM {X}"
            " WHERE outbox = :outbox AND shard IN [shards] LIMIT :limit"
        )
        self.drop_cancels = made("DELETE FROM {X} WHERE id IN [ids]")
        cancelled = (
            "SELECT <c.command> FROM {X} x <join> {C} c <by @@@> ON @ AND c.state = 'scheduled'"
            " WHERE x.id IN [ids] AND @@ LIMIT :limit <update>"
        )
        device = "c.outbox = x.outbox AND c.device = x.device"
        self.meant = [
            made(cancelled.replace("<by @@@>", by).replace("@@", which).replace("@", how))
            for by, how, which in (
                ("", "c.id = x.command", "x.command <> 0"),
                (
                    "<by command_next>",
                    f"{device} AND c.id < x.below",
                    "x.command = 0 AND x.supersede_key IS NULL",
                ),
                (
                    "<by command_supersede>",
                    f"{device} AND c.id < x.below AND c.supersede_key = x.supersede_key",
                    "x.command = 0 AND x.supersede_key IS NOT NULL",
                ),
            )
        ]
        due = (
            "SELECT <head> FROM {H} <by {}> WHERE outbox = :outbox AND shard IN [shards] AND due <= :now"
            " AND phase {} ORDER BY due LIMIT :limit"
        )
        self.due_out = made(due.replace("<by {}>", "<by head_out>").replace("phase {}", "phase = 'out'"))
        self.due = made(
            due.replace("<by {}>", "<by head_due>").replace("phase {}", "phase IN ('waiting', 'held')")
        )
        self.first = made(FIRST)
        self.overdue = made(
            "SELECT <command> FROM {C} c WHERE outbox = :outbox AND shard IN [shards]"
            " AND state = 'scheduled' AND expires_at IS NOT NULL AND expires_at <= :now"
            " ORDER BY expires_at LIMIT :limit <update>"  # in order, or another index would seem as good
        )
        self.aborted = made("SELECT id FROM {R} WHERE outbox = :outbox AND aborted AND done + failed < total")
        self.of_rollouts = made(
            "SELECT <command> FROM {C} c <by command_rollout>"
            " WHERE outbox = :outbox AND shard IN [shards] AND rollout IN [ids]"
            " AND state = 'scheduled' LIMIT :limit <update>"
        )
        self.rollouts = made("SELECT <rollout> FROM {R} WHERE outbox = :outbox AND id IN [ids]")
        self.save = made(SAVE[postgresql])
        self.save_heads = made(SAVE_HEADS[postgresql].replace("<conflict>", CONFLICT))
        self.save_rollout = made(
            "UPDATE {R} SET done = done + :more_done, failed = failed + :more_failed,"
            " aborted = aborted OR failed + :more_failed > abort_share * total WHERE id = :id"
        )
        self.save_seen = made(
            "INSERT INTO {D} (outbox, device, seen_at, away) VALUES (:outbox, :device, :seen_at, :away)"
            " ON CONFLICT (outbox, device) DO UPDATE"
            " SET seen_at = coalesce(excluded.seen_at, {D}.seen_at), away = excluded.away"
        )
        self.save_brief = made(
            "INSERT INTO {B} (command, outbox, shard, closed_at)"
            " VALUES (:command, :outbox, :shard, :closed_at)"
            " ON CONFLICT (command) DO UPDATE SET closed_at = excluded.closed_at"
        )
        self.drop_briefs = made("DELETE FROM {B} WHERE outbox = :outbox AND shard IN [shards]")


SQLITE = Statements(postgresql=False)
POSTGRESQL = Statements(postgresql=True)


def to_rollout(row: Sequence[Any]) -> Rollout:
    """A row of ``ROLLOUT`` as a record. SQLite has no type for what is true or false."""
    number, name, total, abort_share, done, failed, aborted, created_at, rate = row
    return Rollout(number, name, total, abort_share, done, failed, bool(aborted), created_at, rate)


class SqlRows:
    """The rows of one outbox, in a transaction."""

    def __init__(
        self, transaction: OutboxTransaction, outbox: str, statements: Statements, valid: RowFilter
    ) -> None:
        self._transaction = transaction
        self._outbox = outbox
        self._sql = statements
        self._valid = valid
        self._list = statements.dialect.list
        self._postgresql = statements.dialect.postgresql

    def read(self, request: TurnRequest) -> TurnRows:
        named = {h.correlation.command for h in request.answers} | {
            u.correlation.command for u in request.unsent
        }
        granted, sendable = self._list(request.grants), self._list(request.sendable)
        queries = {
            "epochs": self._query(self._sql.epochs, shards=granted),
            "arrivals": self._query(self._sql.arrivals, shards=granted, limit=request.limit),
            "cancels": self._query(self._sql.cancels, shards=granted, limit=request.limit),
            "paused": self._query(self._sql.paused),
        }
        if named:
            queries["named"] = self._query(self._sql.named, ids=self._list(named))
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
        # Marks that say nothing are dropped: they would be read in every turn.
        arrived = self._valid.only("arrival", found["arrivals"], ARRIVAL_KINDS)
        self._drop_others(self._sql.drop_arrivals, found["arrivals"], arrived)
        cancels = self._valid.only("cancel", found["cancels"], CANCEL_KINDS)
        self._drop_others(self._sql.drop_cancels, found["cancels"], cancels)
        standing: list[Sequence[Any]] = [(*row[1:4], *row[6:]) for row in arrived if row[6] is not None]
        commands = [(row[:-HEAD_WIDTH], row[-HEAD_WIDTH:]) for row in found.get("named", ())]
        standing += [head for _, head in commands if head[0] is not None]
        return TurnRows(
            epochs={row[0]: row[1] for row in found["epochs"]},
            commands={row[0]: entry(row) for row, _ in commands},
            held=self._to_heads(found.get("held", ())),
            arrivals=[Arrival(*row[:6]) for row in arrived],
            heads={each.pair: each for each in self._to_heads(standing)},
            out=self._to_heads(found.get("out", ())),
            ready=self._to_heads(found.get("ready", ())),
            cancels=[Cancel(*row) for row in cancels],
            paused={row[0] for row in found["paused"]},
        )

    def _to_heads(self, rows: Iterable[Sequence[Any]]) -> list[Head]:
        """Rows of ``HEAD`` as records, without those that Holdfast never wrote."""
        sound = self._valid.only("head", rows, HEAD_KINDS, has_phase)
        return [
            Head(device, lane, shard, PHASES[phase], command, due)
            for device, lane, shard, phase, command, due in sound
        ]

    def _drop_others(self, drop: Statement, rows: Rows, sound: Rows) -> None:
        if others := {row[0] for row in rows} - {row[0] for row in sound}:
            self._transaction.write(drop, {"ids": self._list(others)})

    def epochs(self, shards: Collection[int]) -> Mapping[int, int]:
        """The standing epochs, held fast until the transaction ends."""
        return {row[0]: row[1] for row in self._rows(self._sql.epochs, shards=self._list(shards))}

    def _query(self, statement: Statement, **parameters: Any) -> Query:
        return statement, {"outbox": self._outbox, **parameters}

    def _rows(self, statement: Statement, **parameters: Any) -> Rows:
        [rows] = self._transaction.read(self._query(statement, **parameters))
        return rows

    def commands(self, ids: Collection[int]) -> Mapping[int, StoredCommand]:
        return {row[0]: entry(row) for row in self._rows(self._sql.commands, ids=self._list(ids))}

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
        sound = self._valid.only("arrival", found, ARRIVAL_KINDS)
        self._drop_others(self._sql.drop_arrivals, found, sound)
        return [Arrival(*row) for row in sound]

    def gather_cancels(self, shards: int) -> None:
        self._transaction.write(*self._query(self._sql.gather_cancels, shards=shards))

    def move_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        arrival, commands = self._sql.move
        self._transaction.write(arrival, *({"id": each.id, "shard": each.shard} for each in arrivals))
        devices = {each.device: each.shard for each in arrivals}
        for device, shard in sorted(devices.items()):
            self._transaction.write(*self._query(commands, device=device, shard=shard))

    def drop_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        ids = self._list([arrival.id for arrival in arrivals])
        self._transaction.write(self._sql.drop_arrivals, {"ids": ids})

    def superseded_by(self, arrivals: Sequence[Arrival]) -> list[StoredCommand]:
        newest: dict[tuple[str, str | None], int] = {}
        for arrival in arrivals:
            place = arrival.device, arrival.supersede_key
            newest[place] = max(arrival.command, newest.get(place, 0))
        marks = [(device, key, command) for (device, key), command in newest.items()]
        parameters: dict[str, Any] = {"marks": json.dumps(marks)}
        if self._postgresql:
            devices, keys, ids = zip(*marks, strict=True)
            parameters = {"devices": array(devices), "keys": array(keys), "ids": array(ids)}
        return [entry(row) for row in self._rows(self._sql.older, **parameters)]

    def replaced(self, entries: Sequence[StoredCommand]) -> Set[int]:
        ids = self._list([entry.id for entry in entries])
        return {row[0] for row in self._rows(self._sql.replaced, ids=ids)}

    def drop_cancels(self, cancels: Sequence[Cancel]) -> None:
        self._transaction.write(self._sql.drop_cancels, {"ids": self._list([each.id for each in cancels])})

    def matching_cancels(self, cancels: Sequence[Cancel], limit: int) -> list[StoredCommand]:
        ids = self._list([each.id for each in cancels])
        queries = [self._query(statement, ids=ids, limit=limit) for statement in self._sql.meant]
        found = {row[0]: row for rows in self._transaction.read(*queries) for row in rows}
        return [entry(row) for row in [*found.values()][:limit]]

    def next_commands(self, pairs: Collection[Pair], now: float) -> Mapping[Pair, StoredCommand | float]:
        found: dict[Pair, StoredCommand | float] = {}
        for device, lane, earliest, *ready in self._rows(self._sql.first, now=now, **self._pairs(pairs)):
            if ready[0] is not None:
                found[device, lane] = entry(ready)
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
        return [entry(row) for row in found[:limit]]

    def rollouts(self, ids: Collection[int]) -> Mapping[int, Rollout]:
        found = self._rows(self._sql.rollouts, ids=self._list(ids))
        return {row[0]: to_rollout(row) for row in self._valid.only("rollout", found, ROLLOUT_KINDS)}

    def save(self, entries: Sequence[StoredCommand]) -> None:
        rows = [
            (
                e.id,
                e.state.value,  # drivers would store its name
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
        """Write many rows: as many executions of a statement, or one that gets a column at a time."""
        if self._postgresql:
            columns = dict(zip(names, map(array, zip(*rows, strict=True)), strict=True))
            self._transaction.write(*self._query(statement, **columns))
        else:
            outbox = {"outbox": self._outbox}
            filled = [outbox | dict(zip(names, row, strict=True)) for row in rows]
            self._transaction.write(statement, *filled)

    def save_rollouts(self, closed: Mapping[int, tuple[int, int]]) -> None:
        # In order: dispatchers lock them the same way.
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
        if self._postgresql:
            return {
                "devices": array([device for device, _ in pairs]),
                "lanes": array([lane for _, lane in pairs]),
            }
        return {"pairs": json.dumps(list(pairs))}


def entry(row: Sequence[Any]) -> StoredCommand:
    """A row of ``COLUMNS`` as a record. What Holdfast never wrote is left out, and named in ``spoilt``."""
    spoilt = ""
    if not fits(row, KINDS) or row[4] not in STATES or max(row[9], row[10]) >= TRIES_MAX:
        row, spoilt = _without_spoilt(row)
    (number, device, lane, shard, state, body, priority, not_before, expires_at, tries, spent, epoch, dedupe,
     supersede, trace_id, rollout, created_at, published_at, closed_at, answer, reason,
     traceparent) = row  # fmt: skip
    return StoredCommand(
        id=number,
        device=device,
        lane=lane,
        shard=shard,
        state=STATES[state],
        body=body,
        priority=priority,
        not_before=not_before,
        expires_at=expires_at,
        tries=tries,
        spent=spent,
        epoch=epoch,
        dedupe_key=dedupe,
        supersede_key=supersede,
        trace_id=trace_id,
        rollout=rollout,
        created_at=created_at,
        published_at=published_at,
        closed_at=closed_at,
        answer=answer,
        reason=reason,
        traceparent=traceparent,
        spoilt=spoilt,
    )


def _without_spoilt(row: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The row with harmless values for those that Holdfast never wrote, and which ones they are."""
    sound: list[Any] = []
    spoilt: list[str] = []
    for name, value, kinds in zip(COLUMNS.split(", "), row, KINDS, strict=True):
        fit = isinstance(value, kinds)
        if fit and name == "state":
            fit = value in STATES
        elif fit and name in ("tries", "spent"):
            fit = value < TRIES_MAX
        if not fit:
            spoilt.append(f"{name} {str(value)[:40]!r}")
        standing_in = (
            CommandState.FAILED.value if name == "state" else None if NoneType in kinds else kinds[0]()
        )
        sound.append(value if fit else standing_in)
    return sound, f"command {row[0]}: its row says what Holdfast never writes: {', '.join(spoilt)}"


def fits(row: Sequence[Any], kinds: Sequence[tuple[type, ...]]) -> bool:
    """Return True if a row's values are of its columns' types: SQLite keeps any type in any column."""
    return all(map(isinstance, row, kinds))


class RowFilter:
    """Tells rows that Holdfast may have written from those that another program spoilt, and names each of
    these once in the log. Threads may share it."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def only(
        self,
        table: str,
        rows: Iterable[Sequence[Any]],
        kinds: Sequence[tuple[type, ...]],
        and_is: Callable[[Sequence[Any]], bool] = lambda _: True,
    ) -> list[Sequence[Any]]:
        """The rows that fit ``kinds``, which are the types of their first columns, and that ``and_is`` holds
        for."""
        sound: list[Sequence[Any]] = []
        for row in rows:
            if fits(row[: len(kinds)], kinds) and and_is(row):
                sound.append(row)
            else:
                self._name(table, row[: len(kinds)])
        return sound

    def _name(self, table: str, row: Sequence[Any]) -> None:
        told = ", ".join(repr(value)[:NAMED_CHARS_MAX] for value in row)
        if (name := f"{table} ({told})") in self._named:
            return
        if len(self._named) >= NAMED_MAX:
            self._named.clear()
        self._named.add(name)
        log.warning(
            "a row of the outbox says what Holdfast never writes, and is left out",
            table=f"holdfast_outbox_{table}",
            row=told,
        )


def has_phase(row: Sequence[Any]) -> bool:
    """Return True if a row of ``HEAD`` has a phase that there is."""
    return row[3] in PHASES


STATES = {state.value: state for state in CommandState}
PHASES = {phase.value: phase for phase in HeadPhase}

TEXT, _TEXT_OR_NONE = (str,), (str, NoneType)
_INT, _INT_OR_NONE = (int,), (int, NoneType)
_TIME, _TIME_OR_NONE = (float, int), (float, int, NoneType)

KINDS: Sequence[tuple[type, ...]] = (
    _INT, TEXT, _INT, _INT, TEXT, (bytes,), _INT, _TIME, _TIME_OR_NONE, _INT, _INT, _INT, _TEXT_OR_NONE,
    _TEXT_OR_NONE, TEXT, _INT_OR_NONE, _TIME, _TIME_OR_NONE, _TIME_OR_NONE, (bytes, NoneType), TEXT,
    TEXT,
)  # fmt: skip
"""The types of ``COLUMNS``."""

HEAD_KINDS = (TEXT, _INT, _INT, TEXT, _INT, _TIME_OR_NONE)
ROLLOUT_KINDS = (_INT, TEXT, _INT, _TIME, _INT, _INT, _INT, _TIME, _TIME_OR_NONE)
CANCEL_KINDS = (_INT, TEXT, _INT, _INT, _TEXT_OR_NONE, _INT)
SHARD_KINDS: Sequence[tuple[type, ...]] = (_INT, _INT)
PAUSE_KINDS: Sequence[tuple[type, ...]] = (TEXT, _TIME)
ARRIVAL_KINDS = (_INT, TEXT, _INT, _INT, _INT, _TEXT_OR_NONE)
KNOWN_KINDS: Sequence[tuple[type, ...]] = (TEXT, _TIME_OR_NONE)
