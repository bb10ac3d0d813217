"""FTP and SFTP servers with faults, and sinks that are connected to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.reports.conformance.sink import part, sha256
from holdfast.reports.sinks.ftp.sink import FtpSink
from holdfast.reports.sinks.ftp.url import FtpUrl
from holdfast.reports.sinks.sftp.session import Login
from holdfast.reports.sinks.sftp.sink import SftpSink
from holdfast.reports.sinks.sftp.url import SftpUrl
from simulator.servers import FtpFaults, FtpServer, SftpFaults, SftpServer
from simulator.servers.ftp import Checksums

BODY = part(1, 3_000_000)


@asynccontextmanager
async def served_ftp(checksums: Checksums = "", **faults: Any) -> AsyncIterator[tuple[FtpServer, FtpSink]]:
    async with FtpServer(faults=FtpFaults(**faults) if faults else None, checksums=checksums) as server:
        sink = FtpSink(FtpUrl.parse(server.url), server.user, server.password)
        try:
            yield server, sink
        finally:
            await sink.close()


@asynccontextmanager
async def served_sftp(**faults: Any) -> AsyncIterator[tuple[SftpServer, SftpSink]]:
    async with SftpServer(faults=SftpFaults(**faults) if faults else None) as server:
        login = Login(server.user, server.password, known_hosts=server.known_hosts)
        sink = SftpSink(SftpUrl.parse(server.url), login)
        try:
            yield server, sink
        finally:
            await sink.close()


def names(server: FtpServer | SftpServer) -> list[str]:
    return sorted(path.name for path in server.files.rglob("*") if path.is_file())


async def put_all(upload: Any) -> None:
    for start in range(0, len(BODY), 100_000):
        await upload.write(BODY[start : start + 100_000])
    await upload.commit(sha256(BODY))
