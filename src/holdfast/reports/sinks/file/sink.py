"""A destination that is a folder: on this machine, or on a share that is mounted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.errors import ConfigError, InvalidMessage, NoRoom, Unavailable
from holdfast.extend import OWNER, Access, make_folder, sync_names
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.rules.remote_name import check
from holdfast.reports.sink_base import UploadBase, already_there

P = ParamSpec("P")
T = TypeVar("T")

READ_BYTES = 1 << 20
NAME_TAKEN = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR})
FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FileSink:
    """A folder. It must exist: a new one would hide that a share isn't mounted. Links out of it are refused.

    ``durable``: a file and its name are on the disk before its commit returns. ``access``: the modes of new
    files and folders.
    """

    can_resume = True
    can_rename = True

    def __init__(self, root: str | Path, *, durable: bool = True, access: Access = OWNER) -> None:
        self.root = Path(root).resolve()
        self.durable = durable
        self._access = access

    async def stat(self, name: str) -> RemoteFile | None:
        return await self.run(name, self._stat, name)

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> FileUpload:
        def begin() -> FileUpload:
            path, part = self._path(name, make=True), self._path(temporary)
            if not replace and path.exists():
                raise already_there(name)
            flags = os.O_TRUNC if part == path and replace else os.O_EXCL
            fd = os.open(part, os.O_RDWR | os.O_CREAT | flags | os.O_CLOEXEC, self._access.file)
            return FileUpload(self, name, temporary, path, fd, replace=replace)

        return await self.run(name, begin)

    async def resume(
        self, name: str, temporary: str, token: str, *, replace: bool = True
    ) -> FileUpload | None:
        def take_over() -> FileUpload | None:
            path, part = self._path(name), self._path(temporary)
            try:
                self._path(token).rename(part)
            except FileNotFoundError:
                return None
            fd = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            return FileUpload(self, name, temporary, path, fd, replace=replace)

        return await self.run(name, take_over)

    async def discard(self, name: str, token: str) -> None:
        await self.run(name, lambda: self._path(token).unlink(missing_ok=True))

    async def read(self, name: str) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(self._path(name).open, "rb") as file:
            while chunk := await self.run(name, file.read, READ_BYTES):
                yield chunk

    async def close(self) -> None:
        pass

    async def run(self, name: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread. Raises the port's errors for the system's errors."""
        try:
            return await asyncio.to_thread(call, *args, **kwargs)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _port_error(f"{name!r} below {self.root}: {error.strerror or error}", error) from error

    def _path(self, name: str, *, make: bool = False) -> Path:
        if not self.root.is_dir():
            raise ConfigError(
                f"the destination's folder {self.root} doesn't exist: make it, or mount its share"
            )
        path = self.root / check(name)
        # Checked before folders are made: the nearest existing folder shows where its links lead.
        nearest = next(folder for folder in path.parents if folder.exists())
        if not nearest.resolve().is_relative_to(self.root):
            raise InvalidMessage(f"{name!r} leads by a link out of the folder {self.root}", field="name")
        if make:
            make_folder(path.parent, self._access, durable=self.durable)
        return path

    def _stat(self, name: str) -> RemoteFile | None:
        try:
            found = self._path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return RemoteFile(name, found.st_size) if stat.S_ISREG(found.st_mode) else None


class FileUpload(UploadBase):
    """The upload of one file."""

    def __init__(
        self, sink: FileSink, name: str, temporary: str, path: Path, fd: int, *, replace: bool
    ) -> None:
        super().__init__(name, temporary, replace=replace, held=os.fstat(fd).st_size)
        self._sink = sink
        self._path = path
        self._part = sink.root / temporary
        self._fd = fd

    async def write(self, data: Data) -> None:
        def write() -> None:
            rest = memoryview(data)
            while rest:
                done = os.pwrite(self._fd, rest, self.sent_bytes)
                self.sent_bytes += done
                rest = rest[done:]

        await self._sink.run(self.name, write)

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        return await self._sink.run(self.name, self._commit, sha256 if read_back else "")

    async def abort(self) -> None:
        def remove() -> None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._fd), self._part.stat()):
                    self._part.unlink()
            self._close()

        if self._fd >= 0:
            await asyncio.to_thread(remove)

    async def leave(self) -> None:
        await asyncio.to_thread(self._close)

    def _commit(self, sha256: str) -> RemoteFile:
        if self._sink.durable:
            os.fsync(self._fd)
        self.check_size(os.fstat(self._fd).st_size)
        if sha256:
            self.check_content(_digest(self._fd), sha256)
        try:
            if self._part == self._path:
                pass
            elif self.replace:
                self._part.rename(self._path)
            else:
                os.link(self._part, self._path)
                self._part.unlink()
        except FileNotFoundError:
            raise self.taken_over() from None
        except FileExistsError:
            raise already_there(self.name) from None
        if self._sink.durable:
            sync_names(self._path.parent)
        self._close()
        return RemoteFile(self.name, self.sent_bytes)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _port_error(text: str, error: OSError) -> Exception:
    if error.errno in NOT_ALLOWED:
        return ConfigError(f"{text}: let this user write there")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidMessage(text, field="name")
    if error.errno in NAME_TAKEN:
        return ConfigError(f"{text}: something else has that name, or its folder's")
    return NoRoom(text) if error.errno in FULL else Unavailable(text)


def _digest(fd: int) -> str:
    digest, at = hashlib.sha256(), 0
    while chunk := os.pread(fd, READ_BYTES, at):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()
