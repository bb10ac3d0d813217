"""SFTP servers that refuse writes and logins, or have an unknown key."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncssh
import pytest

from holdfast.errors import ConfigError, InvalidMessage, LoginRefused, Unavailable
from holdfast.extend.tools import Backoff
from holdfast.reports import deliver_plan
from holdfast.reports.conformance.sink import held, put
from holdfast.reports.deliver import deliver_file
from holdfast.reports.deliver_plan import FileToDeliver
from holdfast.reports.ports.sink import Sink
from holdfast.reports.sinks.sftp.session import Login
from holdfast.reports.sinks.sftp.sink import SftpSink
from holdfast.reports.sinks.sftp.url import SftpUrl
from holdfast.system.clock import SystemClock
from tests.reports.sinks.serving import BODY, names, served_sftp


@pytest.mark.slow
async def test_a_write_that_is_refused_amid_others_leaves_no_hole_in_what_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The later writes were accepted, so the file's size didn't show the hole."""
    monkeypatch.setattr(deliver_plan, "MARK_BYTES", 1 << 20)
    async with served_sftp(refuses_at=(1 << 20) + 600_000) as (server, sink):

        @asynccontextmanager
        async def connect() -> AsyncIterator[Sink]:
            yield sink

        done = await deliver_file(
            FileToDeliver(name="a.csv", content="v1"),
            lambda: iter([BODY]),
            connect,
            SystemClock(),
            backoff=Backoff(first_s=0.0, max_s=0.0),
        )
        assert (done.tries, done.gone_on) == (2, 1 << 20)
        assert (server.files / "a.csv").read_bytes() == BODY


@pytest.mark.slow
async def test_who_may_not_log_in_learns_it_once() -> None:
    async with served_sftp() as (server, _):
        stranger = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
        for login in (
            Login(server.user, "wrong-pa55", known_hosts=server.known_hosts),
            Login(server.user, key=stranger, known_hosts=server.known_hosts),
        ):
            sink = SftpSink(SftpUrl.parse(server.url), login)
            with pytest.raises(LoginRefused) as caught:
                await sink.stat("a.csv")
            assert "wrong-pa55" not in str(caught.value)
            assert "pa55" not in repr(login)
            await sink.close()


@pytest.mark.slow
async def test_an_unknown_host_gets_no_password() -> None:
    async with served_sftp() as (server, _):
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        key = server.known_hosts.partition(" ")[2]
        for known, advice in (
            (f"[127.0.0.1]:{server.port} {other}", "its host key isn't the one in known_hosts"),
            (f"127.0.0.1 {other}", "its host key isn't the one in known_hosts"),
            (f"@revoked * {key}\n{server.known_hosts}", "is revoked for host 127.0.0.1: ask its owner"),
            (f"example.com {other}", "put its host key into the credential's known_hosts"),
        ):
            sink = SftpSink(SftpUrl.parse(server.url), Login(server.user, server.password, known_hosts=known))
            with pytest.raises(LoginRefused, match=advice):
                await sink.stat("a.csv")
            await sink.close()


@pytest.mark.slow
async def test_a_host_whose_key_is_of_another_kind_by_now_is_not_taken_for_an_outage() -> None:
    async with served_sftp() as (server, _):
        known = asyncssh.generate_private_key("ssh-rsa").export_public_key().decode()
        login = Login(server.user, server.password, known_hosts=f"[127.0.0.1]:{server.port} {known}")
        sink = SftpSink(SftpUrl.parse(server.url), login)

        async def ask_until_it_says_why() -> None:
            while True:
                with contextlib.suppress(Unavailable):  # it may hang up before
                    await sink.stat("a.csv")

        with pytest.raises(LoginRefused, match="its host key isn't the one in known_hosts"):
            await ask_until_it_says_why()
        await sink.close()


@pytest.mark.parametrize("fields", [{"key": "no key"}, {"known_hosts": "host ssh-ed25519 %%%"}])
async def test_a_credential_that_cannot_be_read_is_named(fields: dict[str, str]) -> None:
    sink = SftpSink(SftpUrl.parse("sftp://127.0.0.1:9"), Login("ann", **fields))
    with pytest.raises((ConfigError, Unavailable)):
        await sink.stat("a.csv")
    await sink.close()


@pytest.mark.slow
async def test_links_out_of_the_folder_are_refused() -> None:
    async with served_sftp() as (server, _):
        (server.files / "root").mkdir()
        (server.files / "other").mkdir()
        (server.files / "root" / "out").symlink_to("../other")
        login = Login(server.user, server.password, known_hosts=server.known_hosts)
        sink = SftpSink(SftpUrl.parse(f"{server.url}/root"), login)
        with pytest.raises(InvalidMessage, match="link"):
            await put(sink, "out/a.csv", b"x")
        await put(sink, "in/a.csv", b"x")
        assert await held(sink, "in/a.csv") == b"x"
        assert names(server) == ["a.csv"]
        await sink.close()
