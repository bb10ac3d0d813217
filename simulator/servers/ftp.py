"""FTP servers: pyftpdlib, plain or over TLS, in health or with faults; and vsftpd, as one more voice."""

from __future__ import annotations

import asyncio
import getpass
import shutil
import socket
import ssl
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from holdfast.errors import ConfigError
from simulator.servers import certificate, programs
from simulator.servers.loopback import HOST
from simulator.servers.server import ASK_TIMEOUT_S, Server

Tls = Literal["", "explicit", "implicit"]
Checksums = Literal["", "XSHA256", "HASH"]


class FtpFaults(msgspec.Struct, frozen=True):
    """What is wrong with a server. ``full_after`` bytes of a file its disk is full (-1: never); it lies about
    sizes by ``lies_by`` bytes; ``read_only``: nobody may write; ``keeps``: it doesn't rename over a file that
    is there; ``pinned``: it doesn't rename; ``bare``: it knows neither sizes nor restarts."""

    full_after: int = -1
    lies_by: int = 0
    read_only: bool = False
    keeps: bool = False
    pinned: bool = False
    bare: bool = False


class FtpSettings(msgspec.Struct, frozen=True):
    """What its process is told."""

    host: str
    port: int
    passive_port: int
    data: str
    user: str
    password: str
    tls: Tls
    checksums: Checksums
    faults: FtpFaults


class _FtpServer(Server):
    """What both have."""

    @property
    def ca(self) -> Path:
        """The certificate to trust, where it speaks TLS."""
        return self.folder / "certificate.pem"

    @property
    def files(self) -> Path:
        """The folder that its user writes to."""
        return self.data

    def clear(self) -> None:
        """Delete all files."""
        for path in self.files.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class FtpServer(_FtpServer):
    """pyftpdlib, with one user, whose files are in ``files``.

    Args:
        tls: over TLS, begun by the client (explicit) or at once (implicit), with a certificate of its own
            making (``ca``), and data connections only over TLS.
        checksums: the command by which it tells the SHA-256 of a file, if it does.
        faults: what is wrong with it.
        host: where it listens, on loopback.
        passive_port: where it awaits data connections, one at a time; 0 for any port.
    """

    name: ClassVar[str] = "pyftpdlib"
    user = "ann"
    password = "se:cret/1"  # noqa: S105 (for a server that lives as long as a test)

    def __init__(
        self,
        tls: Tls = "",
        *,
        checksums: Checksums = "",
        faults: FtpFaults | None = None,
        host: str = HOST,
        passive_port: int = 0,
    ) -> None:
        super().__init__()
        self._host = host
        self.passive_port = passive_port
        self._tls = tls
        self._checksums = checksums
        self._faults = faults or FtpFaults()

    @property
    def url(self) -> str:
        scheme = {"": "ftp", "explicit": "ftpes", "implicit": "ftps"}[self._tls]
        return f"{scheme}://{self._host}:{self.port}{f'?ca={self.ca}' if self._tls else ''}"

    def command(self) -> Sequence[str | Path]:
        if find_spec("pyftpdlib") is None:
            raise ConfigError("pyftpdlib is missing: pip install pyftpdlib pyopenssl (make dev does)")
        if self._tls and not self.ca.exists():
            certificate.make(self.folder)
        settings = FtpSettings(
            host=self._host,
            port=self.port,
            passive_port=self.passive_port,
            data=str(self.data),
            user=self.user,
            password=self.password,
            tls=self._tls,
            checksums=self._checksums,
            faults=self._faults,
        )
        file = self.folder / "settings.json"
        file.write_bytes(msgspec.json.encode(settings))
        return [sys.executable, "-P", "-m", "simulator.servers.ftp_server", file]

    async def answers(self) -> bool:
        ca = self.ca if self._tls == "implicit" else None
        return await asyncio.to_thread(_greets, self._host, self.port, ca)


class VsftpdServer(_FtpServer):
    """vsftpd, for anonymous users, whose files are in ``files``.

    ``tls``: over explicit TLS only; data connections must take up the session of their control connection.
    """

    name: ClassVar[str] = "vsftpd"
    user = "anonymous"
    password = "-"  # noqa: S105 (none)

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__()
        self._tls = tls

    @property
    def url(self) -> str:
        return f"ftpes://{self.address}/files?ca={self.ca}" if self._tls else f"ftp://{self.address}/files"

    @property
    def files(self) -> Path:
        return self.data / "files"

    def command(self) -> Sequence[str | Path]:
        self.files.mkdir(exist_ok=True)
        self.data.chmod(0o555)  # it serves no root that may be written to
        settings = {
            "listen": "YES",
            "listen_address": HOST,
            "listen_port": str(self.port),
            "background": "NO",
            "run_as_launching_user": "YES",
            "ftp_username": getpass.getuser(),
            "nopriv_user": getpass.getuser(),
            "anonymous_enable": "YES",
            "no_anon_password": "YES",
            "anon_root": str(self.data),
            "anon_upload_enable": "YES",
            "anon_mkdir_write_enable": "YES",
            "anon_other_write_enable": "YES",
            "anon_umask": "022",
            "write_enable": "YES",
            "local_enable": "NO",
            "chown_uploads": "NO",
            "lock_upload_files": "NO",  # else one who goes on with a file waits for whoever writes still
            "seccomp_sandbox": "NO",
            "one_process_model": "NO" if self._tls else "YES",
            "secure_chroot_dir": str(self.folder),
            "xferlog_enable": "NO",
        }
        if self._tls:
            if not self.ca.exists():
                certificate.make(self.folder)
            settings |= {
                "ssl_enable": "YES",
                "allow_anon_ssl": "YES",
                "force_anon_data_ssl": "YES",
                "force_anon_logins_ssl": "YES",
                "require_ssl_reuse": "YES",
                "rsa_cert_file": str(self.ca),
                "rsa_private_key_file": str(self.folder / "key.pem"),
                "ssl_ciphers": "HIGH",
            }
        file = self.folder / "vsftpd.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [programs.find("vsftpd"), file]

    async def answers(self) -> bool:
        return await asyncio.to_thread(_greets, HOST, self.port, None)


def _greets(host: str, port: int, ca: Path | None) -> bool:
    """Blocking, for a TLS connection of asyncio outlives the loop that only asked."""
    try:
        with (
            socket.create_connection((host, port), ASK_TIMEOUT_S) as plain,
            _secured(plain, ca) as connection,
        ):
            return connection.recv(64).startswith(b"220")
    except OSError:
        return False


def _secured(connection: socket.socket, ca: Path | None) -> socket.socket:
    if ca is None:
        return connection
    return ssl.create_default_context(cafile=ca).wrap_socket(connection, server_hostname=HOST)
