"""Images in a registry: pushed and pulled, with and without credentials, and after connections that break."""

import asyncio
import base64
import contextlib
import itertools
import os
import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    LoginRefused,
    NotKnown,
    OperationRefused,
)
from holdfast.image import credentials
from holdfast.image import registry as registries
from holdfast.image.blobs import Blobs
from holdfast.image.oci import Descriptor, digest_of
from holdfast.image.registry import RegistryClient
from simulator.servers import DockerRegistryServer, programs
from simulator.servers.docker_registry import PASSWORD, USER
from tests.image.strict_registry import StrictRegistry

MIB = 1 << 20


class Cutting:
    """A proxy that counts the bytes that clients send, and cuts the connection after a number of them."""

    def __init__(self, port: int) -> None:
        self._backend = port
        self.sent = 0
        self.cut_after = [1 << 60]
        self.port = 0

    async def __aenter__(self) -> "Cutting":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._backend)
        back = asyncio.ensure_future(self._copy(theirs, writer))
        try:
            while data := await reader.read(1 << 16):
                self.sent += len(data)
                ours.write(data)
                await ours.drain()
                if self.cut_after and self.sent >= self.cut_after[0]:
                    self.cut_after.pop(0)
                    break
        except ConnectionError:
            pass
        back.cancel()
        for each in (ours, writer):
            each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "PAUSE_S", 0.05)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without credentials."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
async def server() -> AsyncIterator[DockerRegistryServer]:
    async with DockerRegistryServer() as server:
        yield server


@pytest.fixture
async def guarded() -> AsyncIterator[DockerRegistryServer]:
    async with DockerRegistryServer(login=True) as server:
        yield server


def blob(blobs: Blobs, size: int) -> tuple[Descriptor, Path]:
    digest = blobs.add(random.Random(size).randbytes(size))
    return Descriptor(media_type="application/octet-stream", digest=digest, size=size), blobs.path(digest)


@pytest.mark.slow
async def test_a_blob_comes_back_as_it_was_pushed(
    server: DockerRegistryServer, blobs: Blobs, tmp_path: Path
) -> None:
    descriptor, path = blob(blobs, 3 * MIB)
    async with RegistryClient(server.address, blobs) as registry:
        assert not await registry.has_blob("team/app", descriptor.digest)
        await registry.push_blob("team/app", descriptor, path)
        assert await registry.has_blob("team/app", descriptor.digest)
    other = Blobs(tmp_path / "other")
    async with RegistryClient(server.address, other) as registry:
        await registry.pull_blob("team/app", descriptor)
    assert digest_of(other.read(descriptor.digest)) == descriptor.digest


async def test_a_large_blob_goes_in_parts(
    server: DockerRegistryServer, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "PART_BYTES", MIB)
    descriptor, path = blob(blobs, 3 * MIB + 1)
    async with RegistryClient(server.address, blobs) as registry:
        await registry.push_blob("team/app", descriptor, path)
        assert registry.sent_bytes == descriptor.size
        assert await registry.has_blob("team/app", descriptor.digest)


@pytest.mark.nightly
async def test_an_upload_goes_on_in_another_process_after_the_parts_that_were_answered(
    server: DockerRegistryServer, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "PART_BYTES", 2 * MIB)
    descriptor, path = blob(blobs, 16 * MIB)
    note, writes = blobs.note, itertools.count(1)

    class EndingNote(type(Path())):  # type: ignore[misc]
        """The process ends once the begin and four parts of an upload are noted in it."""

        def write_text(self, *args: Any, **options: Any) -> int:
            written: int = super().write_text(*args, **options)
            if next(writes) == 5:
                raise KeyboardInterrupt
            return written

    async with RegistryClient(server.address, blobs) as registry:
        with monkeypatch.context() as patch:
            patch.setattr(blobs, "note", lambda *name: EndingNote(note(*name)))
            with pytest.raises(KeyboardInterrupt):
                await registry.push_blob("team/app", descriptor, path)
        assert registry.sent_bytes == 8 * MIB
    async with RegistryClient(server.address, blobs) as registry:
        await registry.push_blob("team/app", descriptor, path)
        assert registry.sent_bytes == 8 * MIB
        assert await registry.has_blob("team/app", descriptor.digest)


