"""Blobs in a folder, by their digest: those of a build, kept so that the next needs not make them anew."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

import msgspec

from holdfast.errors import ConfigError, Damaged
from holdfast.image.oci import digest_of

KEPT_S = 30 * 24 * 3600.0
"""What no build has used for so long is deleted."""

CHUNK = 1 << 20

OWN_FOLDER = "holdfast-images"
"""The folder below that of ``--cache``, where blobs are kept: what else is there isn't ours to delete."""

_BLOBS, _NOTES, _NEW = "blobs", "notes", "new"


class Writing:
    """A blob that is being written; its digest is known in the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append some bytes."""
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing waits here."""

    @property
    def digest(self) -> str:
        """Of what was written until now."""
        return f"sha256:{self._hash.hexdigest()}"


class Blobs:
    """A folder of blobs, and of notes that say which blob came of which input. Raises ConfigError if it can't
    be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            for name in (_BLOBS, _NOTES, _NEW):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.folder}, where builds keep what they made, can't be written: {error}; name another folder"
            " with --cache"
        )

    def path(self, digest: str) -> Path:
        """Return the path where the blob of a digest is, or would be. Raises ConfigError for what is no
        digest."""
        kind, _, value = digest.partition(":")
        if kind != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise ConfigError(f"{digest!r} is not a sha256 digest; other kinds are not supported")
        return self.folder / _BLOBS / value

    def has(self, digest: str) -> bool:
        """Return whether the blob is here; if so, it is kept for longer."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path(digest))
            return True
        return False

    def read(self, digest: str) -> bytes:
        """Return a small blob."""
        return self.path(digest).read_bytes()

    def add(self, data: bytes) -> str:
        """Keep some bytes; returns their digest."""
        with self.writing() as blob:
            blob.write(data)
        return digest_of(data)

    @contextlib.contextmanager
    def writing(self, expected: str = "") -> Iterator[Writing]:
        """Write a blob, which is kept once the block has ended. Raises Damaged if its digest isn't the
        ``expected`` one."""
        with self._new() as path:
            with path.open("wb") as file:
                blob = Writing(file)
                yield blob
            if expected and blob.digest != expected:
                raise Damaged(f"{expected} was expected, and {blob.digest} came: get it again")
            path.chmod(0o644)
            path.replace(self.path(blob.digest))

    def copy(self, file: IO[bytes], expected: str) -> int:
        """Keep what a file holds; returns its size. Raises Damaged."""
        with self.writing(expected) as blob:
            while data := file.read(CHUNK):
                blob.write(data)
        return blob.size

    def note(self, kind: str, key: bytes) -> Path:
        """Return the path of the note that says what came of an input of some kind."""
        return self.folder / _NOTES / f"{kind}-{digest_of(key).partition(':')[2]}"

    def noted(self, note: Path) -> bytes | None:
        """Return what was noted; None if nothing was."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(note)
            return note.read_bytes()
        return None

    def keep_note(self, note: Path, value: object) -> None:
        """Note what came of an input."""
        with self._new() as path:
            path.write_bytes(msgspec.json.encode(value))
            path.replace(note)

    @contextlib.contextmanager
    def _new(self) -> Iterator[Path]:
        """A file that the block gives its place. What is left if it doesn't is deleted."""
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
        """Delete what was not used for a month."""
        before = time.time() - KEPT_S
        for name in (_BLOBS, _NOTES, _NEW):
            for path in (self.folder / name).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file() and path.stat().st_mtime < before:
                        path.unlink()


def folder_of(told: Path | None) -> Path:
    """Return where builds keep their blobs: below the folder that ``--cache`` names, or else the user's."""
    if told is not None:
        return told / OWN_FOLDER
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "images"
