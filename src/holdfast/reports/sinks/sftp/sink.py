"""A destination on an SFTP server.

SFTP answers every write: sixteen are kept under way, or each would cost a round trip. A server may refuse one
and take those after it, which leaves a hole that a file's size doesn't tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import NoReturn, cast

import asyncssh

from holdfast.errors import AlreadyThere, ConfigError, Damaged, HoldfastError, InvalidMessage, OutcomeUnknown
from holdfast.reports.deliver_plan import marks_every
from holdfast.reports.ports.sink import IN_PLACE, Data, RemoteFile
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sinks.sftp.session import LOST, Login, SftpSession
from holdfast.reports.sinks.sftp.url import SftpUrl

AT_ONCE = 16
BLOCK_BYTES_MAX = 1 << 18
READ_BYTES = 1 << 20
ABORT_S = 5.0
MISSING = (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath, asyncssh.SFTPNotADirectory)


class SftpSink:
    """A folder on an SFTP server. Links on the server that lead out of the folder are not followed."""

    can_resume = True
    can_rename = True
    has_checksum = False
    keeps_first = False

    def __init__(self, url: SftpUrl, login: Login) -> None:
        self.session = SftpSession(url, login)
        self._root = url.folder

    async def stat(self, name: str) -> RemoteFile | None:
        check(name)
        client = await self.session.client()
        with self.session.told(f"can't look for {name!r}"):
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
            await self.must_not_be_there(name)
        client = await self.session.client()
        taken = asyncssh.FXF_TRUNC if temporary == name and replace else asyncssh.FXF_EXCL
        flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | taken
        with self.session.told(f"can't write {name!r}"):
            await self._must_be_inside(client, name)
            file = await client.open(self.path(temporary), flags, encoding=None, block_size=0)
        return SftpUpload(self, client, file, name, temporary, replace=replace)

    async def resume(
        self, name: str, temporary: str, token: str, *, replace: bool = True
    ) -> SftpUpload | None:
        check(name), check(temporary), check(token)
        client = await self.session.client()
        with self.session.told(f"can't go on with {name!r}"):
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
        with self.session.told(f"can't remove {token!r}"), contextlib.suppress(*MISSING):
            await client.remove(self.path(token))

    async def read(self, name: str) -> AsyncIterator[bytes]:
        check(name)
        client = await self.session.client()
        if await self.stat(name) is None:
            raise FileNotFoundError(name)
        with self.session.told(f"can't read {name!r}"):
            async for chunk in _chunks(client, self.path(name)):
                yield chunk

    async def close(self) -> None:
        await self.session.close()

    def path(self, name: str) -> str:
        """Return the path of the file of that name on the server."""
        return f"{self._root}/{name}" if self._root else name

    async def must_not_be_there(self, name: str) -> None:
        """Raises AlreadyThere if a file of that name is."""
        if await self.stat(name) is not None:
            raise AlreadyThere(f"{name!r} is at {self.session.url} already, and is not to be replaced")

    async def _must_be_inside(self, client: asyncssh.SFTPClient, name: str) -> None:
        """Make the folders of a name. Raises InvalidMessage if they lead out of the destination's."""
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


