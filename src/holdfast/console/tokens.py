"""The tokens of a console: who may read, and who may also change something.

A token is a key of a file of keys, whose lines say last which rights their holders have, separated by commas.
The file is read again when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from holdfast.errors import ConfigError
from holdfast.http.key_file import KeyFile, digest_of, new_key
from holdfast.http.watched_files import LOOK_S
from holdfast.ports.clock import Clock

Right = Literal["read", "operate", "pictures"]
"""The rights of a caller: see the pages, change something, see pictures of cameras."""

RIGHTS: tuple[Right, ...] = get_args(Right)

TOKENS = "the console's tokens"
FORM = (
    "write NAME DIGEST RIGHTS, with rights such as read,operate; `holdfast console-token` writes such lines"
)


class Token(msgspec.Struct, frozen=True):
    """A token, by its digest, and what its holder may do."""

    name: str
    digest: str
    rights: frozenset[Right]


class Tokens:
    """The tokens of one console: from its ``file``, and made by the console itself. ``news``, if set, is
    called when they change."""

    def __init__(self, file: Path | None, clock: Clock, log: Any) -> None:
        self.file = file
        self._clock = clock
        self._log = log
        self._keys = None if file is None else KeyFile(file, TOKENS)
        self._own: dict[str, Token] = {}
        self._of_file: dict[str, Token] = {}
        self.news: Callable[[], None] | None = None
        if self._keys is not None:
            self._of_file = self._keys.read(_token, FORM)

    def make(self, name: str, rights: Iterable[Right] = RIGHTS) -> str:
        """Make a token that lives as long as this console. Returns it; it is stored nowhere."""
        secret = new_key()
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
        while self._keys is not None:
            await self._clock.sleep(LOOK_S)
            if not self._keys.changed:
                continue
            try:
                self._of_file = self._keys.read(_token, FORM)
            except ConfigError as error:
                self._log.error("cannot read console tokens", error=str(error))
                continue
            self._log.info("console tokens read", tokens=len(self._of_file))
            if self.news is not None:
                self.news()


def read(file: Path) -> list[Token]:
    """Return the tokens in a file. Raises ConfigError, which names the line."""
    return [*KeyFile(file, TOKENS).read(_token, FORM).values()]


def with_read(rights: Iterable[str]) -> frozenset[Right]:
    """Return the rights with these names, and always ``read``."""
    return frozenset(right for right in RIGHTS if right in {"read", *rights})


def add(file: Path, name: str, rights: Iterable[Right]) -> str:
    """Make a token and add its line to the file. Returns the token, which is stored nowhere. Raises
    ConfigError."""
    given = with_read(rights)
    return KeyFile(file, TOKENS).add(name, ",".join(right for right in RIGHTS if right in given))


def _token(name: str, digest: str, words: Sequence[str]) -> Token | None:
    """Return the token of a line of the file; None if the line makes no sense."""
    rights = words[0].split(",") if len(words) == 1 else []
    if not rights or not {*rights} <= {*RIGHTS}:
        return None
    return Token(name, digest, with_read(rights))
