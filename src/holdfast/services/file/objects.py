"""Objects as files below one directory."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from holdfast.errors import ConfigError, InvalidMessage, Unavailable
from holdfast.system.files import OWNER, Access, make_folder, whole_file

PART = ".put-"
"""Begins the name of a file that is not complete."""


class FileObjects:
    """Objects below the directory ``root``. URLs are ``file:///path``, percent-encoded.

    ``durable``: an object is on the disk before its URL is returned, so that no message names a frame that a
    power failure deletes. ``read_in_thread``: files are read in a thread, so that the event loop isn't
    blocked; in a slot, where nothing else runs, a thread costs several times more than reading a frame.
    ``access``: the modes of new files. ``makes``: the directory is made now, if it isn't there; else by who
    stores the first object.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        durable: bool = True,
        read_in_thread: bool = True,
        access: Access = OWNER,
        makes: bool = True,
    ) -> None:
        self.root = Path(root).resolve()
        self._durable = durable
        self._read_in_thread = read_in_thread
        self._access = access
        try:
            if makes:
                make_folder(self.root, access)
        except OSError as error:
            raise ConfigError(f"the object directory {self.root} can't be made: {error.strerror}") from error

    async def get(self, url: str) -> bytes:
        path = self._locate(url)
        try:
            return await asyncio.to_thread(path.read_bytes) if self._read_in_thread else path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise FileNotFoundError(errno.ENOENT, "no such object", url) from None
        except OSError as error:
            raise Unavailable(f"{url} can't be read: {error.strerror}") from error

    async def put(self, name: str, data: bytes) -> str:
        _check_name(name)
        path = self.root / name
        try:
            await asyncio.to_thread(self._write, path, data)
        except OSError as error:
            raise Unavailable(
                f"the object {name!r} can't be written below {self.root}: {error.strerror}"
            ) from error
        return _url(path)

    def url(self, name: str) -> str:
        _check_name(name)
        return _url(self.root / name)

    async def urls(self, under: str) -> AsyncIterator[str]:
        _check_name(under)
        folders = [self.root / under]
        while folders:
            try:
                below, files = await asyncio.to_thread(_entries, folders.pop())
            except OSError as error:
                raise Unavailable(f"{error.filename} can't be read: {error.strerror}") from error
            folders += below
            for path in files:
                yield _url(path)

    async def close(self) -> None:
        pass

    def _locate(self, url: str) -> Path:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise InvalidMessage(f"{url!r} is not an object's URL here; they begin with file://{self.root}/")
        if "?" in url or "#" in url:
            raise InvalidMessage(f"{url!r} has a query or a fragment; an object's URL has none")
        path = Path(unquote(parts.path))
        if not path.is_relative_to(self.root):
            raise InvalidMessage(f"{url!r} is outside the object directory {self.root}")
        _check_name(str(path.relative_to(self.root)))
        if not path.resolve().is_relative_to(self.root):
            raise InvalidMessage(f"{url!r} leads by a link out of the object directory {self.root}")
        return path

    def _write(self, path: Path, data: bytes) -> None:
        """Write the whole file at once."""
        make_folder(path.parent, self._access, durable=self._durable)
        with whole_file(path, self._access, part=PART, durable=self._durable) as file:
            file.write(data)


def _url(path: Path) -> str:
    return f"file://{quote(str(path))}"


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders in a folder, and the objects. Links are neither: they may lead out of the store."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    folders = [Path(entry) for entry in found if entry.is_dir(follow_symlinks=False)]
    files = [Path(entry) for entry in found if entry.is_file(follow_symlinks=False)]
    return folders, [path for path in files if not path.name.startswith(PART)]


def _check_name(name: str) -> None:
    segments = name.split("/")
    if any(segment in ("", ".", "..") or "\0" in segment or segment.startswith(PART) for segment in segments):
        raise InvalidMessage(f"object name {name!r} has an empty segment, '.', '..', '.put-' or a NUL")
