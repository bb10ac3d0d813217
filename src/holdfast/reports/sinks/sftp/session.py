"""One SFTP session, with the errors of the sink port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import msgspec

from holdfast.errors import ConfigError, LoginRefused, Unavailable
from holdfast.reports.sinks.sftp.url import SftpUrl

CONNECT_S = 30.0
KEEPALIVE_S = 15.0
KEEPALIVES_MAX = 3
CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Ciphers that processors accelerate come first."""

_NEW_KEY = "ask its owner whether the key was changed; if so, put the new key into known_hosts"

LOST = (asyncssh.SFTPConnectionLost, asyncssh.ConnectionLost, asyncssh.ChannelOpenError)
REFUSED = (
    asyncssh.SFTPPermissionDenied,
    asyncssh.SFTPWriteProtect,
    asyncssh.SFTPOpUnsupported,
    asyncssh.SFTPInvalidFilename,
    asyncssh.SFTPNoSuchFile,
    asyncssh.SFTPNoSuchPath,
    asyncssh.SFTPNotADirectory,
    asyncssh.SFTPFileIsADirectory,
)


class Login(msgspec.Struct, frozen=True):
    """The user who logs in, and the trusted servers.

    ``key``: a private key as text (OpenSSH or PEM), with its ``passphrase`` if it has one. ``known_hosts``:
    lines of an OpenSSH file; by default the user's own file.
    """

    user: str
    password: str = ""
    key: str = ""
    passphrase: str = ""
    known_hosts: str = ""

    def __repr__(self) -> str:
        return f"Login({self.user!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("user", self.user)]

    def options(self) -> dict[str, Any]:
        """Return asyncssh's options. Only the named key is offered. Raises ConfigError."""
        try:
            key = asyncssh.import_private_key(self.key, self.passphrase or None) if self.key else None
            hosts = asyncssh.import_known_hosts(self.known_hosts) if self.known_hosts else ()
        except (asyncssh.KeyImportError, ValueError) as error:
            raise ConfigError(f"the credential's key or known_hosts can't be read: {error}") from None
        return {
            "username": self.user,
            "password": self.password or None,
            "client_keys": [key] if key is not None else None,
            "known_hosts": hosts,
        }


class SftpSession:
    """A session with one server. The first call connects, and the first after a broken connection. Raises
    LoginRefused, ConfigError, Unavailable."""

    def __init__(self, url: SftpUrl, login: Login) -> None:
        self.url = url
        self._login = login
        self._connection: asyncssh.SSHClientConnection | None = None
        self._client: asyncssh.SFTPClient | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def client(self) -> asyncssh.SFTPClient:
        async with self._connecting:
            if self._closed:
                raise Unavailable(f"the connection to {self.url} is closed")
            if self._connection is not None and self._connection.is_closed():
                self._connection = self._client = None
            if self._client is None:
                self._client = await self._connect()
            return self._client

    def drop(self) -> None:
        """Drop the connection, and all writes in flight; the next call connects again."""
        connection, self._connection, self._client = self._connection, None, None
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            with contextlib.suppress(OSError, asyncssh.Error):
                await connection.wait_closed()

    @contextlib.contextmanager
    def port_errors(self, what: str) -> Iterator[None]:
        """Raise the port's errors for asyncssh's errors; ``what`` begins their texts."""
        try:
            yield
        except (asyncssh.Error, OSError, asyncio.IncompleteReadError) as error:
            raise self._port_error(f"{what} at {self.url}", error) from error

    async def _connect(self) -> asyncssh.SFTPClient:
        with self.port_errors("can't log in"):
            self._connection = await asyncssh.connect(
                self.url.host,
                self.url.port,
                config=None,
                agent_path=None,
                gss_host=None,
                encryption_algs=CIPHERS,
                compression_algs=["none"],
                connect_timeout=CONNECT_S,
                login_timeout=CONNECT_S,
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=KEEPALIVES_MAX,
                **self._login.options(),
            )
            return await self._connection.start_sftp_client()

    def _advice(self) -> str:
        """Return the remedy for a host key that isn't trusted."""
        hosts = self._login.options()["known_hosts"] or str(Path.home() / ".ssh" / "known_hosts")
        try:
            known, *_ = asyncssh.match_known_hosts(hosts, self.url.host, "", self.url.port)
        except (OSError, ValueError):  # the file is missing or unreadable
            known = ()
        if not known:
            return "put its host key into the credential's known_hosts"
        return f"its host key isn't the one in known_hosts, so it may be another server; {_NEW_KEY}"

    def _port_error(self, what: str, error: Exception) -> Exception:
        text = f"{what}: {error}"
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            revoked = "revoked" in str(error)
            return LoginRefused(f"{text}: {_NEW_KEY if revoked else self._advice()}")
        if isinstance(error, asyncssh.KeyExchangeFailed) and "host key" in str(error):
            return LoginRefused(f"{text}: {self._advice()}")  # known_hosts has keys of other types
        if isinstance(error, asyncssh.PermissionDenied):
            return LoginRefused(text)
        if isinstance(error, (asyncssh.KeyExchangeFailed, asyncssh.ProtocolNotSupported, *REFUSED)):
            return ConfigError(text)
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            return ConfigError(text)
        return Unavailable(text)
