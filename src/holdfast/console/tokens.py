"""The tokens of a console: who may read, and who may also change something.

The file has one token per line: the name of who has it, the SHA-256 of the token in hexadecimal, and its
rights, separated by commas. Text after ``#`` is a comment. A token is 256 random bits, so its digest doesn't
reveal it. The file is read again when it changes.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from holdfast.errors import ConfigError
from holdfast.gateway.clients import KEY_BYTES, digest_of
from holdfast.ports.clock import Clock

Right = Literal["read", "operate", "pictures"]
"""What a caller may do: see the pages, change something, see pictures of cameras."""

RIGHTS: tuple[Right, ...] = get_args(Right)
LOOK_S = 1.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Token(msgspec.Struct, frozen=True):
    """A token, by its digest, and what its holder may do."""

    name: str
    digest: str
    rights: frozenset[Right]


class Tokens:
    """The tokens of one console: those of its file, and ``own``, which the console has made for itself.
    ``news``, if set, is called when they change."""

    def __init__(self, file: Path | None, clock: Clock, log: Any) -> None:
        self._file = file
        self._clock = clock
        self._log = log
        self._stamp: tuple[int, ...] = ()
        self._own: dict[str, Token] = {}
        self._of_file: dict[str, Token] = {}
        self.news: Callable[[], None] | None = None
        if file is not None:
            self._stamp = _stamp(file)
            self._of_file = {token.digest: token for token in read(file)}

    @property
    def file(self) -> Path | None:
        """The file of tokens, if there is one."""
        return self._file

    def make(self, name: str, rights: Iterable[Right] = RIGHTS) -> str:
        """Make a token that lives as long as this console. Returns it; it is stored nowhere."""
        secret = secrets.token_urlsafe(KEY_BYTES)
        digest = digest_of(secret)
        self._own[digest] = Token(name, digest, frozenset(rights))
        return secret

    def find(self, shown: str) -> Token | None:
        """Return the token that a caller shows, if it is one."""
        return self.by_digest(digest_of(shown))

    def by_digest(self, digest: str) -> Token | None:
        """Return the token of a digest, if it is still one."""
        return self._own.get(digest) or self._of_file.get(digest)

    async def watch(self) -> None:
        """Read the file again when it changes, until cancelled. A file with errors changes nothing."""
        while self._file is not None:
            await self._clock.sleep(LOOK_S)
            if (stamp := _stamp(self._file)) == self._stamp:
                continue
            self._stamp = stamp
            try:
                self._of_file = {token.digest: token for token in read(self._file)}
            except ConfigError as error:
                self._log.error("the console's tokens can't be read; known tokens stay", error=str(error))
                continue
            self._log.info("the console's tokens read", tokens=len(self._of_file))
            if self.news is not None:
                self.news()


def read(file: Path) -> list[Token]:
    """Return the tokens in a file. Raises ConfigError, which names the line."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the console's tokens can't be read from {file}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        rights = words[2].split(",") if len(words) == 3 else []
        if (
            not rights
            or not _NAME.fullmatch(words[0])
            or not _DIGEST.fullmatch(words[1])
            or not {*rights} <= {*RIGHTS}
        ):
            raise ConfigError(
                f"{file}, line {number}: write NAME DIGEST RIGHTS, with rights such as read,operate;"
                " `holdfast console-token` writes such lines"
            )
        found.append(Token(words[0], words[1], with_read(rights)))
    if len({token.digest for token in found}) < len(found):
        raise ConfigError(f"{file} has the same token twice; give each line its own")
    return found


def with_read(rights: Iterable[str]) -> frozenset[Right]:
    """Return the rights that these names stand for: whoever may do anything may read."""
    return frozenset(right for right in RIGHTS if right in {"read", *rights})


def add(file: Path, name: str, rights: Iterable[Right]) -> str:
    """Make a token and add its line to the file. Returns the token, which is stored nowhere. Raises
    ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a name is 1 to 64 letters, digits and _.@-; this is {name!r}")
    token = secrets.token_urlsafe(KEY_BYTES)
    told = with_read(rights)
    line = f"{name} {digest_of(token)} {','.join(right for right in RIGHTS if right in told)}"
    try:
        file.touch(mode=0o600)
        with file.open("a+b") as out:
            if out.tell():  # an editor may have left the last line without a line end
                out.seek(-1, os.SEEK_END)
                line = line if out.read() == b"\n" else f"\n{line}"
            out.write(f"{line}\n".encode())
    except OSError as error:
        raise ConfigError(f"the token can't be added to {file}: {error.strerror}") from None
    return token


def _stamp(file: Path) -> tuple[int, ...]:
    """Return a value that changes when the file changes."""
    try:
        told = file.stat()
    except OSError:
        return ()
    return told.st_mtime_ns, told.st_size, told.st_ino
