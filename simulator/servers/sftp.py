"""An SFTP server: asyncssh's, in health or with faults."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import msgspec

from holdfast.errors import ConfigError
from simulator.servers.loopback import HOST
from simulator.servers.server import Server, exchange


class SftpFaults(msgspec.Struct, frozen=True):
    """What is wrong with a server. ``full_after`` bytes of a file its disk is full (-1: never); it refuses
    the first write of the byte ``refuses_at`` (-1: none), and takes what comes after it; it lies about sizes
    by ``lies_by`` bytes; ``read_only``: nobody may write; ``old``: it renames over nothing; ``pinned``: it
    doesn't rename."""

    full_after: int = -1
    refuses_at: int = -1
    lies_by: int = 0
    read_only: bool = False
    old: bool = False
    pinned: bool = False


class SftpSettings(msgspec.Struct, frozen=True):
    """What its process is told."""

    port: int
    files: str
    user: str
    password: str
    host_key: str
    client_key: str
    faults: SftpFaults


class SftpServer(Server):
    """asyncssh's, with one user, who logs in by password or by ``key``, and whose files are in ``data``.

    ``faults``: what is wrong with it.
    """

    name: ClassVar[str] = "sftp"
    user = "ann"
    password = "se:cret/1"  # noqa: S105 (for a server that lives as long as a test)

    def __init__(self, *, faults: SftpFaults | None = None) -> None:
        super().__init__()
        self._faults = faults or SftpFaults()

    @property
    def url(self) -> str:
        return f"sftp://{self.address}"

    @property
    def files(self) -> Path:
        """The folder that its user writes to."""
        return self.data

    def clear(self) -> None:
        """Delete all files."""
        for path in self.files.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def key(self) -> str:
        """A private key that it lets in."""
        return (self.folder / "client").read_text()

    @property
    def known_hosts(self) -> str:
        """The line by which clients know it."""
        return f"[{HOST}]:{self.port} {(self.folder / 'host.pub').read_text()}"

    def command(self) -> Sequence[str | Path]:
        if find_spec("asyncssh") is None:
            raise ConfigError("asyncssh is missing: pip install asyncssh (make dev does)")
        import asyncssh  # noqa: PLC0415 (an extra)

        for name in ("host", "client"):
            if not (self.folder / name).exists():
                key = asyncssh.generate_private_key("ssh-ed25519")
                key.write_private_key(self.folder / name)
                key.write_public_key(self.folder / f"{name}.pub")
        settings = SftpSettings(
            port=self.port,
            files=str(self.files),
            user=self.user,
            password=self.password,
            host_key=str(self.folder / "host"),
            client_key=str(self.folder / "client.pub"),
            faults=self._faults,
        )
        file = self.folder / "settings.json"
        file.write_bytes(msgspec.json.encode(settings))
        return [sys.executable, "-P", "-m", "simulator.servers.sftp_server", file]

    async def answers(self) -> bool:
        return (await exchange(self.port, b"")).startswith(b"SSH-2.0")
