"""Servers that refuse, lie, are full or down: the same for FTP and SFTP."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.reports.conformance.sink import held, put
from holdfast.reports.sinks.ftp.sink import FtpSink
from holdfast.reports.sinks.ftp.url import FtpUrl
from holdfast.reports.sinks.sftp.session import Login
from holdfast.reports.sinks.sftp.sink import SftpSink
from holdfast.reports.sinks.sftp.url import SftpUrl
from tests.reports.sinks.serving import BODY, names, put_all, served_ftp, served_sftp

KINDS = pytest.mark.parametrize("served", [served_ftp, served_sftp], ids=["ftp", "sftp"])


@KINDS
@pytest.mark.slow
async def test_a_full_disk_is_temporary_and_leaves_nothing_once_aborted(served: Any) -> None:
    async with served(full_after=1_000_000) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(Unavailable, match=r"426|No space left"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []
        await put(sink, "b.csv", b"small")
        assert names(server) == ["b.csv"]


@KINDS
@pytest.mark.slow
async def test_a_server_that_cannot_rename_is_named_with_the_remedy(served: Any) -> None:
    async with served(pinned=True) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(ConfigError, match=r"'a\.csv' in its place.*in_place"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []
        await put_all(await sink.open("a.csv", "a.csv"))
        assert await held(sink, "a.csv") == BODY


@KINDS
@pytest.mark.slow
async def test_a_folder_without_permission_to_write_is_a_config_error(served: Any) -> None:
    async with served(read_only=True) as (_, sink):
        for name in ("a.csv", "new/folder/a.csv"):
            with pytest.raises(ConfigError, match=r"can't write .*(550|Permission denied)"):
                await put(sink, name, b"x")


@KINDS
@pytest.mark.slow
@pytest.mark.parametrize("lies_by", [-1, 1])
async def test_a_server_that_lies_about_sizes_is_not_believed(served: Any, lies_by: int) -> None:
    async with served(lies_by=lies_by) as (server, sink):
        upload = await sink.open("a.csv", ".a.part")
        with pytest.raises(Damaged, match=f"has {len(BODY) + lies_by} bytes"):
            await put_all(upload)
        await upload.abort()
        assert names(server) == []


@pytest.mark.parametrize(
    "sink",
    [
        lambda: FtpSink(FtpUrl.parse("ftp://127.0.0.1:9"), "ann", "x"),
        lambda: SftpSink(SftpUrl.parse("sftp://127.0.0.1:9"), Login("ann", "x")),
    ],
    ids=["ftp", "sftp"],
)
async def test_a_server_that_is_down_is_unavailable(sink: Any) -> None:
    connection = sink()
    with pytest.raises(Unavailable, match="can't log in"):
        await connection.stat("a.csv")
    await connection.close()


@pytest.mark.parametrize(
    "url, error",
    [
        ("ftp://ann:pa55@host/x", "name a credential"),
        ("ftp:///x", "must be an FTP server's URL"),
        ("ftp://host/x?mode=other", "must be an FTP server's URL"),
        ("ftp://host/x?speed=1", "must be an FTP server's URL"),
        ("ftp://host/a%0d%0aDELE%20b", "must be an FTP server's URL"),
        ("ftp://host:x/", "must be an FTP server's URL"),
        ("ftp://host/?encoding=klingon", "must be an FTP server's URL"),
        ("gopher://host/", "must be an FTP server's URL"),
        ("sftp://ann:pa55@host/x", "name a credential"),
        ("sftp:///x", "must be an SFTP server's URL"),
        ("sftp://host/x?a=1", "must be an SFTP server's URL"),
        ("sftp://host/a%0ab", "must be an SFTP server's URL"),
    ],
)
def test_bad_urls_are_refused_without_their_password(url: str, error: str) -> None:
    parse: Any = SftpUrl.parse if url.startswith("sftp") else FtpUrl.parse
    with pytest.raises(ConfigError, match=error) as caught:
        parse(url)
    assert "pa55" not in str(caught.value)


def test_another_scheme_is_no_sftp_url() -> None:
    with pytest.raises(ConfigError, match="destination must be"):
        SftpUrl.parse("scp://host/")
