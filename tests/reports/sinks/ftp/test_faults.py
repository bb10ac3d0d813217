"""FTP servers that lack commands, refuse a login, or fall silent."""

import asyncio
import contextlib
import ssl
from typing import Any

import pytest

from holdfast.errors import ConfigError, Damaged, LoginRefused, Unavailable
from holdfast.reports.conformance.sink import held, put, sha256
from holdfast.reports.sinks.ftp.control import TLS_BYTES, send
from holdfast.reports.sinks.ftp.sink import FtpSink
from holdfast.reports.sinks.ftp.url import FtpUrl
from simulator.servers import FtpServer
from simulator.servers.ftp import Checksums
from tests.reports.sinks.serving import BODY, names, put_all, served_ftp


class Recorder(ssl.SSLSocket):
    """Accepts all data, and records the sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def send(self, data: Any, flags: int = 0) -> int:
        self.sizes.append(len(data))
        return len(data)


def test_over_tls_writes_are_small_as_each_must_be_sent_within_the_timeout() -> None:
    connection = Recorder()
    send(connection, bytes(2 * TLS_BYTES + 1))
    assert connection.sizes == [TLS_BYTES, TLS_BYTES, 1]


@pytest.mark.slow
async def test_a_server_that_reports_no_sizes_is_refused() -> None:
    async with served_ftp(bare=True) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(ConfigError, match="neither SIZE nor MLST"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []


@pytest.mark.slow
async def test_a_server_that_renames_over_nothing_is_helped() -> None:
    async with served_ftp(keeps=True) as (server, sink):
        for body in (b"one", b"two"):
            await put(sink, "a.csv", body)
            assert await held(sink, "a.csv") == body
        assert names(server) == ["a.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["XSHA256", "HASH"])
async def test_a_wrong_checksum_of_the_server_fails_the_upload(command: Checksums) -> None:
    async with served_ftp(checksums=command) as (server, sink):
        await put(sink, "a.csv", BODY)
        upload = await sink.open("b.csv", ".b.part")
        await upload.write(BODY)
        with pytest.raises(Damaged, match="other bytes"):
            await upload.commit(sha256(b"other"))
        await upload.abort()
        assert names(server) == ["a.csv"]


@pytest.mark.slow
async def test_a_refused_login_is_for_good_and_said_without_the_password() -> None:
    async with FtpServer() as server:
        sink = FtpSink(FtpUrl.parse(server.url), server.user, "wrong-pa55")
        with pytest.raises(LoginRefused, match="530") as caught:
            await sink.stat("a.csv")
        assert "wrong-pa55" not in str(caught.value)
        await sink.close()


@pytest.mark.slow
async def test_a_certificate_that_is_not_trusted_is_for_good() -> None:
    async with FtpServer("explicit") as server:
        sink = FtpSink(FtpUrl.parse(server.url.partition("?")[0]), server.user, server.password)
        with pytest.raises(LoginRefused, match=r"not trusted.*\?ca="):
            await sink.stat("a.csv")
        await sink.close()


@pytest.mark.slow
async def test_a_folder_that_lacks_is_named() -> None:
    async with FtpServer() as server:
        sink = FtpSink(FtpUrl.parse(f"{server.url}/none"), server.user, server.password)
        with pytest.raises(ConfigError, match="make it"):
            await sink.stat("a.csv")
        await sink.close()


async def test_a_host_that_is_none_is_for_good() -> None:
    sink = FtpSink(FtpUrl.parse("ftp://no-such-host.invalid"), "ann", "")
    with pytest.raises((ConfigError, Unavailable), match="can't log in"):
        await sink.stat("a.csv")
    await sink.close()


@pytest.mark.slow
async def test_a_server_that_takes_no_more_is_given_up_after_its_time() -> None:
    async with served_ftp() as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        sink.set_timeout(1.0)
        await upload.write(b"x")
        server.pause()
        with pytest.raises(Unavailable):
            await write_for_ever(upload)
        server.resume()
        sink.set_timeout()
        await upload.abort()
        assert await sink.stat("a.csv") is None


@pytest.mark.slow
async def test_cancelled_while_a_server_takes_no_more_it_ends_at_once() -> None:
    async with served_ftp() as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        await upload.write(b"x")
        server.pause()
        task = asyncio.create_task(write_for_ever(upload))
        while not await stuck(upload, task):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.resume()
        await upload.abort()
        assert names(server) == []


async def stuck(upload, task) -> bool:  # type: ignore[no-untyped-def]
    """Whether a write has stood still for a while."""
    before = upload.sent_bytes
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.2)
    return bool(upload.sent_bytes == before)


async def write_for_ever(upload) -> None:  # type: ignore[no-untyped-def]
    while True:
        await upload.write(BODY)


def test_urls_name_folders_below_the_login_or_the_root() -> None:
    assert FtpUrl.parse("ftp://host/a/b/").folder == "a/b"
    assert FtpUrl.parse("ftp://host//a/b").folder == "/a/b"
    assert FtpUrl.parse("ftp://host").folder == ""
    assert FtpUrl.parse("ftps://host").port == 990
    assert str(FtpUrl.parse("ftpes://[::1]:2121/a%20b")) == "ftpes://[::1]:2121/a b"
