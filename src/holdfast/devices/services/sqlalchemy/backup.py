"""Dead letters in a table of SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Double,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.extend import OWNER, Access, DeadLetter, Kept

T = TypeVar("T")

PAGE = 500

metadata = MetaData()

table = Table(
    "holdfast_dead_letter",
    metadata,
    Column("app", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("at", Double, primary_key=True),
    Column("type", Text, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The table of dead letters, created if missing. ``at`` is in seconds since 1970, ``attributes`` are JSON."""


class SqlBackup:
    """The table in the database at ``url``, ``sqlite:///letters.db`` or ``postgresql://user@host/name``. A
    file is created with ``access``. Raises ConfigError for another database, or if its driver is missing."""

    def __init__(self, url: str, access: Access = OWNER) -> None:
        self._url = engines.parse(url)
        self._engine = engines.create(self._url, access)
        self._made = False

    async def add(self, letters: Sequence[Kept]) -> int:
        rows = {kept.identity: _row(kept) for kept in letters}
        return await self._in_thread(lambda db: self._add(db, list(rows.values()))) if rows else 0

    async def dead_letters(self, app: str) -> AsyncIterator[Kept]:
        after = (-1.0, "")
        while page := await self._in_thread(lambda db, after=after: _page(db, app, after)):  # type: ignore[misc]
            for row in page:
                yield _kept(row)
            after = page[-1].at, page[-1].id

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.dispose)

    def _add(self, db: Connection, rows: list[dict[str, Any]]) -> int:
        dialect: Any = postgresql if db.dialect.name == "postgresql" else sqlite
        adding = dialect.insert(table).on_conflict_do_nothing().returning(table.c.id)
        return len(db.execute(adding, rows).all())

    async def _in_thread(self, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            committing = False
            try:
                with self._engine.begin() as db:
                    if not self._made:
                        metadata.create_all(db)
                    done = work(db)
                    committing = True
                self._made = True
                return done
            except DBAPIError as error:
                raise engines.convert_error(error, self._url, committing=committing) from error

        return await asyncio.to_thread(run)


def _page(db: Connection, app: str, after: tuple[float, str]) -> Sequence[Row[Any]]:
    c = table.c
    later = tuple_(c.at, c.id) > tuple_(*after)
    return db.execute(select(table).where(c.app == app, later).order_by(c.at, c.id).limit(PAGE)).all()


def _row(kept: Kept) -> dict[str, Any]:
    letter = kept.dead_letter
    return {
        "app": kept.app,
        "id": letter.id,
        "at": letter.at,
        "type": kept.type,
        "trace_id": letter.key,
        "reason": _plain(letter.reason),
        "detail": _plain(letter.detail),
        "attributes": msgspec.json.encode(letter.attributes).decode(),
        "body": letter.body,
    }


def _kept(row: Row[Any]) -> Kept:
    letter = DeadLetter(
        id=row.id,
        body=bytes(row.body),
        reason=row.reason,
        attributes=msgspec.json.decode(row.attributes),
        detail=row.detail,
        key=row.trace_id,
        at=row.at,
    )
    return Kept(row.app, row.type, letter)


def _plain(text: str) -> str:
    """Return a text without NUL, which PostgreSQL refuses."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
