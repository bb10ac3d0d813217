"""FTP servers that refuse, lie, are full, or fall silent."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.errors import ConfigError, Damaged, LoginRefused, Unavailable
from holdfast.reports.conformance.sink import held, part, put, sha256
from holdfast.reports.sinks.ftp.control import TLS_BYTES, send
from holdfast.reports.sinks.ftp.sink import FtpSink
from holdfast.reports.sinks.ftp.url import FtpUrl
from simulator.servers import FtpFaults, FtpServer
from simulator.servers.ftp import Checksums

BODY = part(1, 3_000_000)


@asynccontextmanager
async def served(
    faults: FtpFaults | None = None, *, checksums: Checksums = ""
) -> AsyncIterator[tuple[FtpServer, FtpSink]]:
    async with FtpServer(faults=faults, checksums=checksums) as server:
        sink = FtpSink(FtpUrl.parse(server.url), server.user, server.password)
        try:
            yield server, sink
        finally:
            await sink.close()


def names(server: FtpServer) -> list[str]:
    return sorted(path.name for path in server.files.rglob("*") if path.is_file())


@pytest.mark.slow
async def test_a_full_disk_is_passing_and_leaves_nothing_once_aborted() -> None:
    async with served(FtpFaults(full_after=1_000_000)) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(Unavailable, match="426"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []
        await put(sink, "b.csv", b"small")
        assert names(server) == ["b.csv"]


async def put_all(upload) -> None:  # type: ignore[no-untyped-def]
    for start in range(0, len(BODY), 100_000):
        await upload.write(BODY[start : start + 100_000])
    await upload.commit(sha256(BODY))


class Recorder(ssl.SSLSocket):
    """Takes all that it is given, and notes how much that is."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def send(self, data: Any, flags: int = 0) -> int:
        self.sizes.append(len(data))
        return len(data)


def test_over_tls_little_is_sent_at_once_for_all_of_it_must_go_within_the_timeout() -> None:
    connection = Recorder()
    send(connection, bytes(2 * TLS_BYTES + 1))
    assert connection.sizes == [TLS_BYTES, TLS_BYTES, 1]


@pytest.mark.slow
async def test_a_server_that_cannot_rename_is_named_with_what_helps() -> None:
    async with served(FtpFaults(pinned=True)) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(ConfigError, match=r"'a\.csv' in its place.*in_place"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []
        await put_all(await sink.open("a.csv", "a.csv"))
        assert await held(sink, "a.csv") == BODY


@pytest.mark.slow
async def test_a_folder_that_may_not_be_written_to_is_for_good() -> None:
    async with served(FtpFaults(read_only=True)) as (_, sink):
        with pytest.raises(ConfigError, match=r"can't write 'a\.csv'.*550"):
            await put(sink, "a.csv", b"x")
        with pytest.raises(ConfigError, match="550"):
            await put(sink, "new/folder/a.csv", b"x")


@pytest.mark.slow
@pytest.mark.parametrize("lies_by", [-1, 1])
async def test_a_server_that_lies_about_sizes_is_not_believed(lies_by: int) -> None:
    async with served(FtpFaults(lies_by=lies_by)) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(Damaged, match=f"has {len(BODY) + lies_by} bytes"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []


@pytest.mark.slow
async def test_a_server_that_tells_no_sizes_is_refused() -> None:
    async with served(FtpFaults(bare=True)) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(ConfigError, match="neither SIZE nor MLST"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []


@pytest.mark.slow
async def test_a_server_that_renames_over_nothing_is_helped() -> None:
    async with served(FtpFaults(keeps=True)) as (server, sink):
        for body in (b"one", b"two"):
            await put(sink, "a.csv", body)
            assert await held(sink, "a.csv") == body
        assert names(server) == ["a.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["XSHA256", "HASH"])
async def test_a_wrong_checksum_of_the_server_fails_the_upload(command: Checksums) -> None:
    async with served(checksums=command) as (server, sink):
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


async def test_an_ftp_server_that_is_down_is_unavailable() -> None:
    server = FtpServer()
    sink = FtpSink(FtpUrl.parse(server.url), server.user, server.password)
    with pytest.raises(Unavailable, match="can't log in"):
        await sink.stat("a.csv")
    await sink.close()


async def test_a_host_that_is_none_is_for_good() -> None:
    sink = FtpSink(FtpUrl.parse("ftp://no-such-host.invalid"), "ann", "")
    with pytest.raises((ConfigError, Unavailable), match="can't log in"):
        await sink.stat("a.csv")
    await sink.close()


@pytest.mark.slow
async def test_a_server_that_takes_no_more_is_given_up_after_its_time() -> None:
    async with served() as (server, sink):
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
    async with served() as (server, sink):
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


@pytest.mark.parametrize(
    "url, is_said",
    [
        ("ftp://ann:pa55@host/x", "name a credential"),
        ("ftp:///x", "must be an FTP server's URL"),
        ("ftp://host/x?mode=other", "must be an FTP server's URL"),
        ("ftp://host/x?speed=1", "must be an FTP server's URL"),
        ("ftp://host/a%0d%0aDELE%20b", "must be an FTP server's URL"),
        ("ftp://host:x/", "must be an FTP server's URL"),
        ("ftp://host/?encoding=klingon", "must be an FTP server's URL"),
        ("gopher://host/", "must be an FTP server's URL"),
    ],
)
def test_bad_urls_are_refused_without_their_password(url: str, is_said: str) -> None:
    with pytest.raises(ConfigError, match=is_said) as caught:
        FtpUrl.parse(url)
    assert "pa55" not in str(caught.value)


def test_urls_name_folders_below_the_login_or_the_root() -> None:
    assert FtpUrl.parse("ftp://host/a/b/").folder == "a/b"
    assert FtpUrl.parse("ftp://host//a/b").folder == "/a/b"
    assert FtpUrl.parse("ftp://host").folder == ""
    assert FtpUrl.parse("ftps://host").port == 990
    assert str(FtpUrl.parse("ftpes://[::1]:2121/a%20b")) == "ftpes://[::1]:2121/a b"
