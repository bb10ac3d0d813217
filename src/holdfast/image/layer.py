"""Layers: archives of files, whose bytes depend on the files and on zlib alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.image.blobs import Blobs
from holdfast.image.oci import LAYER_GZIP, Descriptor

GZIP_LEVEL = 6
_CHANGED = "files changed while they were packed: build again"


@dataclass(frozen=True)
class ImageFile:
    """A file of an image: its path there, and its content: bytes, a file of this machine, or where a link
    points to."""

    path: str
    content: bytes | Path | str
    executable: bool = False


class Layer(msgspec.Struct, frozen=True):
    """A layer whose blob is at hand. ``diff_id`` is the digest of the archive before compression, ``what``
    tells people what it holds."""

    descriptor: Descriptor
    diff_id: str
    what: str


class _Hashing(io.RawIOBase):
    """Takes what is written for its digest, and hands it on to ``target`` if there is one."""

    def __init__(self, target: IO[bytes] | None = None) -> None:
        self._target = target
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        if self._target is not None:
            self._target.write(data)
        return len(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class _Whole:
    """A file whose size was told before it is read. Raises ConfigError if it ends earlier."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConfigError(_CHANGED)
        return data


def pack(entries: Iterable[ImageFile], blobs: Blobs, what: str) -> Layer:
    """Return the layer of these files. If one of the same content was made before, that one is taken. Raises
    ConfigError if they change meanwhile."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    first = _Hashing()
    write(ordered, first)

    def write_again(file: IO[bytes]) -> None:
        second = _Hashing(file)
        write(ordered, second)
        # Else the layer would be kept under a digest that isn't its own, for builds to come too.
        if second.digest != first.digest:
            raise ConfigError(_CHANGED)

    return compressed(first.digest, write_again, blobs, what)


def compressed(diff_id: str, writer: Callable[[Any], None], blobs: Blobs, what: str) -> Layer:
    """Return the layer of an archive, which ``writer`` writes to a file if it wasn't compressed before."""
    # Other versions of zlib may compress otherwise, so each has its own notes.
    note = blobs.note("gzip", f"{diff_id} {GZIP_LEVEL} {zlib.ZLIB_RUNTIME_VERSION}".encode())
    if (noted := blobs.noted(note)) is not None:
        descriptor = msgspec.json.decode(noted, type=Descriptor)
        if blobs.has(descriptor.digest):
            return Layer(descriptor, diff_id, what)
    with (
        blobs.writing() as blob,
        gzip.GzipFile("", "wb", GZIP_LEVEL, blob, mtime=0) as file,
    ):
        writer(file)
    descriptor = Descriptor(media_type=LAYER_GZIP, digest=blob.digest, size=blob.size)
    blobs.keep_note(note, descriptor)
    return Layer(descriptor, diff_id, what)


def write(entries: Iterable[ImageFile], file: IO[bytes] | io.RawIOBase) -> None:
    """Write files into an archive, in their order, after the folders that they are in."""
    entries = list(entries)
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for folder in sorted(_folders(entry.path for entry in entries)):
            archive.addfile(_header(folder, tarfile.DIRTYPE, 0o755))
        for entry in entries:
            match entry.content:
                case str(target):
                    header = _header(entry.path, tarfile.SYMTYPE, 0o777)
                    header.linkname = target
                    archive.addfile(header)
                case bytes(data):
                    header = _header(entry.path, tarfile.REGTYPE, 0o755 if entry.executable else 0o644)
                    header.size = len(data)
                    archive.addfile(header, io.BytesIO(data))
                case Path() as source:
                    header = _header(entry.path, tarfile.REGTYPE, 0o755 if entry.executable else 0o644)
                    with _opened(source) as content:
                        header.size = os.fstat(content.fileno()).st_size
                        archive.addfile(header, _Whole(content))


def _opened(source: Path) -> IO[bytes]:
    try:
        return source.open("rb")
    except FileNotFoundError:
        raise ConfigError(_CHANGED) from None


def _folders(paths: Iterable[str]) -> set[str]:
    """The folders of an image that these files are in. The outermost is named only if it is ours: a base may
    have a link in place of others."""
    found: set[str] = set()
    for path in paths:
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        found.update(parent for parent in parents if parent not in (".", "opt"))
    return found


def _header(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path)
    header.type, header.mode = kind, mode  # owner 0:0 without names, time 0
    return header
