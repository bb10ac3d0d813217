"""The registry in SQLite."""

from __future__ import annotations

from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, check_document
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.system.doorbell import SAFETY_S

SELECT = "SELECT name, version, body FROM documents WHERE name = ?"
LIST = "SELECT name, version, body FROM documents WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name"


class SqliteRegistry:
    """The documents in a database."""

    def __init__(self, database: Database, clock: Clock, *, max_bytes: int = 2**20) -> None:
        self.max_bytes = max_bytes
        self._database = database
        self._clock = clock
        self._closings = 0

    async def get(self, name: str) -> Document | None:
        rows = await self._database.rows(SELECT, name, confirmed=True)
        return Document(*rows[0]) if rows else None

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        check_document(name, body, self.max_bytes)

        def put(transaction: Transaction) -> Document | None:
            if _version(transaction, name) != expect:
                return None
            transaction.execute("UPDATE document_versions SET last = last + 1")
            [version] = transaction.execute("SELECT last FROM document_versions").fetchone()
            transaction.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (name, version, body))
            transaction.ring(_topic(name))
            return Document(name, version, body)

        return await self._database.write(put)

    async def drop(self, name: str, expect: int) -> bool:
        def drop(transaction: Transaction) -> bool:
            query = "DELETE FROM documents WHERE name = ? AND version = ?"
            dropped = transaction.execute(query, (name, expect)).rowcount > 0
            if dropped:
                transaction.ring(_topic(name))
            return dropped

        return await self._database.write(drop)

    async def list(self, prefix: str) -> list[Document]:
        return [Document(*row) for row in await self._database.rows(LIST, prefix, confirmed=True)]

    async def changed(self, name: str, version: int, wait_s: float) -> Document | None:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        with self._database.doorbell.listen(_topic(name)) as rung:
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


def _version(transaction: Transaction, name: str) -> int:
    row = transaction.execute("SELECT version FROM documents WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row else 0


def _topic(name: str) -> str:
    return f"document:{name}"