@pytest.mark.nightly
async def test_an_upload_that_the_registry_has_given_up_begins_again(
    server: DockerRegistryServer, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "PART_BYTES", 2 * MIB)
    descriptor, path = blob(blobs, 16 * MIB)
    async with Cutting(server.port) as proxy, RegistryClient(f"127.0.0.1:{proxy.port}", blobs) as registry:
        proxy.cut_after = [8 * MIB]  # within a part, after which this registry forgets the upload
        await registry.push_blob("team/app", descriptor, path)
        assert not proxy.cut_after
        assert await registry.has_blob("team/app", descriptor.digest)
        assert proxy.sent < 1.6 * descriptor.size


async def test_a_login_that_is_wanted_and_not_kept_is_told(
    guarded: DockerRegistryServer, blobs: Blobs
) -> None:
    descriptor, path = blob(blobs, 100)
    async with RegistryClient(guarded.address, blobs) as registry:
        with pytest.raises(LoginRefused, match=f"docker login {guarded.address}"):
            await registry.push_blob("team/app", descriptor, path)


def docker_config(home: Path, server: DockerRegistryServer, password: str = PASSWORD) -> None:
    (home / ".docker").mkdir()
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (home / ".docker/config.json").write_bytes(
        msgspec.json.encode({"auths": {server.address: {"auth": auth}}})
    )


def podman_config(home: Path, server: DockerRegistryServer) -> None:
    (home / ".config/containers").mkdir(parents=True)
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    kept = {"auths": {f"{server.address}/team": {"auth": auth}, server.address: {"auth": "d3Jvbmc6d3Jvbmc="}}}
    (home / ".config/containers/auth.json").write_bytes(msgspec.json.encode(kept))


def helper_config(home: Path, server: DockerRegistryServer, setting: str = "credHelpers") -> None:
    (home / ".docker").mkdir()
    named: Any = {server.address: "test"} if setting == "credHelpers" else "test"
    (home / ".docker/config.json").write_bytes(msgspec.json.encode({setting: named}))
    program = home / "docker-credential-test"
    program.write_text(
        f'#!/bin/sh\nread host\n[ "$1 $host" = "get {server.address}" ] || exit 1\n'
        f'echo \'{{"ServerURL": "x", "Username": "{USER}", "Secret": "{PASSWORD}"}}\'\n'
    )
    program.chmod(0o755)


def store_config(home: Path, server: DockerRegistryServer) -> None:
    helper_config(home, server, "credsStore")


