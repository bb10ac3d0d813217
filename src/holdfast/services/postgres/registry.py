"""The registry in PostgreSQL."""

from __future__ import annotations

from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, check_document
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

GET = "SELECT name, version, body FROM {schema}.documents WHERE name = %s"

LIST = "SELECT name, version, body FROM {schema}.documents WHERE starts_with(name, %s) ORDER BY name"

# Locks the one row, so that writers come one after the other. A server that forgot its last writes gives no
# version again, because its clock has gone on.
NEXT = """
UPDATE {schema}.document_versions
SET last = greatest(last + 1, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint) RETURNING last"""

VERSION = "SELECT version FROM {schema}.documents WHERE name = %s"

PUT = """
INSERT INTO {schema}.documents (name, version, body) VALUES (%s, %s, %b)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, body = excluded.body"""

DROP = "DELETE FROM {schema}.documents WHERE name = %s AND version = %s RETURNING 1"


class PostgresRegistry:
    """The documents in a database."""

    def __init__(self, database: PostgresDatabase, clock: Clock, *, max_bytes: int = 2**20) -> None:
        self.max_bytes = max_bytes
        self._database = database
        self._lane = database.lane("queue")
        self._clock = clock
        self._closings = 0
        self._get, self._list, self._next = map(database.sql, (GET, LIST, NEXT))
        self._version, self._put, self._drop = map(database.sql, (VERSION, PUT, DROP))

    async def get(self, name: str) -> Document | None:
        rows = await self._lane.rows(self._get, (name,))
        return Document(*rows[0]) if rows else None

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        check_document(name, body, self.max_bytes)

        async def put(connection: Connection) -> Document | None:
            [version] = await (await connection.execute(self._next)).fetchone() or (0,)
            row = await (await connection.execute(self._version, (name,))).fetchone()
            if (row[0] if row else 0) != expect:
                return None
            await connection.execute(self._put, (name, version, body))
            return Document(name, int(version), body)

        document = await self._lane.write(put)
        if document is not None:
            self._database.bells.ring([_topic(name)])
        return document

    async def drop(self, name: str, expect: int) -> bool:
        async def drop(connection: Connection) -> bool:
            dropped = await connection.execute(self._drop, (name, expect))
            return await dropped.fetchone() is not None

        dropped = await self._lane.write(drop)
        if dropped:
            self._database.bells.ring([_topic(name)])
        return dropped

    async def list(self, prefix: str) -> list[Document]:
        return [Document(*row) for row in await self._lane.rows(self._list, (prefix,))]

    async def changed(self, name: str, version: int, wait_s: float) -> Document | None:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        with self._database.bells.listen(_topic(name)) as rung:
            while True:
                rung.clear()
                found = await self.get(name)
                remaining_s = deadline - self._clock.monotonic()
                changed = (found.version if found else 0) != version
                if changed or remaining_s <= 0 or self._closings != closings:
                    return found
                await self._clock.wait(rung, min(remaining_s, SAFETY_S))

    async def close(self) -> None:
        self._closings += 1
        self._database.bells.wake_all()


def _topic(name: str) -> str:
    return f"document:{name}"
