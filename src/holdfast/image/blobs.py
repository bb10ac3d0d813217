"""Blobs in a folder, by their digests: a build's blobs are kept for later builds."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.errors import ConfigError, Damaged
from holdfast.image.oci import digest_of

KEPT_S = 30 * 24 * 3600.0
"""Seconds after which an unused blob is deleted."""

CHUNK = 1 << 20

OWN_FOLDER = "holdfast-images"
"""The folder of blobs below that of ``--cache``: other files there aren't ours to delete."""

_BLOBS, _NOTES, _NEW = "blobs", "notes", "new"


class HashingFile(io.RawIOBase):
    """A file that hashes and counts the bytes written to it, and passes them on to ``target``, if given."""

    def __init__(self, target: IO[bytes] | None = None) -> None:
        self._target = target
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self.size += len(data)
        if self._target is not None:
            self._target.write(data)
        return len(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class Blobs:
    """A folder of blobs, and of notes with the blob of each input. Raises ConfigError if it can't be
    written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            for name in (_BLOBS, _NOTES, _NEW):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.folder}, the folder of builds, can't be written: {error}; name another folder"
            " with --cache"
        )

    def path(self, digest: str) -> Path:
        """Return the path of a digest's blob. Raises ConfigError for another text than a digest."""
        kind, _, value = digest.partition(":")
        if kind != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise ConfigError(f"{digest!r} is not a sha256 digest; other kinds are not supported")
        return self.folder / _BLOBS / value

    def has(self, digest: str) -> bool:
        """Return whether the blob is here, and keep it for longer."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path(digest))
            return True
        return False

    def read(self, digest: str) -> bytes:
        return self.path(digest).read_bytes()

    def add(self, data: bytes) -> str:
        """Keep some bytes, and return their digest."""
        with self.writing() as blob:
            blob.write(data)
        return digest_of(data)

    @contextlib.contextmanager
    def writing(self, expected: str = "") -> Iterator[HashingFile]:
        """Write a blob, which is kept at the end of the block. Raises Damaged if its digest isn't the
        ``expected`` one."""
        with self._new() as path:
            with path.open("wb") as file:
                blob = HashingFile(file)
                yield blob
            if expected and blob.digest != expected:
                raise Damaged(f"{expected} was expected, and {blob.digest} came: get it again")
            path.chmod(0o644)
            path.replace(self.path(blob.digest))

    def copy(self, file: IO[bytes], expected: str) -> int:
        """Keep the content of a file, and return its size. Raises Damaged."""
        with self.writing(expected) as blob:
            while data := file.read(CHUNK):
                blob.write(data)
        return blob.size

    def note(self, kind: str, key: bytes) -> Path:
        """Return the path of the note of an input of some kind."""
        return self.folder / _NOTES / f"{kind}-{digest_of(key).partition(':')[2]}"

    def noted(self, note: Path) -> bytes | None:
        """Return the content of a note, or None."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(note)
            return note.read_bytes()
        return None

    def keep_note(self, note: Path, value: object) -> None:
        with self._new() as path:
            path.write_bytes(msgspec.json.encode(value))
            path.replace(note)

    @contextlib.contextmanager
    def _new(self) -> Iterator[Path]:
        """Make a file that the block moves to its place. It is deleted if the block fails."""
        try:
            handle, name = tempfile.mkstemp(dir=self.folder / _NEW)
        except OSError as error:
            raise self._refused(error) from None
        os.close(handle)
        try:
            yield Path(name)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def tidy(self) -> None:
        """Delete blobs and notes that were not used for a month."""
        before = time.time() - KEPT_S
        for name in (_BLOBS, _NOTES, _NEW):
            for path in (self.folder / name).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file() and path.stat().st_mtime < before:
                        path.unlink()


def folder_of(cache: Path | None) -> Path:
    """Return the folder of blobs: below that of ``--cache``, or by default the user's."""
    if cache is not None:
        return cache / OWN_FOLDER
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "images"
