"""The registry in memory."""

from __future__ import annotations

from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, check_document
from holdfast.system.bell import Bell


class MemoryRegistry:
    """One registry, for all nodes and producers."""

    def __init__(self, clock: Clock, *, max_bytes: int = 2**20) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._bell = Bell(clock)
        self._closings = 0
        self._versions = 0
        self._documents: dict[str, Document] = {}

    async def get(self, name: str) -> Document | None:
        return self._documents.get(name)

    async def put(self, name: str, body: bytes, expect: int) -> Document | None:
        check_document(name, body, self.max_bytes)
        if self._version(name) != expect:
            return None
        self._versions += 1
        document = self._documents[name] = Document(name, self._versions, body)
        self._bell.ring()
        return document

    async def drop(self, name: str, expect: int) -> bool:
        if name not in self._documents or self._version(name) != expect:
            return False
        del self._documents[name]
        self._bell.ring()
        return True

    async def list(self, prefix: str) -> list[Document]:
        return [document for name, document in sorted(self._documents.items()) if name.startswith(prefix)]

    async def changed(self, name: str, version: int, wait_s: float) -> Document | None:
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        while True:
            remaining_s = deadline - self._clock.monotonic()
            if self._version(name) != version or remaining_s <= 0 or self._closings != closings:
                return self._documents.get(name)
            await self._bell.wait(remaining_s)

    async def close(self) -> None:
        self._closings += 1
        self._bell.ring()

    def _version(self, name: str) -> int:
        return self._documents[name].version if name in self._documents else 0
