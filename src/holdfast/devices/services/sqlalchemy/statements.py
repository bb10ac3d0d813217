"""The SQL of a turn, for SQLite and PostgreSQL.

Many rows go through one statement. SQLite gets lists as JSON, and PostgreSQL as arrays; other differences are
locks, which only PostgreSQL needs, and hints for SQLite's planner. Conditions on ``state`` and ``phase`` are
written out, because a partial index is used only for a condition that is known before values are bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any
from zlib import crc32

from holdfast.devices.rules.device_queue import Head, StoredCommand
from holdfast.devices.rules.device_turn import Rollout
from holdfast.devices.services.sqlalchemy.transaction import Statement

COMMAND_FIELDS = StoredCommand.__struct_fields__[:-1]
"""The columns of a command: its fields without ``spoilt``."""

COLUMNS = ", ".join(COMMAND_FIELDS)
HEAD_FIELDS = Head.__struct_fields__
ROLLOUT = ", ".join(Rollout.__struct_fields__)
COLUMNS_OF = {"command": COLUMNS, "head": ", ".join(HEAD_FIELDS), "rollout": ROLLOUT}

TABLES = {
    "C": "command", "H": "head", "A": "arrival", "S": "shard", "D": "device", "R": "rollout", "B": "brief",
    "P": "pause", "X": "cancel",
}  # fmt: skip

NEXT = """
    SELECT ? FROM {C} n
    WHERE n.outbox = :outbox AND n.device = p.device AND n.lane = p.lane AND n.state = 'scheduled'
    AND n.not_before <= :now ORDER BY n.priority DESC, n.id LIMIT 1"""

PARTS = {
    "@pairs": (
        """(SELECT json_extract(value, '$[0]') AS device, json_extract(value, '$[1]') AS lane
    FROM json_each(:pairs)) p""",
        "unnest(CAST(:devices AS text[]), CAST(:lanes AS int[])) AS p (device, lane)",
    ),
    "@next": (
        f"{{C}} c ON c.id = ({NEXT.replace('?', 'n.id')})",
        f"LATERAL ({NEXT.replace('?', '*')} FOR UPDATE) c ON TRUE",
    ),
    "@head": (
        "{H} h ON h.outbox = :outbox AND h.device = a.device AND h.lane = a.lane",
        # The subquery has one plan only, by the primary key.
        """LATERAL (SELECT * FROM {H} s WHERE s.outbox = :outbox AND s.device = a.device AND s.lane = a.lane
    LIMIT 1) h ON TRUE""",
    ),
    "@marks": (
        """(SELECT json_extract(value, '$[0]') AS device, json_extract(value, '$[1]') AS key,
    json_extract(value, '$[2]') AS command FROM json_each(:marks)) m""",
        """unnest(CAST(:devices AS text[]), CAST(:keys AS text[]), CAST(:ids AS bigint[]))
    AS m (device, key, command)""",
    ),
    "<join>": ("CROSS JOIN", "JOIN"),  # SQLite changes the order of other joins
    "<share>": ("", "FOR SHARE"),
    "<update>": ("", "FOR UPDATE OF c"),
}
"""Parts of templates, for SQLite and for PostgreSQL."""

SAVED = ("id", "state", "tries", "spent", "epoch", "published_at", "closed_at", "answer", "reason")
SAVE = (
    """
UPDATE {C} SET state = :state, tries = :tries, spent = :spent, epoch = :epoch, published_at = :published_at,
    closed_at = :closed_at, answer = :answer, reason = :reason WHERE id = :id""",
    """
UPDATE {C} SET state = v.state, tries = v.tries, spent = v.spent, epoch = v.epoch,
    published_at = v.published_at, closed_at = v.closed_at, answer = v.answer, reason = v.reason
FROM unnest(CAST(:id AS bigint[]), CAST(:state AS text[]), CAST(:tries AS int[]), CAST(:spent AS int[]),
    CAST(:epoch AS bigint[]), CAST(:published_at AS float8[]), CAST(:closed_at AS float8[]),
    CAST(:answer AS bytea[]), CAST(:reason AS text[]))
    AS v (id, state, tries, spent, epoch, published_at, closed_at, answer, reason)
WHERE {C}.id = v.id""",
)
"""The statement that saves changed commands, for SQLite and for PostgreSQL."""

SAVE_HEADS = (
    "VALUES (:outbox, :device, :lane, :shard, :phase, :command, :due)",
    """
