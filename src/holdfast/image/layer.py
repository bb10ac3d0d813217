"""Layers: archives of files, whose bytes depend only on the files and on zlib."""

from __future__ import annotations

import gzip
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
from holdfast.image.blobs import Blobs, HashingFile
from holdfast.image.oci import LAYER_GZIP, Descriptor

GZIP_LEVEL = 6
_CHANGED = "files changed while they were packed: build again"


@dataclass(frozen=True)
class ImageFile:
    """A file of an image: its path, and its content: bytes, a file of this machine, or the target of a
    link."""

    path: str
    content: bytes | Path | str
    executable: bool = False


class Layer(msgspec.Struct, frozen=True):
    """A layer whose blob is here. ``diff_id`` is the digest of the uncompressed archive, ``what`` a
    description for people."""

    descriptor: Descriptor
    diff_id: str
    what: str


class _Whole:
    """A file of a known size. Raises ConfigError if it ends earlier."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConfigError(_CHANGED)
        return data


def pack(entries: Iterable[ImageFile], blobs: Blobs, what: str) -> Layer:
    """Return the layer of these files: an earlier one, if it has the same content. Raises ConfigError if the
    files change meanwhile."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    first = HashingFile()
    write(ordered, first)

    def write_again(file: IO[bytes]) -> None:
        second = HashingFile(file)
        write(ordered, second)
        # Else the layer would be kept under a wrong digest, for later builds too.
        if second.digest != first.digest:
            raise ConfigError(_CHANGED)

    return compressed(first.digest, write_again, blobs, what)


def compressed(diff_id: str, writer: Callable[[Any], None], blobs: Blobs, what: str) -> Layer:
    """Return the layer of an archive, which ``writer`` writes to a file unless an earlier build compressed
    it."""
    # Other versions of zlib may compress differently, so each has its own notes.
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
    """Write files into an archive, in their order, after their folders."""
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
    """Return the folders of some files. The outermost is named only if it is ours: a base may have a link in
    place of another."""
    found: set[str] = set()
    for path in paths:
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        found.update(parent for parent in parents if parent not in (".", "opt"))
    return found


def _header(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path)
    header.type, header.mode = kind, mode  # owner 0:0 without names, time 0
    return header
