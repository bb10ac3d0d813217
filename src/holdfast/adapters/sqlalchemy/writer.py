"""Adds commands inside somebody's transaction. It only ever inserts: it waits for no dispatcher's locks, and
no dispatcher waits for its."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from holdfast.adapters.sqlalchemy import tables
from holdfast.adapters.sqlalchemy.bell import ring_at_commit
from holdfast.ports.outbox import NewCommand

FIELDS = NewCommand.__struct_fields__
BATCH = 1_000
"""Rows of one statement."""


class SqlWriter:
    """Writes with a SQLAlchemy session or connection, in its transaction."""

    def __init__(self, db: Session | Connection) -> None:
        self._connection = db.connection() if isinstance(db, Session) else db
        if not self._connection.in_transaction():
            self._connection.begin()

    def add(self, commands: Sequence[NewCommand]) -> list[int]:
        if not commands:
            return []
        added: dict[int, int] = {}
        plain = [(place, c) for place, c in enumerate(commands) if c.dedupe_key is None]
        for begin in range(0, len(plain), BATCH):
            batch = plain[begin : begin + BATCH]
            added |= zip([place for place, _ in batch], self._insert([c for _, c in batch]), strict=True)
        fresh = [(c, added[place]) for place, c in plain]
        for place, new in enumerate(commands):
            if new.dedupe_key is not None:
                added[place], is_new = self._insert_unless_there(new)
                if is_new:
                    fresh.append((new, added[place]))
        self._mark(fresh)
        ring_at_commit(self._connection, commands[0].outbox)
        return [added[place] for place in range(len(commands))]

    def add_job(self, outbox: str, name: str, total: int, abort_share: float, created_at: float) -> int:
        row = {"outbox": outbox, "name": name, "total": total, "created_at": created_at}
        made = insert(tables.job).returning(tables.job.c.id)
        return int(self._connection.execute(made, row | {"abort_share": abort_share}).scalar_one())

    def _insert(self, commands: Sequence[NewCommand]) -> Sequence[int]:
        made = insert(tables.command).returning(tables.command.c.id, sort_by_parameter_order=True)
        return self._connection.execute(made, [_row(command) for command in commands]).scalars().all()

    def _insert_unless_there(self, new: NewCommand) -> tuple[int, bool]:
        dialect: Any = postgresql if self._connection.dialect.name == "postgresql" else sqlite
        made = dialect.insert(tables.command).on_conflict_do_nothing().returning(tables.command.c.id)
        number = self._connection.execute(made, _row(new)).scalar_one_or_none()
        if number is not None:
            return int(number), True
        c = tables.command.c
        standing = select(c.id).where(
            c.outbox == new.outbox, c.device == new.device, c.dedupe_key == new.dedupe_key
        )
        return int(self._connection.execute(standing).scalar_one()), False

    def _mark(self, added: Sequence[tuple[NewCommand, int]]) -> None:
        """Leave word for the dispatcher: of each device, and of each command that may replace others."""
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


def _row(command: NewCommand) -> dict[str, Any]:
    return {name: getattr(command, name) for name in FIELDS}
