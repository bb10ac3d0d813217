"""A destination on an SFTP server.

SFTP answers every write. Up to 16 writes are in flight, as each costs a round trip. A server may refuse a
write and accept later ones, which leaves a hole that the file's size doesn't show.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NoReturn, cast

import asyncssh

from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, OutcomeUnknown
from holdfast.reports.deliver_plan import marks_every
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sink_base import NO_RENAMING, SinkBase, UploadBase, sha256_of
from holdfast.reports.sinks.sftp.session import LOST, Login, SftpSession
from holdfast.reports.sinks.sftp.url import SftpUrl

AT_ONCE = 16
BLOCK_BYTES_MAX = 1 << 18
READ_BYTES = 1 << 20
ABORT_S = 5.0
MISSING = (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath, asyncssh.SFTPNotADirectory)


class SftpSink(SinkBase):
    """A folder on an SFTP server. Links out of the folder are refused."""

    can_resume = True
    can_rename = True

    def __init__(self, url: SftpUrl, login: Login) -> None:
        self.session = SftpSession(url, login)
        self._root = url.folder

    async def stat(self, name: str) -> RemoteFile | None:
        check(name)
        client = await self.session.client()
        with self.session.port_errors(f"can't look for {name!r}"):
            try:
                found = await client.stat(self.path(name))
            except MISSING:
                return None
        if found.type != asyncssh.FILEXFER_TYPE_REGULAR:
            return None
        return RemoteFile(name, found.size or 0)

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> SftpUpload:
        check(name), check(temporary)
        if not replace:
            await self.check_absent(name)
        client = await self.session.client()
        mode = asyncssh.FXF_TRUNC if temporary == name and replace else asyncssh.FXF_EXCL
        flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | mode
        with self.session.port_errors(f"can't write {name!r}"):
            await self._make_folders(client, name)
            file = await client.open(self.path(temporary), flags, encoding=None, block_size=0)
        return SftpUpload(self, client, file, name, temporary, replace=replace)

    async def resume(
        self, name: str, temporary: str, token: str, *, replace: bool = True
    ) -> SftpUpload | None:
        check(name), check(temporary), check(token)
        client = await self.session.client()
        with self.session.port_errors(f"can't go on with {name!r}"):
            try:
                await _rename_over(client, self.path(token), self.path(temporary))
                file = await client.open(
                    self.path(temporary), asyncssh.FXF_WRITE, encoding=None, block_size=0
                )
            except MISSING:
                return None
            held = (await file.stat()).size or 0
        return SftpUpload(self, client, file, name, temporary, replace=replace, held=held)

    async def discard(self, name: str, token: str) -> None:
        check(token)
        client = await self.session.client()
        with self.session.port_errors(f"can't remove {token!r}"), contextlib.suppress(*MISSING):
            await client.remove(self.path(token))

    async def read(self, name: str) -> AsyncIterator[bytes]:
        check(name)
        client = await self.session.client()
        if await self.stat(name) is None:
            raise FileNotFoundError(name)
        with self.session.port_errors(f"can't read {name!r}"):
            async for chunk in _chunks(client, self.path(name)):
                yield chunk

    async def close(self) -> None:
        await self.session.close()

    def path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    async def _make_folders(self, client: asyncssh.SFTPClient, name: str) -> None:
        """Make the folders of a file. Raises InvalidMessage if a link leads out of the destination's
        folder."""
        folder, _, _ = name.rpartition("/")
        if not folder:
            return
        try:
            real = await client.realpath(self.path(folder))
            if not await client.isdir(real):
                raise asyncssh.SFTPNoSuchFile(folder)
        except MISSING:
            await client.makedirs(self.path(folder), exist_ok=True)
            real = await client.realpath(self.path(folder))
        root = await client.realpath(self._root or ".")
        if real != root and not real.startswith(root.rstrip("/") + "/"):
            raise InvalidMessage(f"{name!r} leads by a link out of {self.session.url}", field="name")


class SftpUpload(UploadBase):
    """The upload of one file."""

    def __init__(
        self,
        sink: SftpSink,
        client: asyncssh.SFTPClient,
        file: asyncssh.SFTPClientFile,
        name: str,
        temporary: str,
        *,
        replace: bool,
        held: int = 0,
    ) -> None:
        super().__init__(name, temporary, replace=replace, held=held)
        self._sink = sink
        self._client = client
        self._file = file
        self._block = min(client.limits.max_write_len, BLOCK_BYTES_MAX)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._writes: set[asyncio.Task[int]] = set()
        self._error: BaseException | None = None
        self._over = False

    async def write(self, data: Data) -> None:
        view = memoryview(data)
        for start in range(0, len(view), self._block):
            await self._room.acquire()
            if self._error is not None:
                self._room.release()
                self._fail(self._error)
            block = bytes(view[start : start + self._block])
            task = asyncio.create_task(self._file.write(block, self.sent_bytes))
            self._writes.add(task)
            task.add_done_callback(self._written)
            self.sent_bytes += len(block)
        if self.sent_bytes % marks_every(self.grain) == 0:  # a mark says that all earlier bytes are there
            await self._all_accepted()

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        await self._all_accepted()
        with self._sink.session.port_errors(f"can't write {self.name!r}"):
            with contextlib.suppress(asyncssh.SFTPOpUnsupported):
                await self._file.fsync()
            size = (await self._file.stat()).size
            await self._file.close()
            self.check_size(size)
            if read_back:
                chunks = _chunks(self._client, self._sink.path(self.token))
                self.check_content(await sha256_of(chunks), sha256)
        if self.token != self.name:
            if not self.replace:
                await self._sink.check_absent(self.name)
            await self._rename()
        self._over = True
        return RemoteFile(self.name, self.sent_bytes)

    async def abort(self) -> None:
        if self._over:
            return
        self._over = True
        if self._writes:
            # The writes in flight would have to arrive first, which takes long on a slow line.
            self._sink.session.drop()
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self._close()
                await self._sink.discard(self.name, self.token)

    async def leave(self) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self._all_answered()
                await self._close()

    def _written(self, task: asyncio.Task[int]) -> None:
        self._writes.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            self._error = self._error or task.exception()

    async def _all_answered(self) -> None:
        if self._writes:
            await asyncio.wait(self._writes)

    async def _all_accepted(self) -> None:
        """Wait for all writes. Raises the error of a refused one."""
        await self._all_answered()
        if self._error is not None:
            self._fail(self._error)

    async def _close(self) -> None:
        await self._all_answered()
        with contextlib.suppress(asyncssh.Error, OSError):
            await self._file.close()

    def _fail(self, error: BaseException) -> NoReturn:
        with self._sink.session.port_errors(f"can't write {self.name!r}"):
            raise error
        raise AssertionError("unreachable")

    async def _rename(self) -> None:
        target = self._sink.path(self.name)
        with self._sink.session.port_errors(f"can't put {self.name!r} in its place"):
            try:
                if self.replace:
                    await _rename_over(self._client, self._sink.path(self.token), target)
                else:
                    await self._client.rename(self._sink.path(self.token), target)
            except MISSING:
                raise self.taken_over() from None
            except asyncssh.SFTPFailure:
                if not self.replace:
                    await self._sink.check_absent(self.name)
                raise
            except (asyncssh.SFTPPermissionDenied, asyncssh.SFTPOpUnsupported) as error:
                raise ConfigError(
                    f"can't put {self.name!r} in its place at {self._sink.session.url}: {error}:"
                    f" {NO_RENAMING}"
                ) from error
            except (*LOST, OSError) as error:
                raise OutcomeUnknown(
                    f"{self.name!r} may be in its place: the connection broke ({error})"
                ) from error


async def _rename_over(client: asyncssh.SFTPClient, source: str, target: str) -> None:
    """Rename and replace. If the server can't do that in one step, ``target`` is removed first: for a moment
    neither file is there."""
    try:
        await client.posix_rename(source, target)
    except asyncssh.SFTPOpUnsupported:
        await client.stat(source)  # raises before the target is removed
        with contextlib.suppress(*MISSING):
            await client.remove(target)
        await client.rename(source, target)


async def _chunks(client: asyncssh.SFTPClient, path: str) -> AsyncIterator[bytes]:
    async with client.open(path, "rb") as file:
        while chunk := cast("bytes", await file.read(READ_BYTES)):
            yield chunk