SELECT :outbox, v.* FROM unnest(CAST(:device AS text[]), CAST(:lane AS int[]), CAST(:shard AS int[]),
    CAST(:phase AS text[]), CAST(:command AS bigint[]), CAST(:due AS float8[])) v""",
)


def prepared(sql: str) -> Statement:
    """Return a statement that PostgreSQL prepares under a name of its own."""
    names = list(dict.fromkeys(re.findall(r":(\w+)", sql)))
    called = f"holdfast_{crc32(sql.encode()):08x}"
    values = f" ({', '.join(f'%({name})s' for name in names)})" if names else ""
    text = re.sub(r":(\w+)", lambda found: f"${names.index(found[1]) + 1}", sql)
    return Statement(f"EXECUTE {called}{values}", f"PREPARE {called} AS {text}")


class Statements:
    """All statements of a turn, for one database."""

    def __init__(self, *, postgresql: bool) -> None:
        self.postgresql = postgresql
        made = self._make
        self.epochs = made(
            "SELECT shard, epoch FROM {S} WHERE outbox = :outbox AND shard IN [shards] ORDER BY shard <share>"
        )
        self.commands = made("SELECT <command> FROM {C} WHERE outbox = :outbox AND id IN [ids]")
        self.named = made(
            "SELECT <a.command>, <h.head> FROM (SELECT * FROM {C} WHERE outbox = :outbox AND id IN [ids]) a"
            " LEFT JOIN @head"
        )
        self.heads = made(
            "SELECT <h.head> FROM @pairs"
            " <join> {H} h ON h.outbox = :outbox AND h.device = p.device AND h.lane = p.lane"
        )
        self.held = made(
            "SELECT <head> FROM {H} WHERE outbox = :outbox AND device IN [devices] AND phase = 'held'"
        )
        shift = "UPDATE {H} SET due = due + :by_s WHERE outbox = :outbox AND shard IN [shards] AND "
        self.shift_back = made(shift + "phase <> 'idle'")
        self.shift_on = made(shift + "phase IN ('out', 'held')")
        cap = (
            "UPDATE {H} SET due = :latest WHERE outbox = :outbox AND shard IN [shards] AND due > :latest AND "
        )
        self.cap_due = [made(cap + "phase = 'out'"), made(cap + "phase IN ('waiting', 'held')")]
        postpone = cap.replace("due > :latest", "due < :until").replace(":latest", ":until")
        self.postpone = [made(postpone + "phase = 'out'"), made(postpone + "phase = 'held' AND command <> 0")]
        self.arrivals = made(
            "SELECT a.id, a.device, a.lane, a.shard, a.command, a.supersede_key, h.phase, h.command, h.due"
            " FROM (SELECT * FROM {A} WHERE outbox = :outbox AND shard IN [shards] LIMIT :limit) a"
            " LEFT JOIN @head"
        )
        misplaced = " WHERE outbox = :outbox AND (shard < 0 OR shard >= :shards)"
        self.misplaced_arrivals = made(
            "SELECT id, device, lane, shard, command, supersede_key FROM {A}"  # noqa: S608
            + misplaced
            + " LIMIT :limit"
        )
        self.gather_cancels = made("UPDATE {X} SET shard = 0" + misplaced)  # noqa: S608
        self.move_arrival = made("UPDATE {A} SET shard = :shard WHERE id = :id")
        self.move_commands = made(
            "UPDATE {C} SET shard = :shard WHERE outbox = :outbox AND device = :device"
            " AND state = 'scheduled' AND shard <> :shard"
        )
        self.drop_arrivals = made("DELETE FROM {A} WHERE id IN [ids]")
        self.superseded_by = made(
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
        older = "c.outbox = x.outbox AND c.device = x.device AND c.id < x.below"
        keyed = "x.command = 0 AND x.supersede_key IS"
        self.matching_cancels = [
            made(
                f"SELECT <c.command> FROM {{X}} x <join> {{C}} c {index} ON {joined}"  # noqa: S608
                f" AND c.state = 'scheduled' WHERE x.id IN [ids] AND {chosen} LIMIT :limit <update>"
            )
            for index, joined, chosen in (
                ("", "c.id = x.command", "x.command <> 0"),
                ("<by command_next>", older, f"{keyed} NULL"),
                (
                    "<by command_supersede>",
                    f"{older} AND c.supersede_key = x.supersede_key",
                    f"{keyed} NOT NULL",
                ),
            )
        ]
        self.due_out, self.due = [
            made(
                f"SELECT <head> FROM {{H}} {index} WHERE outbox = :outbox AND shard IN [shards]"  # noqa: S608
                f" AND due <= :now AND phase {phases} ORDER BY due LIMIT :limit"
            )
            for index, phases in (("<by head_out>", "= 'out'"), ("<by head_due>", "IN ('waiting', 'held')"))
        ]
        self.next_commands = made("""
