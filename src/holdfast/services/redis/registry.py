"""The registry in Redis: documents in one slot, whose changes are published on a channel."""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, check_document
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.feed import ChannelFeed

PUT, DROP, LIST = (
    Script.load(name, "registry") for name in ("document_put", "document_drop", "document_list")
)


class RedisRegistry:
    """The documents in one namespace of a Redis. ``connection`` is closed with it."""

    def __init__(self, connection: RedisConnection, clock: Clock, *, max_bytes: int = 2**20) -> None:
        self.max_bytes = max_bytes
        self._connection = connection
        self._clock = clock
        self._root = f"{{{connection.address.namespace}}}:registry"
        self._feed = ChannelFeed(connection, self._root, f"{self._root}:changes")
        self._closed = False

    async def get(self, name: str) -> Document | None:
        key = f"{self._root}:document:{name}"
        version, body = await self._connection.command(key, "HMGET", key, "version", "body")
        return Document(name, int(version), body) if version else None

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        check_document(name, body, self.max_bytes)
        version = await self._connection.script(PUT, (self._root,), name, expect, body)
        return Document(name, int(version), body) if version else None

    async def drop(self, name: str, expect: int) -> bool:
        return bool(await self._connection.script(DROP, (self._root,), name, expect))

    async def list(self, prefix: str) -> list[Document]:
        found = await self._connection.script(LIST, (self._root,), prefix)
        return [
            Document(name.decode(errors="replace"), int(version), body)
            for name, version, body in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]

    async def changed(self, name: str, version: int, wait_s: float) -> Document | None:
        deadline, found = self._clock.monotonic() + wait_s, None
        try:
            while True:
                await self._feed.begin()
                heard = self._feed.last
                found = await self.get(name)
                if (found.version if found else 0) != version or not await self._heard(name, heard, deadline):
                    return found
        except Unavailable:
            if not self._closed:
                raise
            return found

    async def close(self) -> None:
        self._closed = True
        await self._feed.close()
        await self._connection.close()

    async def _heard(self, name: str, heard: int, deadline: float) -> bool:
        """Wait, until the deadline at most, for a change of the document after the message ``heard``. Return
        True if it may have changed."""
        while True:
            rung = self._feed.rung
            messages = self._feed.after(heard)
            if messages is None or name.encode() in messages:
                return True
            heard = self._feed.last
            remaining_s = deadline - self._clock.monotonic()
            if self._closed or remaining_s <= 0:
                return False
            await self._clock.wait(rung, remaining_s)
