"""Files of keys: on each line the name of a holder, the SHA-256 of the key, and the rights of the holder.

Text after ``#`` is a comment. A key is 256 random bits, so its digest doesn't reveal it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.errors import ConfigError
from holdfast.http.watched_files import WatchedFiles

KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeyHolder(Protocol):
    """The holder of a key."""

    @property
    def digest(self) -> str:
        """The digest of the key."""


H = TypeVar("H", bound=KeyHolder)


class KeyFile:
    """A file of keys. ``what`` names its keys in errors, such as ``the keys of clients``."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._watched = WatchedFiles(path)

    @property
    def changed(self) -> bool:
        """True once after each change of the file."""
        return self._watched.changed

    def read(self, holder: Callable[[str, str, list[str]], H | None], form: str) -> dict[str, H]:
        """Return the holders by the digests of their keys. ``holder`` makes one from name, digest and the
        following words, or returns None if these are wrong; the error then has ``form``, the format of a
        line. Raises ConfigError with the line."""
        try:
            lines = self._path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._what} can't be read from {self._path}: {error}") from None
        found: dict[str, H] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            one = None
            if len(words) > 1 and is_name(words[0]) and _DIGEST.fullmatch(words[1]):
                one = holder(words[0], words[1], words[2:])
            if one is None:
                raise ConfigError(f"{self._path}, line {number}: {form}")
            if one.digest == _OF_NOTHING:
                raise ConfigError(
                    f"{self._path}, line {number}: this is the digest of an empty key, which everybody has;"
                    " make a key and its line with the command that adds one"
                )
            if one.digest in found:
                raise ConfigError(f"{self._path} has the same key twice; give each line its own key")
            found[one.digest] = one
        return found

    def add(self, name: str, *rest: str) -> str:
        """Make a key and add its line to the file. Returns the key, which is stored nowhere. Raises
        ConfigError."""
        if not is_name(name):
            raise ConfigError(f"a name is 1 to 64 letters, digits and _.@-; this is {name!r}")
        key = new_key()
        line = " ".join([name, digest_of(key), *rest])
        try:
            self._path.touch(mode=0o600)
            with self._path.open("a+b") as out:
                if out.tell():  # an editor may have left the last line without a line end
                    out.seek(-1, os.SEEK_END)
                    line = line if out.read() == b"\n" else f"\n{line}"
                out.write(f"{line}\n".encode())
        except OSError as error:
            raise ConfigError(f"the key can't be added to {self._path}: {error.strerror}") from None
        return key


def is_name(text: str) -> bool:
    """Return True for a valid name of a holder."""
    return _NAME.fullmatch(text) is not None


def new_key() -> str:
    """Return a random key."""
    return secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: str) -> str:
    """Return the digest of a key, as it stands in a file."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


_OF_NOTHING = digest_of("")
"""The digest of an empty key, as a script with an unset variable would write it."""
