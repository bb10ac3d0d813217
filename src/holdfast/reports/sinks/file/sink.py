"""A destination that is a folder: on this machine, or on a share that is mounted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.errors import AlreadyThere, ConfigError, Damaged, InvalidMessage, NoRoom, Unavailable
from holdfast.extend import OWNER, Access, make_folder, sync_names
from holdfast.reports.ports.sink import Data, RemoteFile
from holdfast.reports.rules.remote_name import check

P = ParamSpec("P")
T = TypeVar("T")

READ_BYTES = 1 << 20
NAME_TAKEN = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR})
FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FileSink:
    """Writes below the folder ``root``, which must be there: one made on the spot would hide that a share
    isn't mounted. Links that lead out of it are not followed.

    ``durable``: a file and its name are on the disk before its commit returns. ``access``: of files and
    folders that are made.
    """

    can_resume = True
    can_rename = True
    has_checksum = False
    keeps_first = True

    def __init__(self, root: str | Path, *, durable: bool = True, access: Access = OWNER) -> None:
        self.root = Path(root).resolve()
        self._durable = durable
        self._access = access

    async def stat(self, name: str) -> RemoteFile | None:
        return await self._run(name, self._stat, name)

    async def open(self, name: str, temporary: str, *, replace: bool = True) -> FileUpload:
        def begin() -> FileUpload:
            path, part = self._path(name, make=True), self._path(temporary)
            if not replace and path.exists():
                raise _there(name)
            taken = os.O_TRUNC if part == path and replace else os.O_EXCL
            fd = os.open(part, os.O_RDWR | os.O_CREAT | taken | os.O_CLOEXEC, self._access.file)
            return FileUpload(self, name, temporary, path, fd, replace=replace)

        return await self._run(name, begin)

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

        return await self._run(name, take_over)

    async def discard(self, name: str, token: str) -> None:
        await self._run(name, lambda: self._path(token).unlink(missing_ok=True))

    async def read(self, name: str) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(self._path(name).open, "rb") as file:
            while chunk := await self._run(name, file.read, READ_BYTES):
                yield chunk

    async def close(self) -> None:
        pass

    async def _run(self, name: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it in a thread, with its errors in the words of the port."""
        with _told(name, self.root):
            return await asyncio.to_thread(call, *args, **kwargs)

    def _path(self, name: str, *, make: bool = False) -> Path:
        if not self.root.is_dir():
            raise ConfigError(
                f"the destination's folder {self.root} isn't there: make it, or mount its share"
            )
        path = self.root / check(name)
        # Made first, for what isn't there doesn't tell where its links lead; nothing is made through one.
        nearest = next(folder for folder in path.parents if folder.exists())
        if not nearest.resolve().is_relative_to(self.root):
            raise InvalidMessage(f"{name!r} leads by a link out of the folder {self.root}", field="name")
        if make:
            make_folder(path.parent, self._access, durable=self._durable)
        return path

    def _stat(self, name: str) -> RemoteFile | None:
        try:
            found = self._path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return RemoteFile(name, found.st_size) if stat.S_ISREG(found.st_mode) else None


class FileUpload:
    """One file on its way."""

    grain = 1

    def __init__(
        self, sink: FileSink, name: str, temporary: str, path: Path, fd: int, *, replace: bool
    ) -> None:
        self.token = temporary
        self.held = os.fstat(fd).st_size
        self._sink = sink
        self._name = name
        self._path = path
        self._part = sink.root / temporary
        self._fd = fd
        self._replace = replace
        self._at = 0

    async def skip(self, size: int) -> None:
        self._at = size

    async def write(self, data: Data) -> None:
        def write() -> None:
            rest = memoryview(data)
            while rest:
                done = os.pwrite(self._fd, rest, self._at)
                self._at += done
                rest = rest[done:]

        await self._sink._run(self._name, write)

    async def commit(self, sha256: str, *, read_back: bool = False) -> RemoteFile:
        return await self._sink._run(self._name, self._commit, sha256 if read_back else "")

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
        if self._sink._durable:
            os.fsync(self._fd)
        size = os.fstat(self._fd).st_size
        if size != self._at:
            raise Damaged(f"{self._name!r} has {size} bytes in its folder, and {self._at} were written")
        if sha256 and _digest(self._fd) != sha256:
            raise Damaged(f"{self._name!r} reads otherwise than it was written")
        try:
            if self._part == self._path:
                pass
            elif self._replace:
                self._part.rename(self._path)
            else:
                os.link(self._part, self._path)
                self._part.unlink()
        except FileNotFoundError:
            raise Damaged(
                f"what was written of {self._name!r} is gone: another process took it over"
            ) from None
        except FileExistsError:
            raise _there(self._name) from None
        if self._sink._durable:
            sync_names(self._path.parent)
        self._close()
        return RemoteFile(self._name, size)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@contextlib.contextmanager
def _told(name: str, root: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        text = f"{name!r} below {root}: {error.strerror or error}"
        if error.errno in NOT_ALLOWED:
            raise ConfigError(f"{text}: let this user write there") from error
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidMessage(text, field="name") from error
        if error.errno in NAME_TAKEN:
            raise ConfigError(f"{text}: something else has that name, or its folder's") from error
        if error.errno in FULL:
            raise NoRoom(text) from error
        raise Unavailable(text) from error


def _there(name: str) -> AlreadyThere:
    return AlreadyThere(f"{name!r} is at its destination already, and is not to be replaced")


def _digest(fd: int) -> str:
    digest, at = hashlib.sha256(), 0
    while chunk := os.pread(fd, READ_BYTES, at):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()
