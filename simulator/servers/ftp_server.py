"""What runs in the process of an FtpServer: pyftpdlib and its faults. Needs pyftpdlib and PyOpenSSL."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path
from typing import IO, Any

import msgspec
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.filesystems import AbstractedFS
from pyftpdlib.handlers import FTPHandler, TLS_FTPHandler
from pyftpdlib.servers import FTPServer

from simulator.servers.ftp import FtpSettings

WRITER, READER = "elradfmwMT", "elr"


def main() -> None:
    """Serve for ever, as a file says."""
    folder = Path(sys.argv[1]).parent
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=FtpSettings)
    faults = settings.faults
    authorizer = DummyAuthorizer()
    authorizer.add_user(
        settings.user, settings.password, settings.data, perm=READER if faults.read_only else WRITER
    )
    kind: Any = TLS_FTPHandler if settings.tls else FTPHandler
    commands = dict(kind.proto_cmds)
    if settings.checksums:
        takes_a_file = {"perm": "l", "auth": True, "arg": True, "help": "Tell the SHA-256 of a file."}
        commands[settings.checksums] = takes_a_file
    for command in ("SIZE", "REST", "MLST") if faults.bare else ():
        del commands[command]
    for command in ("RNFR", "RNTO") if faults.pinned else ():
        del commands[command]

    class FtpFiles(AbstractedFS):  # type: ignore[misc]
        def open(self, filename: str, mode: str) -> Any:
            file = super().open(filename, mode)
            return _Full(file, faults.full_after) if faults.full_after >= 0 else file

        def getsize(self, path: str) -> int:
            return int(super().getsize(path)) + faults.lies_by

        def rename(self, src: str, dst: str) -> None:
            if faults.keeps and Path(dst).exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            super().rename(src, dst)

    class Handler(kind):  # type: ignore[misc]
        proto_cmds = commands
        certfile = str(folder / "certificate.pem")
        keyfile = str(folder / "key.pem")
        tls_control_required = bool(settings.tls)
        tls_data_required = bool(settings.tls)
        auth_failed_timeout = 0
        _extra_feats: Any

        def handle(self) -> None:
            if settings.tls == "implicit":
                self.secure_connection(self.ssl_context)
            else:
                super().handle()

        def handle_ssl_established(self) -> None:
            if settings.tls == "implicit":
                super().handle()

        def ftp_XSHA256(self, path: str) -> None:  # noqa: N802 (named by the command)
            self.respond(f"250 {hashlib.sha256(Path(path).read_bytes()).hexdigest()}")

        def ftp_HASH(self, path: str) -> None:  # noqa: N802
            body = Path(path).read_bytes()
            name = Path(path).name
            self.respond(f"213 SHA-256 0-{len(body)} {hashlib.sha256(body).hexdigest()} {name}")

        def ftp_OPTS(self, line: str) -> None:  # noqa: N802
            if line == "HASH SHA-256":
                self.respond("200 SHA-256")
            else:
                super().ftp_OPTS(line)

        def ftp_FEAT(self, line: str) -> None:  # noqa: N802
            features = {"HASH": "HASH SHA-1*;SHA-256;MD5", "XSHA256": "XSHA256"}
            if settings.checksums:
                self._extra_feats = [*self._extra_feats, features[settings.checksums]]
            super().ftp_FEAT(line)

    if settings.passive_port:
        Handler.passive_ports = [settings.passive_port]
    Handler.authorizer = authorizer
    Handler.abstracted_fs = FtpFiles
    FTPServer((settings.host, settings.port), Handler).serve_forever()


class _Full:
    """A file on a disk that is full after so many bytes."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file = file
        self._room = room

    def write(self, data: bytes) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


if __name__ == "__main__":
    main()
