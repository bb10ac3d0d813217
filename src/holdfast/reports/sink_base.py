"""Parts that several sinks share: the state of an upload, its checks, and URLs of servers."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from holdfast.errors import AlreadyThere, ConfigError, Damaged
from holdfast.reports.ports.sink import RemoteFile

NO_RENAMING = (
    "let this user rename; where a server can't, order the option in_place, and a companion that shows that"
    " the file is complete"
)
"""The remedy in the error of a server that refuses to rename."""


class SinkBase:
    """Base of the sinks."""

    async def stat(self, name: str) -> RemoteFile | None:
        raise NotImplementedError

    async def check_absent(self, name: str) -> None:
        """Raise AlreadyThere if the file exists."""
        if await self.stat(name) is not None:
            raise already_there(name)


class UploadBase:
    """Base of the uploads: the name, where it goes, and the bytes so far."""

    grain = 1

    def __init__(self, name: str, token: str, *, replace: bool, held: int = 0) -> None:
        self.name = name
        self.token = token
        self.held = held
        self.replace = replace
        self.sent_bytes = 0

    async def skip(self, size: int) -> None:
        self.sent_bytes = size

    def check_size(self, size: int | None) -> None:
        """Raise Damaged if the destination doesn't hold as many bytes as were sent."""
        if size != self.sent_bytes:
            raise Damaged(
                f"the destination has {size} bytes of {self.name!r}, and {self.sent_bytes} were sent"
            )

    def check_content(self, found: str, sha256: str) -> None:
        """Raise Damaged if the destination's checksum differs."""
        if found != sha256:
            raise Damaged(f"the destination has other bytes of {self.name!r} than were sent")

    def taken_over(self) -> Damaged:
        """Return the error of an upload that the destination doesn't hold any longer."""
        return Damaged(f"the upload of {self.name!r} is gone: another process took it over or removed it")


class ServerUrl(msgspec.Struct, frozen=True):
    """A server and a folder on it. The folder is relative to the login folder; ``//folder`` in a URL is one
    from the server's root."""

    scheme: str
    host: str
    port: int
    folder: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.folder}"

    @classmethod
    def split(cls, url: str) -> tuple[SplitResult, str, str]:
        """Return the parts of a URL, its host and its folder. Raises ValueError for a malformed one."""
        parts = urlsplit(url)
        folder = unquote(parts.path, errors="strict").removeprefix("/").rstrip("/")
        if not parts.hostname or parts.fragment or not folder.isprintable():
            raise ValueError
        return parts, parts.hostname, folder


def refuse_login(parts: SplitResult) -> None:
    """Raise ConfigError for a URL with a user or a password."""
    if parts.username is not None:
        raise ConfigError("destination holds a user or a password; name a credential in their place")


def already_there(name: str) -> AlreadyThere:
    """Return the error of a file that must not be replaced."""
    return AlreadyThere(f"{name!r} is at its destination already, and is not to be replaced")


async def sha256_of(chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
