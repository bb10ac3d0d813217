"""URLs of FTP servers: ``ftp://host[:port][/folder]``, ``ftpes://`` over TLS that the client begins, and
``ftps://`` over TLS from the first byte."""

from __future__ import annotations

from typing import Self
from urllib.parse import parse_qsl

from holdfast.errors import ConfigError
from holdfast.reports.sink_base import ServerUrl, refuse_login

EXAMPLE = "ftpes://ftp.example.com/reports"
PORTS = {"ftp": 21, "ftpes": 21, "ftps": 990}


class FtpUrl(ServerUrl, frozen=True):
    """An FTP server and a folder on it.

    ``active``: the server connects back for data (``?mode=active``). ``ca``: a file of certificates to trust
    in place of the system's (``?ca=PATH``). ``encoding`` of names (``?encoding=latin-1``).
    """

    active: bool = False
    ca: str = ""
    encoding: str = "utf-8"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the parts of a URL. Raises ConfigError for another URL, without its password."""
        try:
            parts, host, folder = cls.split(url)
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
            mode = options.pop("mode", "passive")
            port = parts.port or PORTS[parts.scheme]
            "".encode(encoding := options.pop("encoding", "utf-8"))
            ca = options.pop("ca", "")
            if parts.scheme not in PORTS or options or mode not in ("active", "passive"):
                raise ValueError
        except (ValueError, LookupError):
            raise ConfigError(
                f"destination must be an FTP server's URL such as {EXAMPLE!r}; its options are mode, ca and"
                " encoding"
            ) from None
        refuse_login(parts)
        return cls(parts.scheme, host, port, folder, mode == "active", ca, encoding)
