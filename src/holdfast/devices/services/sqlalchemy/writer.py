"""Adds commands in the caller's transaction. It only inserts, so it and dispatchers never wait for each
other's locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from holdfast.devices.ports.outbox import NewCommand, on_store_clock, place_command
from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.bell import ring_at_commit
from holdfast.errors import ConfigError

FIELDS = NewCommand.__struct_fields__
BATCH = 1_000
"""Rows of one statement."""

MAKE = "start a node of this version once, whose user may make them, or make them by a migration"
"""The remedy for missing tables."""


class SqlWriter:
    """Writes in the transaction of a SQLAlchemy session or connection. Raises ConfigError for an unsupported
    database."""

    def __init__(self, db: Session | Connection) -> None:
        self._connection = db.connection() if isinstance(db, Session) else db
        if self._connection.dialect.name not in ("sqlite", "postgresql"):
            raise ConfigError(
                f"commands can't be added in {self._connection.dialect.name}: outboxes are in SQLite or"
                " PostgreSQL"
            )
        if not self._connection.in_transaction():
            self._connection.begin()

    def add(self, commands: Sequence[NewCommand]) -> list[int]:
        if not commands:
            return []
        with explain_missing_tables():
            return self._add(commands)

    def _add(self, commands: Sequence[NewCommand]) -> list[int]:
        now = ring_at_commit(self._connection, commands[0].outbox)
        shards, lanes = self._parts(commands[0].outbox)
        if shards:
            commands = [place_command(command, shards, lanes) for command in commands]
        commands = [on_store_clock(command, now) for command in commands]
        ids: list[int] = []
        fresh: list[tuple[NewCommand, int]] = []
        # In the given order, because the lowest id of a device's commands goes first.
        for may_exist, some in groupby(commands, lambda new: new.dedupe_key is not None):
            batch = list(some)
            if not may_exist:
                added = self._insert(batch)
                ids += added
                fresh += zip(batch, added, strict=True)
                continue
            for new in batch:
                number, is_new = self._insert_unless_there(new)
                ids.append(number)
                if is_new:
                    fresh.append((new, number))
        self._mark(fresh)
        return ids

    def add_rollout(
        self, outbox: str, name: str, total: int, rate: float | None, abort_share: float, created_at: float
    ) -> int:
        row = {"outbox": outbox, "name": name, "total": total, "created_at": created_at}
        made = insert(tables.rollout).returning(tables.rollout.c.id)
        limits = {"rate": rate, "abort_share": abort_share}
        with explain_missing_tables():
            return int(self._connection.execute(made, row | limits).scalar_one())

    def cancel(
        self, outbox: str, *, command: int = 0, device: str = "", supersede_key: str | None = None
    ) -> int:
        # Only a mark, so that no dispatcher waits for this transaction.
        c = tables.command.c
        found = select(c.device, c.shard, func.max(c.id) + 1, func.count()).where(
            c.outbox == outbox, text("state = 'scheduled'")
        )
        if command:
            found = found.where(c.id == command)
        if device:
            found = found.where(c.device == device)
        if supersede_key is not None:
            found = found.where(c.supersede_key == supersede_key)
        with explain_missing_tables():
            rows = self._connection.execute(found.group_by(c.device, c.shard)).all()
            marks = [
                {
                    "outbox": outbox,
                    "shard": shard,
                    "device": of_device,
                    "supersede_key": supersede_key,
                    "below": below,
                    "command": command,
                }
                for of_device, shard, below, _ in rows
            ]
            if marks:
                # Returning their ids would take the right to read the table.
                self._connection.execute(insert(tables.cancel).inline(), marks)
                ring_at_commit(self._connection, outbox)
        return sum(row[3] for row in rows)

    def pause(self, outbox: str, device: str, at: float) -> None:
        row = {"outbox": outbox, "device": device, "paused_at": at}
        with explain_missing_tables():
            self._connection.execute(self._dialect.insert(tables.pause).on_conflict_do_nothing(), row)
            ring_at_commit(self._connection, outbox)

    def resume(self, outbox: str, device: str) -> bool:
        p, h = tables.pause.c, tables.head.c
        columns = ("outbox", "shard", "device", "lane")
        heads = select(*(h[name] for name in columns)).where(h.outbox == outbox, h.device == device)
        with explain_missing_tables():
            ended = self._connection.execute(
                delete(tables.pause).where(p.outbox == outbox, p.device == device)
            )
            self._connection.execute(insert(tables.arrival).from_select(columns, heads))
            ring_at_commit(self._connection, outbox)
        return ended.rowcount > 0

    def _parts(self, outbox: str) -> tuple[int, int]:
        """Return the numbers of the outbox's shards and lanes; no shards if no node has prepared it."""
        s = tables.shard.c
        shards = select(func.count()).select_from(tables.shard).where(s.outbox == outbox).scalar_subquery()
        lanes = select(tables.setting.c.lanes).where(tables.setting.c.outbox == outbox).scalar_subquery()
        counted, divided = self._connection.execute(select(shards, lanes)).one()
        return int(counted), divided or 1

    @property
    def _dialect(self) -> Any:
        return postgresql if self._connection.dialect.name == "postgresql" else sqlite

    def _insert(self, commands: Sequence[NewCommand]) -> list[int]:
        made = insert(tables.command).returning(tables.command.c.id, sort_by_parameter_order=True)
        ids: list[int] = []
        for begin in range(0, len(commands), BATCH):
            rows = [_row(command) for command in commands[begin : begin + BATCH]]
            ids += self._connection.execute(made, rows).scalars().all()
        return ids

    def _insert_unless_there(self, new: NewCommand) -> tuple[int, bool]:
        made = self._dialect.insert(tables.command).on_conflict_do_nothing().returning(tables.command.c.id)
        c = tables.command.c
        standing = select(c.id).where(
            c.outbox == new.outbox, c.device == new.device, c.dedupe_key == new.dedupe_key
        )
        while True:
            number = self._connection.execute(made, _row(new)).scalar_one_or_none()
            if number is not None:
                return int(number), True
            number = self._connection.execute(standing).scalar_one_or_none()
            if number is not None:  # else a clean-up has dropped it just now
                return int(number), False

    def _mark(self, added: Sequence[tuple[NewCommand, int]]) -> None:
        """Mark each device with new commands, and each command that may replace others."""
        marks: dict[object, dict[str, Any]] = {}
        for new, number in added:
            place: object = (new.device, new.lane)
            row: dict[str, Any] = {"command": 0, "supersede_key": None}
            if new.supersede_key is not None:
                place, row = number, {"command": number, "supersede_key": new.supersede_key}
            where = {"outbox": new.outbox, "shard": new.shard, "device": new.device, "lane": new.lane}
            marks[place] = row | where
        if marks:
            self._connection.execute(insert(tables.arrival), list(marks.values()))


@contextmanager
def explain_missing_tables() -> Iterator[None]:
    """Raise ConfigError with a remedy if the tables are missing, or this user may not write them."""
    try:
        yield
    except DBAPIError as error:
        if not engines.lacks_tables(error):
            raise
        raise ConfigError(
            f"the outbox's tables can't be written ({str(error.orig).strip()}): {MAKE}; and let this user"
            " write them"
        ) from error


def _row(command: NewCommand) -> dict[str, Any]:
    return {name: getattr(command, name) for name in FIELDS}
