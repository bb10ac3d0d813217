"""Objects in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote, unquote

from holdfast.errors import InvalidMessage

PREFIX = "memory:///"


class MemoryObjects:
    """One object store, for all nodes. URLs are ``memory:///NAME``, percent-encoded."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def get(self, url: str) -> bytes:
        if not url.startswith(PREFIX):
            raise InvalidMessage(f"{url!r} is not an object's URL here; they begin with {PREFIX}")
        name = unquote(url.removeprefix(PREFIX))
        _check_name(name)
        if name not in self.objects:
            raise FileNotFoundError(url)
        return self.objects[name]

    async def put(self, name: str, data: bytes) -> str:
        _check_name(name)
        self.objects[name] = bytes(data)
        return self.url(name)

    def url(self, name: str) -> str:
        _check_name(name)
        return PREFIX + quote(name)

    async def urls(self, under: str) -> AsyncIterator[str]:
        _check_name(under)
        for name in [name for name in self.objects if name.startswith(f"{under}/")]:
            yield PREFIX + quote(name)

    async def close(self) -> None:
        pass


def _check_name(name: str) -> None:
    if any(segment in ("", ".", "..") or "\0" in segment for segment in name.split("/")):
        raise InvalidMessage(f"object name {name!r} has an empty segment, '.', '..' or a NUL")