class SftpUpload:
    """One file on its way."""

    grain = 1

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
        self.token = temporary
        self.held = held
        self._sink = sink
        self._client = client
        self._file = file
        self._name = name
        self._replace = replace
        self._at = 0
        self._block = min(client.limits.max_write_len, BLOCK_BYTES_MAX)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._writes: set[asyncio.Task[int]] = set()
        self._error: BaseException | None = None
        self._over = False

    async def skip(self, size: int) -> None:
        self._at = size

    async def write(self, data: Data) -> None:
        view = memoryview(data)
        for start in range(0, len(view), self._block):
            await self._room.acquire()
            if self._error is not None:
                self._room.release()
                self._fail(self._error)
            block = bytes(view[start : start + self._block])
            task = asyncio.create_task(self._file.write(block, self._at))
            self._writes.add(task)
            task.add_done_callback(self._written)
            self._at += len(block)
        if self._at % marks_every(self.grain) == 0:  # who goes on from a mark counts on all before it
            await self._all_taken()

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        await self._all_taken()
        with self._sink.session.told(f"can't write {self._name!r}"):
            with contextlib.suppress(asyncssh.SFTPOpUnsupported):
                await self._file.fsync()
            size = (await self._file.stat()).size
            await self._file.close()
            if size != self._at:
                raise Damaged(f"the server has {size} bytes of {self._name!r}, and {self._at} were sent")
            if read_back and await self._digest() != sha256:
                raise Damaged(f"what the server has of {self._name!r} is not what was sent")
        if self.token != self._name:
            if not self._replace:
                await self._sink.must_not_be_there(self._name)
            await self._rename()
        self._over = True
        return RemoteFile(self._name, self._at)

    async def abort(self) -> None:
        if self._over:
            return
        self._over = True
        if self._writes:
            # What is on its way would have to arrive first, which on a slow line takes long.
            self._sink.session.drop()
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self._close()
                await self._sink.discard(self._name, self.token)

    async def leave(self) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self._all_written()
                await self._close()

    def _written(self, task: asyncio.Task[int]) -> None:
        self._writes.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            self._error = self._error or task.exception()

    async def _all_written(self) -> None:
        if self._writes:
            await asyncio.wait(self._writes)

    async def _all_taken(self) -> None:
        """Wait for all that was written, and raise if the server refused some of it."""
        await self._all_written()
        if self._error is not None:
            self._fail(self._error)

    async def _close(self) -> None:
        await self._all_written()
        with contextlib.suppress(asyncssh.Error, OSError):
            await self._file.close()

    def _fail(self, error: BaseException) -> NoReturn:
        with self._sink.session.told(f"can't write {self._name!r}"):
            raise error
        raise AssertionError("unreachable")

    async def _digest(self) -> str:
        digest = hashlib.sha256()
        async for chunk in _chunks(self._client, self._sink.path(self.token)):
            digest.update(chunk)
        return digest.hexdigest()

    async def _rename(self) -> None:
        target = self._sink.path(self._name)
        with self._sink.session.told(f"can't put {self._name!r} in its place"):
            try:
                if self._replace:
                    await _rename_over(self._client, self._sink.path(self.token), target)
                else:
                    await self._client.rename(self._sink.path(self.token), target)
            except MISSING:
                raise Damaged(f"what was sent of {self._name!r} is gone: another took it over") from None
            except asyncssh.SFTPFailure:
                if not self._replace:
                    await self._sink.must_not_be_there(self._name)
                raise
            except (asyncssh.SFTPPermissionDenied, asyncssh.SFTPOpUnsupported) as error:
                raise ConfigError(
                    f"can't put {self._name!r} in its place at {self._sink.session.url}: {error}: let this"
                    f" user rename; {IN_PLACE}"
                ) from error
            except (*LOST, OSError) as error:
                raise OutcomeUnknown(
                    f"{self._name!r} may be in its place: the connection broke ({error})"
                ) from error


async def _rename_over(client: asyncssh.SFTPClient, source: str, target: str) -> None:
    """Rename, in place of what is there. Where the server can't do that at once, ``target`` is removed first:
    for a moment there is none."""
    try:
        await client.posix_rename(source, target)
    except asyncssh.SFTPOpUnsupported:
        await client.stat(source)  # nothing is removed for nothing
        with contextlib.suppress(*MISSING):
            await client.remove(target)
        await client.rename(source, target)


async def _chunks(client: asyncssh.SFTPClient, path: str) -> AsyncIterator[bytes]:
    async with client.open(path, "rb") as file:
        while chunk := cast("bytes", await file.read(READ_BYTES)):
            yield chunk
