"""What runs in the process of an SftpServer: asyncssh and its faults."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import asyncssh
import msgspec

from simulator.servers.loopback import HOST
from simulator.servers.sftp import SftpSettings


def main() -> None:
    """Serve for ever, as a file says."""
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SftpSettings)
    faults = settings.faults
    refusals = [faults.refuses_at] if faults.refuses_at >= 0 else []

    class Users(asyncssh.SSHServer):
        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == (settings.user, settings.password)

    class SftpFiles(asyncssh.SFTPServer):
        def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
            super().__init__(channel, chroot=os.fsencode(settings.files))

        def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
            if faults.read_only and pflags & asyncssh.FXF_WRITE:
                raise asyncssh.SFTPPermissionDenied("Permission denied")
            return super().open(path, pflags, attrs)

        def write(self, file_obj: object, offset: int, data: bytes) -> int:
            if 0 <= faults.full_after < offset + len(data):
                raise asyncssh.SFTPFailure("No space left on device")
            if refusals and offset <= refusals[0] < offset + len(data):
                refusals.clear()
                raise asyncssh.SFTPFailure("Input/output error")
            written = super().write(file_obj, offset, data)
            assert isinstance(written, int)
            return written

        def fstat(self, file_obj: object) -> asyncssh.SFTPAttrs:
            found = super().fstat(file_obj)
            assert isinstance(found, os.stat_result)
            attrs = asyncssh.SFTPAttrs.from_local(found)
            attrs.size = found.st_size + faults.lies_by
            return attrs

        def posix_rename(self, oldpath: bytes, newpath: bytes) -> None:
            if faults.old or faults.pinned:
                raise asyncssh.SFTPOpUnsupported("posix-rename is not supported")
            super().posix_rename(oldpath, newpath)

        def rename(self, oldpath: bytes, newpath: bytes) -> None:
            if faults.pinned:
                raise asyncssh.SFTPPermissionDenied("Permission denied")
            super().rename(oldpath, newpath)

    async def serve() -> None:
        server = await asyncssh.listen(
            HOST,
            settings.port,
            server_factory=Users,
            server_host_keys=[settings.host_key],
            authorized_client_keys=settings.client_key,
            sftp_factory=SftpFiles,
        )
        await server.wait_closed()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
