"""A destination in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from holdfast.errors import Unavailable
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sink_base import SinkBase, UploadBase, already_there

CHUNK_BYTES = 1 << 16


class MemorySink(SinkBase):
    """A connection to ``files``, which several may share."""

    can_resume = True
    can_rename = True

    def __init__(self, files: dict[str, bytearray] | None = None) -> None:
        self.files = {} if files is None else files
        self.closed = False

    async def stat(self, name: str) -> RemoteFile | None:
        self.check_open()
        held = self.files.get(check(name))
        return None if held is None else _remote_file(name, held)

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> MemoryUpload:
        self.check_open()
        if check(name) in self.files and not replace:
            raise already_there(name)
        self.files[check(temporary)] = bytearray()
        return MemoryUpload(self, name, temporary, replace=replace)

    async def resume(
        self, name: str, temporary: str, token: str, *, replace: bool = True
    ) -> MemoryUpload | None:
        self.check_open()
        held = self.files.pop(check(token), None)
        if held is None:
            return None
        self.files[check(temporary)] = held
        return MemoryUpload(self, check(name), temporary, replace=replace)

    async def discard(self, name: str, token: str) -> None:
        self.check_open()
        self.files.pop(check(token), None)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        self.check_open()
        if check(name) not in self.files:
            raise FileNotFoundError(name)
        held = bytes(self.files[name])
        for start in range(0, len(held), CHUNK_BYTES):
            yield held[start : start + CHUNK_BYTES]

    async def close(self) -> None:
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise Unavailable("the connection is closed")


class MemoryUpload(UploadBase):
    """The upload of one file."""

    def __init__(self, sink: MemorySink, name: str, temporary: str, *, replace: bool) -> None:
        self._sink = sink
        self._data = sink.files[temporary]
        super().__init__(name, temporary, replace=replace, held=len(self._data))

    async def write(self, data: Data) -> None:
        self._sink.check_open()
        self._data[self.sent_bytes : self.sent_bytes + len(data)] = data
        self.sent_bytes += len(data)

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        self._sink.check_open()
        files = self._sink.files
        if files.get(self.token) is not self._data:
            raise self.taken_over()
        del self._data[self.sent_bytes :]
        self.check_content(hashlib.sha256(self._data).hexdigest(), sha256)
        if self.name in files and self.token != self.name and not self.replace:
            raise already_there(self.name)
        files[self.name] = files.pop(self.token)
        return _remote_file(self.name, self._data)

    async def abort(self) -> None:
        if self._sink.files.get(self.token) is self._data:
            del self._sink.files[self.token]

    async def leave(self) -> None:
        pass


def _remote_file(name: str, held: bytearray) -> RemoteFile:
    return RemoteFile(name, len(held), hashlib.sha256(held).hexdigest())
