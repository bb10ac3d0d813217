"""Destinations on FTP servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from holdfast.reports.conformance import SinkConformance
from holdfast.reports.sinks.ftp.sink import FtpSink
from holdfast.reports.sinks.ftp.url import FtpUrl
from simulator.servers import FtpServer, VsftpdServer

SERVERS: dict[str, Callable[[], FtpServer | VsftpdServer]] = {
    "plain": FtpServer,
    "implicit": lambda: FtpServer("implicit"),
    "vsftpd": VsftpdServer,
    "vsftpd-tls": lambda: VsftpdServer(tls=True),
}


def connect(server: FtpServer | VsftpdServer, **options: str) -> FtpSink:
    more = "&".join(f"{name}={value}" for name, value in options.items())
    url = server.url + ("&" if "?" in server.url else "?") + more if more else server.url
    return FtpSink(FtpUrl.parse(url), server.user, server.password)


@pytest.fixture(scope="module", params=["plain", "implicit", "vsftpd-tls"])
def server(request: pytest.FixtureRequest) -> Iterator[FtpServer | VsftpdServer]:
    made = SERVERS[request.param]()
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


class TestFtpSink(SinkConformance):
    mode = "passive"

    @pytest.fixture
    async def sink(self, server: FtpServer) -> AsyncIterator[FtpSink]:
        server.clear()
        sink = connect(server, mode=self.mode)
        yield sink
        await sink.close()

    @pytest.fixture
    async def other_sink(self, server: FtpServer) -> AsyncIterator[FtpSink]:
        sink = connect(server, mode=self.mode)
        yield sink
        await sink.close()


@pytest.mark.parametrize("server", ["vsftpd"], indirect=True)
class TestActiveFtpSink(TestFtpSink):
    mode = "active"