@pytest.mark.parametrize("keep", [docker_config, podman_config, helper_config, store_config])
async def test_credentials_are_found_where_docker_and_podman_keep_them(
    guarded: DockerRegistryServer, blobs: Blobs, home: Path, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(home, guarded)
    monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
    descriptor, path = blob(blobs, 100)
    async with RegistryClient(guarded.address, blobs) as registry:
        await registry.push_blob("team/app", descriptor, path)
        assert await registry.has_blob("team/app", descriptor.digest)


async def test_a_login_that_is_refused_is_told(
    guarded: DockerRegistryServer, blobs: Blobs, home: Path
) -> None:
    docker_config(home, guarded, "wrong")
    descriptor, path = blob(blobs, 100)
    async with RegistryClient(guarded.address, blobs) as registry:
        with pytest.raises(HoldfastError, match="docker login"):
            await registry.push_blob("team/app", descriptor, path)


async def test_what_is_not_there_is_not_known(server: DockerRegistryServer, blobs: Blobs) -> None:
    async with RegistryClient(server.address, blobs) as registry:
        with pytest.raises(NotKnown, match="has no team/app:1"):
            await registry.manifest("team/app", "1")


async def test_a_blob_of_another_repository_is_taken_from_there(
    server: DockerRegistryServer, blobs: Blobs
) -> None:
    descriptor, path = blob(blobs, MIB)
    async with RegistryClient(server.address, blobs) as registry:
        await registry.push_blob("base", descriptor, path)
        sent = registry.sent_bytes
        assert await registry.mount("team/app", descriptor.digest, "base")
        assert not await registry.mount("team/app", digest_of(b"no such"), "base")
        assert registry.sent_bytes == sent
        assert await registry.has_blob("team/app", descriptor.digest)


def skopeo(*arguments: str) -> bytes:
    return subprocess.run([programs.find("skopeo"), *arguments], check=True, capture_output=True).stdout


@pytest.mark.slow
async def test_a_broken_upload_goes_on_where_the_registry_has_it(blobs: Blobs) -> None:
    descriptor, path = blob(blobs, 16 * MIB)
    async with StrictRegistry() as strict, RegistryClient(strict.address, blobs) as registry:
        strict.cut_at = 8 * MIB
        await registry.push_blob("team/app", descriptor, path)
        assert strict.blobs["team/app", descriptor.digest] == path.read_bytes()
        assert strict.received == descriptor.size  # no byte was stored twice


async def test_a_token_that_expires_in_an_upload_is_renewed(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "PART_BYTES", MIB)
    descriptor, path = blob(blobs, 8 * MIB)
    async with StrictRegistry(uses_a_token=2) as strict, RegistryClient(strict.address, blobs) as registry:
        await registry.push_blob("team/app", descriptor, path)
        assert strict.blobs["team/app", descriptor.digest] == path.read_bytes()
        assert len(strict.scopes) >= 5


async def test_what_is_taken_from_another_repository_needs_a_token_for_both(blobs: Blobs) -> None:
    descriptor, path = blob(blobs, 100)
    async with StrictRegistry() as strict, RegistryClient(strict.address, blobs) as registry:
        await registry.push_blob("base", descriptor, path)
        strict.scopes.clear()
        assert await registry.mount("team/app", descriptor.digest, "base")
        assert strict.scopes == ["repository:team/app:pull,push", "repository:base:pull"]


async def test_a_storage_elsewhere_gets_no_credentials_and_a_broken_download_goes_on(
    blobs: Blobs, tmp_path: Path
) -> None:
    descriptor, path = blob(blobs, MIB)
    other = Blobs(tmp_path / "other")
    async with StrictRegistry() as strict:
        async with RegistryClient(strict.address, blobs) as registry:
            await registry.push_blob("team/app", descriptor, path)
        async with RegistryClient(strict.address, other) as registry:
            await registry.pull_blob("team/app", descriptor)
        assert strict.elsewhere == [None, None]
    assert other.read(descriptor.digest) == path.read_bytes()


async def test_an_identity_token_is_exchanged(blobs: Blobs, home: Path) -> None:
    descriptor, path = blob(blobs, 100)
    async with StrictRegistry(identity_token="who-i-am") as strict:
        (home / ".docker").mkdir()
        kept = {"auths": {strict.address: {"identitytoken": "who-i-am"}}}
        (home / ".docker/config.json").write_bytes(msgspec.json.encode(kept))
        async with RegistryClient(strict.address, blobs) as registry:
            await registry.push_blob("team/app", descriptor, path)
        assert ("team/app", descriptor.digest) in strict.blobs


@pytest.mark.nightly
async def test_several_blobs_at_once_go_to_a_registry_that_asks_for_a_password(
    guarded: DockerRegistryServer, blobs: Blobs, home: Path
) -> None:
    docker_config(home, guarded)
    held = [blob(blobs, 100 + number) for number in range(6)]
    async with RegistryClient(guarded.address, blobs) as registry:
        there = await asyncio.gather(*(registry.has_blob("team/app", each.digest) for each, _ in held))
        assert there == [False] * 6
        async with asyncio.TaskGroup() as group:
            for descriptor, path in held:
                group.create_task(registry.push_blob("team/app", descriptor, path))
        for descriptor, _ in held:
            assert await registry.has_blob("team/app", descriptor.digest)


async def test_the_passwords_of_netrc_are_sent_to_no_host(
    blobs: Blobs, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = home / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    descriptor, path = blob(blobs, MIB)
    other = Blobs(tmp_path / "other")
    async with StrictRegistry() as strict:
        async with RegistryClient(strict.address, blobs) as registry:
            await registry.push_blob("team/app", descriptor, path)
        async with RegistryClient(strict.address, other) as registry:
            await registry.pull_blob("team/app", descriptor)
        assert strict.elsewhere == [None, None]


async def test_a_proxy_of_the_environment_is_asked_but_for_what_goes_without_one(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    digest = digest_of(b"")
    async with (
        await asyncio.start_server(proxy, "127.0.0.1", 0) as server,
        StrictRegistry() as strict,
    ):
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("http_proxy", f"http://ann:secret@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with RegistryClient("registry.example", blobs, insecure=True) as registry:
            assert not await registry.has_blob("team/app", digest)
        assert asked[0].startswith(b"HEAD http://registry.example/v2/team/app/blobs/")
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"ann:secret") in asked[0]
        async with RegistryClient(strict.address, blobs) as registry:
            assert not await registry.has_blob("team/app", digest)
        assert len(asked) == 1


async def test_a_push_goes_on_where_what_only_tidies_or_asks_gets_no_answer(blobs: Blobs) -> None:
    descriptor, path = blob(blobs, 100)
    async with StrictRegistry() as strict, RegistryClient(strict.address, blobs) as registry:
        strict.unanswered = {"DELETE", "GET"}
        assert not await registry.mount("team/app", descriptor.digest, "base")
        note = blobs.note("upload", f"{strict.address}/team/app@{descriptor.digest}".encode())
        note.write_text(f"http://{strict.address}/v2/team/app/blobs/uploads/of-before")
        await registry.push_blob("team/app", descriptor, path)
        assert ("team/app", descriptor.digest) in strict.blobs


def odd(headers: dict[str, str], token: str = "") -> web.Application:
    """A server that answers each request so; ``HOST`` in headers is its own address."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/token":
            return web.Response(text=token)
        said = {name: value.replace("HOST", request.host) for name, value in headers.items()}
        if "WWW-Authenticate" in said:
            return web.Response(status=401, headers=said)
        return web.Response(status=202 if request.method == "POST" else 307, headers=said)

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    return app


LOGIN = {"WWW-Authenticate": 'Bearer realm="http://HOST/token"'}


@pytest.mark.parametrize(
    "app, why",
    [
        (odd({}), "its header Location is ''"),
        (odd({"Location": "ftp://elsewhere/x"}), "its header Location is 'ftp"),
        (odd({"Location": "http://[::1/x"}), "its header Location is 'http"),
        (odd({"WWW-Authenticate": 'Bearer realm="nowhere"'}), "a login at 'nowhere', which isn't a URL"),
        (odd(LOGIN, token="<html>"), "without a token"),
        (odd(LOGIN, token="[]"), "without a token"),
        (odd(LOGIN, token='{"expires_in": 5}'), "without a token"),
    ],
)
async def test_an_odd_answer_of_a_registry_is_told(blobs: Blobs, app: web.Application, why: str) -> None:
    descriptor, path = blob(blobs, 100)
    missing = Descriptor(media_type="application/octet-stream", digest=digest_of(b"none"), size=4)
    async with TestServer(app) as server, RegistryClient(f"127.0.0.1:{server.port}", blobs) as registry:
        with pytest.raises(OperationRefused, match=why):
            await registry.push_blob("team/app", descriptor, path)
        with pytest.raises(OperationRefused, match=why):
            await registry.pull_blob("team/app", missing)


@pytest.mark.parametrize("kept", ["[]", '{"auths": []}', '{"auths": {"h": 1}}', '{"credsStore": 1}', "{"])
async def test_a_file_of_credentials_that_is_none_is_told(home: Path, kept: str) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(kept)
    with pytest.raises(ConfigError, match=r"config\.json, a file of credentials, can't be read"):
        credentials.find("registry.example", "team/app")


@pytest.mark.parametrize("said, mode", [("nothing", 0o755), ("{}", 0o755), ("[]", 0o755), ("", 0o644)])
async def test_a_helper_that_tells_no_login_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str, mode: int
) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text('{"credsStore": "test"}')
    program = home / "docker-credential-test"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(mode)
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(ConfigError, match="docker-credential-test"):
        credentials.find("registry.example", "team/app")
