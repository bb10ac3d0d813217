"""URLs of SFTP servers: ``sftp://host[:port][/folder]``. The folder is below the one that the user logs in
to; ``//folder`` is one from the server's root."""

from __future__ import annotations

from typing import Self
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import ConfigError

EXAMPLE = "sftp://sftp.example.com/reports"
PORT = 22


class SftpUrl(msgspec.Struct, frozen=True):
    """One server and a folder on it."""

    host: str
    port: int = PORT
    folder: str = ""

    @classmethod
    def parse(cls, url: str, setting: str = "destination") -> Self:
        """Raises ConfigError, without the URL's password, for one that is none of these."""
        try:
            parts = urlsplit(url)
            port = parts.port or PORT
            folder = unquote(parts.path, errors="strict").removeprefix("/").rstrip("/")
            if parts.scheme != "sftp" or not parts.hostname or parts.query or parts.fragment:
                raise ValueError
            if not folder.isprintable():
                raise ValueError
        except ValueError:
            raise ConfigError(f"{setting} is no SFTP server's URL: use one such as {EXAMPLE!r}") from None
        if parts.username is not None:
            raise ConfigError(f"{setting} holds a user or a password; name a credential in their place")
        return cls(parts.hostname, port, folder)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"sftp://{host}:{self.port}/{self.folder}"