SELECT p.device, p.lane, CASE WHEN c.id IS NULL THEN (
    SELECT min(n.not_before) FROM {C} n WHERE n.outbox = :outbox AND n.device = p.device AND n.lane = p.lane
    AND n.state = 'scheduled') END, <c.command>
FROM @pairs LEFT JOIN @next""")
        self.overdue = made(
            "SELECT <command> FROM {C} c WHERE outbox = :outbox AND shard IN [shards]"
            " AND state = 'scheduled' AND expires_at IS NOT NULL AND expires_at <= :now"
            " ORDER BY expires_at LIMIT :limit <update>"  # without the order another index seems as good
        )
        self.aborted = made("SELECT id FROM {R} WHERE outbox = :outbox AND aborted AND done + failed < total")
        self.of_rollouts = made(
            "SELECT <command> FROM {C} c <by command_rollout>"
            " WHERE outbox = :outbox AND shard IN [shards] AND rollout IN [ids]"
            " AND state = 'scheduled' LIMIT :limit <update>"
        )
        self.rollouts = made("SELECT <rollout> FROM {R} WHERE outbox = :outbox AND id IN [ids]")
        self.save = made(SAVE[postgresql])
        self.save_heads = made(
            "INSERT INTO {H} (outbox, <head>) "
            + SAVE_HEADS[postgresql]
            + """
ON CONFLICT (outbox, device, lane) DO UPDATE
SET shard = excluded.shard, phase = excluded.phase, command = excluded.command, due = excluded.due"""
        )
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

    def list(self, values: Collection[int] | Collection[str]) -> Any:
        """Return a list as one parameter."""
        return array([*values]) if self.postgresql else json.dumps(list(values))

    def table(self, name: str, columns: Sequence[str], rows: Collection[Sequence[Any]]) -> dict[str, Any]:
        """Return rows as parameters: one list ``name`` for SQLite, one list per column for PostgreSQL."""
        if not self.postgresql:
            return {name: json.dumps([*rows])}
        return {column: array([row[at] for row in rows]) for at, column in enumerate(columns)}

    def _make(self, template: str) -> Statement:
        """Return the statement of a template. ``{C}`` is a table, ``<command>`` and ``<c.command>`` are the
        columns of one, ``[name]`` is a list of numbers or texts, and ``<by NAME>`` the index to use."""
        sql = template
        for name, part in PARTS.items():
            sql = sql.replace(name, part[self.postgresql])
        for name, columns in COLUMNS_OF.items():
            sql = sql.replace(f"<{name}>", columns)
            for alias in re.findall(rf"<(\w)\.{name}>", sql):
                listed = ", ".join(f"{alias}.{column}" for column in columns.split(", "))
                sql = sql.replace(f"<{alias}.{name}>", listed)
        for short, table in TABLES.items():
            sql = sql.replace(f"{{{short}}}", f"holdfast_outbox_{table}")
        for name, kind in (("ids", "bigint"), ("shards", "int"), ("devices", "text")):
            values = (
                f"= ANY(CAST(:{name} AS {kind}[]))"
                if self.postgresql
                else f"IN (SELECT value FROM json_each(:{name}))"  # noqa: S608
            )
            sql = sql.replace(f"IN [{name}]", values)
        by = "" if self.postgresql else r"INDEXED BY holdfast_outbox_\1"  # SQLite takes others for as good
        sql = re.sub(r"<by (\w+)>", by, sql)
        return prepared(sql) if self.postgresql else Statement(sql)


SQLITE = Statements(postgresql=False)
POSTGRESQL = Statements(postgresql=True)


# --- arrays

ArrayValue = int | float | str | bytes | None
NUMBERS = {int, float}


def array(values: Sequence[ArrayValue]) -> str:
    """Return an array's text, for a parameter that the statement casts. psycopg takes each value of a list
    through a dumper and a regular expression, which was a third of a turn's time.

    Source: "Array Input and Output Syntax" in PostgreSQL's documentation.
    """
    write = repr if {*map(type, values)} <= NUMBERS else _element
    return f"{{{','.join(map(write, values))}}}"


def _element(value: ArrayValue) -> str:
    match value:
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case bytes():
            return f'"\\\\x{value.hex()}"'
        case None:
            return "NULL"
        case _:
            return repr(value)
