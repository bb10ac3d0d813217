"""Destinations on SFTP servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.reports.conformance import SinkConformance
from holdfast.reports.sinks.sftp.session import Login
from holdfast.reports.sinks.sftp.sink import SftpSink
from holdfast.reports.sinks.sftp.url import SftpUrl
from simulator.servers import SftpFaults, SftpServer


def connect(server: SftpServer, **options: str) -> SftpSink:
    known = {"password": server.password, "known_hosts": server.known_hosts} | options
    return SftpSink(SftpUrl.parse(server.url), Login(server.user, **known))


@pytest.fixture(scope="module", params=["", "old"])
def server(request: pytest.FixtureRequest) -> Iterator[SftpServer]:
    made = SftpServer(faults=SftpFaults(old=request.param == "old"))
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


class TestSftpSink(SinkConformance):
    @pytest.fixture
    async def sink(self, server: SftpServer) -> AsyncIterator[SftpSink]:
        server.clear()
        sink = connect(server)
        yield sink
        await sink.close()

    @pytest.fixture
    async def other_sink(self, server: SftpServer) -> AsyncIterator[SftpSink]:
        sink = connect(server, password="", key=server.key)
        yield sink
        await sink.close()
