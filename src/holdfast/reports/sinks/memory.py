"""A destination in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from holdfast.errors import AlreadyThere, Damaged, Unavailable
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.rules.remote_name import check

CHUNK_BYTES = 1 << 16


class MemorySink:
    """A connection to ``files``, which several may share."""

    can_resume = True
    can_rename = True
    has_checksum = True
    keeps_first = True

    def __init__(self, files: dict[str, bytearray] | None = None) -> None:
        self.files = {} if files is None else files
        self.closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        self._must_be_open()
        held = self.files.get(check(name))
        return None if held is None else _described(name, held)

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> MemoryUpload:
        self._must_be_open()
        self._must_not_be_there(check(name), replace)
        self.files[check(temporary)] = bytearray()
        return MemoryUpload(self, name, temporary, replace, held=0)

    async def resume(
        self, name: str, temporary: str, token: str, *, replace: bool = True
    ) -> MemoryUpload | None:
        self._must_be_open()
        held = self.files.pop(check(token), None)
        if held is None:
            return None
        self.files[check(temporary)] = held
        return MemoryUpload(self, check(name), temporary, replace, held=len(held))

    async def discard(self, name: str, token: str) -> None:
        self._must_be_open()
        self.files.pop(check(token), None)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        self._must_be_open()
        if check(name) not in self.files:
            raise FileNotFoundError(name)
        held = bytes(self.files[name])
        for start in range(0, len(held), CHUNK_BYTES):
            yield held[start : start + CHUNK_BYTES]

    async def close(self) -> None:
        self.closed = True

    def _must_be_open(self) -> None:
        if self.closed:
            raise Unavailable("the connection is closed")

    def _must_not_be_there(self, name: str, replace: bool) -> None:
        if not replace and name in self.files:
            raise AlreadyThere(f"{name!r} is there")


class MemoryUpload:
    """One file on its way."""

    grain = 1

    def __init__(self, sink: MemorySink, name: str, temporary: str, replace: bool, held: int) -> None:
        self.token = temporary
        self.held = held
        self._sink = sink
        self._name = name
        self._replace = replace
        self._data = sink.files[temporary]
        self._at = 0

    async def skip(self, size: int) -> None:
        self._at = size

    async def write(self, data: Data) -> None:
        self._sink._must_be_open()
        self._data[self._at : self._at + len(data)] = data
        self._at += len(data)

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        self._sink._must_be_open()
        if self._sink.files.get(self.token) is not self._data:
            raise Damaged(f"what was sent of {self._name!r} is gone")
        del self._data[self._at :]
        if hashlib.sha256(self._data).hexdigest() != sha256:
            raise Damaged(f"{self._name!r} is not what was sent")
        if self.token != self._name:
            self._sink._must_not_be_there(self._name, self._replace)
        self._sink.files[self._name] = self._sink.files.pop(self.token)
        return _described(self._name, self._data)

    async def abort(self) -> None:
        if self._sink.files.get(self.token) is self._data:
            del self._sink.files[self.token]

    async def leave(self) -> None:
        pass


def _described(name: str, held: bytearray) -> RemoteFile:
    return RemoteFile(name, len(held), hashlib.sha256(held).hexdigest())
