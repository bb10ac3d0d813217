"""URLs of SFTP servers: ``sftp://host[:port][/folder]``."""

from __future__ import annotations

from typing import Self

from holdfast.errors import ConfigError
from holdfast.reports.sink_base import ServerUrl, refuse_login

EXAMPLE = "sftp://sftp.example.com/reports"
PORT = 22


class SftpUrl(ServerUrl, frozen=True):
    """An SFTP server and a folder on it."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the parts of a URL. Raises ConfigError for another URL, without its password."""
        try:
            parts, host, folder = cls.split(url)
            port = parts.port or PORT
            if parts.scheme != "sftp" or parts.query:
                raise ValueError
        except ValueError:
            raise ConfigError(f"destination must be an SFTP server's URL such as {EXAMPLE!r}") from None
        refuse_login(parts)
        return cls(parts.scheme, host, port, folder)
