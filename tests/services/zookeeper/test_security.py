"""Digest ACLs and TLS."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from holdfast.errors import ConfigError, Unavailable
from holdfast.ports.coordinator import Member
from holdfast.services.zookeeper import session
from holdfast.services.zookeeper.address import ZooKeeperAddress, parse
from simulator.servers import certificate
from simulator.servers.loopback import HOST, free_port
from simulator.servers.zookeeper import ZooKeeperServer
from tests.services.zookeeper.conftest import Connect

TTL_S = 60.0
PATIENCE_S = 30.0
SECRET = "s3cret"
OTHER_HOST = "127.0.0.2"
A, B = (Member(f"member-{n}", f"node {n}", f"http://10.0.0.{i}:80") for i, n in enumerate("ab"))


# --- ACLs


@pytest.fixture
def owned(address: ZooKeeperAddress) -> ZooKeeperAddress:
    chroot = address.chroot.replace("holdfast", "owned", 1)  # what is above it is made, and owned, as well
    return replace(address, chroot=chroot, username="holdfast", password=SECRET)


@pytest.mark.slow
async def test_only_the_user_that_made_the_tree_is_let_in(connect: Connect, owned: ZooKeeperAddress) -> None:
    one, other = connect(owned), connect(owned)
    await one.join(A, TTL_S)
    await other.join(B, TTL_S)
    claim = await one.claim("s/k", B.id)
    assert await other.release(await one.transfer(claim, A.id)) is True
    anonymous = replace(owned, username="", password="")
    for unknown in (connect(anonymous), connect(replace(owned, password="wrong"))):
        with pytest.raises(ConfigError, match="belong to others"):
            await unknown.members()
        with pytest.raises(ConfigError, match="belong to others"):
            await unknown.join(A, TTL_S)
    plain = KazooClient(owned.servers + owned.chroot)
    plain.start()
    with pytest.raises(NoAuthError):
        plain.get_children("/services")
    plain.stop()
    plain.close()


async def test_the_password_is_in_no_log_and_no_error(
    connect: Connect,
    owned: ZooKeeperAddress,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.NOTSET)
    for name in ("kazoo", "kazoo.client", "holdfast.zookeeper"):
        caplog.set_level(logging.NOTSET, name)
    await connect(owned).join(A, TTL_S)
    monkeypatch.setattr(session, "CONNECT_S", 0.2)
    with pytest.raises(Unavailable) as caught:
        await connect(replace(owned, hosts=((HOST, free_port()),))).members()
    assert SECRET not in caplog.text
    assert SECRET not in str(caught.value) + repr(owned)


# --- TLS


@dataclass
class Tls:
    """Where the server is reached under TLS, and the files that it takes."""

    port: int
    certificate: Path
    key: Path

    def url(self, chroot: str, **files: Path) -> str:
        query = "&".join(f"{name}={path}" for name, path in files.items())
        return f"zookeeper://{HOST}:{self.port}{chroot}?{query}"


@pytest.fixture
async def tls(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> AsyncIterator[Tls]:
    """TLS in front of the server, for clients that show a certificate of the authority."""
    made, key = certificate.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    context.load_verify_locations(made)
    context.verify_mode = ssl.CERT_REQUIRED

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(HOST, zookeeper_server.port)
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    async with await asyncio.start_server(relay, HOST, 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        async with await asyncio.start_server(relay, OTHER_HOST, port, ssl=context):
            yield Tls(port, made, key)


@pytest.mark.slow
async def test_servers_are_spoken_to_under_tls(connect: Connect, address: ZooKeeperAddress, tls: Tls) -> None:
    url = tls.url(address.chroot, ca=tls.certificate, cert=tls.certificate, key=tls.key)
    under_tls, plain = connect(parse(url)), connect()
    await under_tls.join(A, TTL_S)
    claim = await plain.claim("s/k", A.id)
    assert await under_tls.lookup("s/k") == claim


# kazoo leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
async def test_servers_that_show_no_certificate_of_the_authority_are_not_spoken_to(
    connect: Connect,
    address: ZooKeeperAddress,
    tls: Tls,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "CONNECT_S", 0.5)
    other, _ = certificate.make(tmp_path_factory.mktemp("other"))
    good = parse(tls.url(address.chroot, ca=tls.certificate, cert=tls.certificate, key=tls.key))
    for bad in (replace(good, ca=str(other)), replace(good, hosts=((OTHER_HOST, tls.port),))):
        client, said = connect(bad), ""
        async with asyncio.timeout(PATIENCE_S):
            while "CERTIFICATE_VERIFY_FAILED" not in said:  # a handshake may take longer than one call waits
                with pytest.raises(Unavailable) as refusal:
                    await client.members()
                said = str(refusal.value)


async def test_files_for_tls_that_are_missing_are_named(connect: Connect, tmp_path: Path) -> None:
    url = f"zookeeper://{HOST}?ca={tmp_path / 'ca.pem'}"
    with pytest.raises(ConfigError, match="ca, cert and key are paths"):
        connect(parse(url))


def test_without_tls_no_authorities_are_read(address: ZooKeeperAddress, connect: Connect) -> None:
    """Reading the machine's own takes longer than the rest of many commands."""
    with mock.patch("ssl.create_default_context", side_effect=AssertionError):
        connect(address)
