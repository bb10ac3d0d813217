"""URLs of FTP servers: ``ftp://host[:port][/folder]``, ``ftpes://`` over TLS that the client begins, and
``ftps://`` over TLS from the first byte. The folder is below the one that the user logs in to; ``//folder``
is one from the server's root."""

from __future__ import annotations

import enum
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import ConfigError

EXAMPLE = "ftpes://ftp.example.com/reports"


class FtpSecurity(enum.Enum):
    """The way in which a connection is secured, by scheme."""

    NONE = "ftp"
    EXPLICIT = "ftpes"
    IMPLICIT = "ftps"


class FtpUrl(msgspec.Struct, frozen=True):
    """One server and a folder on it.

    ``active``: the server connects back for data (``?mode=active``). ``ca``: a file of certificates to trust
    in place of the system's (``?ca=PATH``). ``encoding`` of names (``?encoding=latin-1``).
    """

    host: str
    port: int
    folder: str = ""
    tls: FtpSecurity = FtpSecurity.NONE
    active: bool = False
    ca: str = ""
    encoding: str = "utf-8"

    @classmethod
    def parse(cls, url: str, setting: str = "destination") -> Self:
        """Raises ConfigError, without the URL's password, for one that is none of these."""
        try:
            parts = urlsplit(url)
            tls = FtpSecurity(parts.scheme)
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
            mode = options.pop("mode", "passive")
            port = parts.port or (990 if tls is FtpSecurity.IMPLICIT else 21)
            folder = unquote(parts.path, errors="strict").removeprefix("/").rstrip("/")
            "".encode(encoding := options.pop("encoding", "utf-8"))
            ca = options.pop("ca", "")
            if not parts.hostname or options or mode not in ("active", "passive") or parts.fragment:
                raise ValueError
            if not folder.isprintable():
                raise ValueError
        except (ValueError, LookupError):
            raise ConfigError(
                f"{setting} is no FTP server's URL: use one such as {EXAMPLE!r}, with options mode, ca and"
                " encoding"
            ) from None
        if parts.username is not None:
            raise ConfigError(f"{setting} holds a user or a password; name a credential in their place")
        return cls(parts.hostname, port, folder, tls, mode == "active", ca, encoding)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.tls.value}://{host}:{self.port}/{self.folder}"
