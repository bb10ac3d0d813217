"""The data plane by HAProxy, with real nodes: straight to owners where they are known, no client error where
they die, and no way to mislead it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict
from structlog.testing import capture_logs

from holdfast.errors import ConfigError
from holdfast.gateway.haproxy import admin
from holdfast.gateway.haproxy.binary import Build
from holdfast.gateway.haproxy.config import HaproxyFiles
from holdfast.gateway.haproxy.process import HaproxyProcess
from holdfast.gateway.listen import Tls
from holdfast.system.clock import SystemClock
from simulator.servers import certificate
from tests.gateway.haproxy.conftest import JSON, SECRET, Load, MakeSetting, Setting
from tests.nodes.cluster import until

STALL_MAX_S = 15.0
"""Shorter than any timeout. The benchmark measures how long it really takes."""


@pytest.mark.slow
async def test_an_unknown_stream_goes_by_the_fallback_once_and_straight_afterwards(
    make_setting: MakeSetting,
) -> None:
    setting = await make_setting("a", "b")
    assert (await setting.send("cam", 0))[0] == 200
    assert (await setting.by_fallback(), await setting.straight()) == (1, 0)
    await until(lambda: is_known(setting, "cam"), "the route is known")
    for n, headers in enumerate(({}, {"X-Stream": "chain"}), 1):
        assert (await setting.send("cam", n, headers=headers))[0] == 200
    assert (await setting.send("cam", 3, "/process/cam?stream=chain"))[0] == 200
    assert await setting.straight() == 3
    assert await setting.by_fallback_in_the_end() == 0


async def is_known(setting: Setting, key: str) -> bool:
    """True if HAProxy has a route for a key."""
    child = setting.plane.child
    assert child is not None
    files = child.files
    return "found=yes" in await admin.ask(files.admin, f"get map {files.routes} /process/{key}")


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_an_owner_that_ends_under_load_is_no_error(
    make_setting: MakeSetting, end: signal.Signals
) -> None:
    setting = await make_setting("a", "b")
    async with Load(setting, 12) as load:
        await load.more(20)
        before = await setting.straight()
        setting.cluster.nodes["a"].signal(end)
        await load.more(40)
    assert await setting.straight() > before
    assert load.worst_s < STALL_MAX_S


@pytest.mark.nightly
async def test_an_owner_that_is_paused_past_its_session_is_no_error(make_setting: MakeSetting) -> None:
    setting = await make_setting("a", "b", ttl_s=3.0, renew_s=0.5)
    async with Load(setting, 12) as load:
        await load.more(10)
        setting.cluster.nodes["a"].signal(signal.SIGSTOP)
        await load.more(40)
        setting.cluster.nodes["a"].signal(signal.SIGCONT)
        await load.more(20)
    assert load.worst_s < 3.0 + STALL_MAX_S


@pytest.mark.slow
async def test_a_reload_under_load_drops_nothing_and_a_member_joins(make_setting: MakeSetting) -> None:
    setting = await make_setting("a", options={"servers": 1})
    first = setting.pid
    async with Load(setting, 12) as load:
        await load.more(10)
        for _ in range(3):
            await setting.plane.reload()
            await load.more(5)
        await setting.cluster.start("b")  # there is no server left for it
        await until(lambda: setting.plane.reloads >= 4, "more servers were made")
        await load.more(10)
    assert setting.pid != first
    assert setting.plane.restarts == 0
    for n in range(20):
        assert (await setting.send(f"later-{n}", 0))[0] == 200
    assert await setting.cluster.claims("b")


@pytest.mark.slow
async def test_a_haproxy_that_dies_is_started_anew_while_clients_wait(make_setting: MakeSetting) -> None:
    setting = await make_setting("a")
    assert (await setting.send("cam", 0))[0] == 200
    first = setting.pid
    await setting.client.close()  # open connections end with it
    async with aiohttp.ClientSession() as client:
        os.kill(first, signal.SIGKILL)
        setting.client = client
        for n in range(1, 20):
            assert (await setting.send("cam", n))[0] == 200
    assert setting.pid != first


@pytest.mark.nightly
async def test_a_haproxy_starts_where_the_pages_of_its_errors_were_deleted_as_old(
    make_setting: MakeSetting,
) -> None:
    setting = await make_setting("a")
    child = setting.plane.child
    assert child is not None
    pages = list(child.files.folder.glob("*.http"))
    assert pages
    for page in pages:
        page.unlink()
    await setting.plane.reload()
    assert setting.plane.reloads == 1
    assert (await setting.send("cam", 0))[0] == 200


@pytest.mark.slow
async def test_a_wrong_route_is_put_right(make_setting: MakeSetting) -> None:
    """A small body is sent again immediately. For a large one the client gets an error, and the next one
    arrives."""
    setting = await make_setting("a", "b", options={"replay_bytes": 10_000})
    url = f"{setting.gateway.address}/process/cam"
    assert (await setting.send("cam", 0))[0] == 200
    await until(lambda: is_known(setting, "cam"), "the route is known")
    route = setting.gateway.routes.get("chain/cam")
    assert route is not None
    await mislead(setting, "cam")
    assert (await setting.send("cam", 1))[0] == 200
    body = json.dumps({"key": "cam", "n": 2}).encode() + b" " * 30_000
    for status in (503, 200):
        async with setting.client.post(url, data=body, headers=JSON) as response:
            assert response.status == status, await response.text()
            assert response.headers["X-Owner"] == route.member
            assert response.headers.get("Retry-After") == ("1" if status == 503 else None)
            assert "X-Owner-Address" not in response.headers, "that is for gateways"


async def mislead(setting: Setting, key: str) -> None:
    """Have HAProxy take another node for the owner."""
    child = setting.plane.child
    assert child is not None
    said = await admin.ask(child.files.admin, f"get map {child.files.routes} /process/{key}")
    wrong = "s2" if 'value="s1"' in said else "s1"
    await admin.add(child.files.admin, child.files.recent, [(f"/process/{key}", wrong)])


ODD = [
    "/process/a%62c",  # abc, in other words
    "/process/%61bc",
    "/process/abc?stream=%63hain",
    "/process/abc?x=1&stream=chain",
    "http://[::1]/process/abc",
]


@pytest.mark.slow
async def test_a_stream_that_is_named_oddly_is_the_same_stream(make_setting: MakeSetting) -> None:
    setting = await make_setting("a", "b")
    assert (await setting.send("abc", 0))[0] == 200
    await until(lambda: is_known(setting, "abc"), "the route is known")
    host, port = setting.gateway.address.removeprefix("http://").split(":")
    for n, target in enumerate(ODD, 1):
        body = json.dumps({"key": "abc", "n": n})
        head = f"POST {target} HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
        said = await raw(host, port, f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}")
        assert said.startswith(b"HTTP/1.1 200"), (target, said)
        assert f'"n":{n}'.encode() in said
    for key, path in {
        "ä/b c": "/process/%C3%A4%2Fb%20c",
        "x;y": "/process/x;y",
        "~!()'": "/process/~!()'",
    }.items():
        for n in range(3):
            status, said = await setting.send(key, n, path)
            assert (status, said["n"]) == (200, n)


async def raw(host: str, port: str, said: str) -> bytes:
    """What is answered to raw bytes on one connection."""
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(said.encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.slow
async def test_headers_of_a_client_mislead_nobody(make_setting: MakeSetting) -> None:
    setting = await make_setting("a", "b")
    for key in ("mine", "theirs"):
        assert (await setting.send(key, 0))[0] == 200
    routes = dict(setting.gateway.routes)
    other = next(m for m in setting.gateway.view.members if m != routes["chain/mine"].member)
    poison = {
        "X-Owner": other,
        "X-Owner-Address": "http://127.0.0.1:9",
        "X-Epoch": "999999",
        "X-Data-Plane": "no-421",
        "Authorization": "Bearer wrong",
        "X-Request-Id": "mine-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    url = f"{setting.gateway.address}/process/mine"
    for n in (1, 2):
        body = json.dumps({"key": "mine", "n": n}).encode()
        headers = poison | {"Content-Type": "application/json"}
        async with setting.client.post(url, data=body, headers=headers) as response:
            assert response.status == 200
            assert response.headers["X-Owner"] == routes["chain/mine"].member
            assert (response.headers["X-Request-Id"], response.headers["traceparent"]) == (
                "mine-1",
                poison["traceparent"],
            )
    assert dict(setting.gateway.routes) == routes
    two = CIMultiDict([("X-Stream", "chain"), ("X-Stream", "other")])
    body = json.dumps({"key": "mine", "n": 3}).encode()
    async with setting.client.post(url, data=body, headers=two) as response:
        assert response.status == 400
    assert (await setting.send("mine", 3, headers={"X-Stream": "other"}))[0] == 404


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """An untrusted certificate."""
    return Tls(*certificate.make(tmp_path))


@pytest.mark.slow
async def test_a_renewed_certificate_is_shown_to_clients_and_a_wrong_one_is_not(
    make_setting: MakeSetting, tls: Tls, tmp_path: Path
) -> None:
    with capture_logs() as logged:
        setting = await make_setting("a", tls=tls)
        place = ("127.0.0.1", int(setting.gateway.address.rpartition(":")[2]))
        before = tls.cert.read_text()
        (tmp_path / "renewed").mkdir()
        renewed, key = certificate.make(tmp_path / "renewed")

        async def shown() -> str:
            return (await asyncio.to_thread(ssl.get_server_certificate, place)).strip()

        assert await shown() == before.strip()
        tls.cert.write_text(renewed.read_text())  # without its key
        errors = "cannot read certificates"
        await until(lambda: errors in [entry["event"] for entry in logged], errors)
        assert (setting.plane.reloads, await shown()) == (0, before.strip())
        tls.key.write_text(key.read_text())
        await until(lambda: setting.plane.reloads == 1, "HAProxy has read it")

        async def is_new() -> bool:
            return await shown() == renewed.read_text().strip()

        await until(is_new, "the new process answers")
        assert (await setting.send("cam", 0))[0] == 200


@pytest.mark.nightly
async def test_a_renewed_certificate_is_tried_until_a_haproxy_has_it(
    make_setting: MakeSetting, tls: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = await make_setting("a", tls=tls)
    place = ("127.0.0.1", int(setting.gateway.address.rpartition(":")[2]))
    start, failed = HaproxyProcess.start, asyncio.Event()

    async def fail_first(*args: Any) -> HaproxyProcess:
        if failed.is_set():
            return await start(*args)
        failed.set()
        raise ConfigError("HAProxy does not start: no memory")

    monkeypatch.setattr(HaproxyProcess, "start", fail_first)
    (tmp_path / "renewed").mkdir()
    renewed, key = certificate.make(tmp_path / "renewed")
    tls.key.write_text(key.read_text())
    tls.cert.write_text(renewed.read_text())
    await failed.wait()

    async def is_shown() -> bool:
        shown = await asyncio.to_thread(ssl.get_server_certificate, place)
        return shown.strip() == renewed.read_text().strip()

    await until(is_shown, "the renewed one is shown")


async def test_a_python_that_can_t_run_haproxy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "python"
    closed.touch(0o600)
    monkeypatch.setattr(sys, "executable", str(closed))
    build, files = Build("/usr/sbin/haproxy", (3, 0, 0)), HaproxyFiles.of(tmp_path, 1)
    with pytest.raises(ConfigError, match=f"HAProxy is not started: can't run {closed}: "):
        await HaproxyProcess.start(build, files, [], {}, SystemClock(), None)


def test_files_of_tls_that_vanish_meanwhile_are_refused(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tls, "context", lambda its: its.key.unlink())
    with pytest.raises(ConfigError, match="tls-key can't be read"):
        tls.pem()


@pytest.mark.slow
async def test_requests_and_health_checks_pass_by_tls(make_setting: MakeSetting, tls: Tls) -> None:
    setting = await make_setting("a", tls=tls)
    assert setting.gateway.address.startswith("https://")
    for n in range(3):
        assert (await setting.send("cam", n))[0] == 200
    for path in ("/healthz", "/readyz"):
        async with setting.client.get(f"{setting.gateway.address}{path}") as response:
            assert response.status == 200


@pytest.mark.slow
async def test_an_empty_header_names_no_stream(make_setting: MakeSetting) -> None:
    """As for nodes: the parameter still counts, and HAProxy still knows the way."""
    setting = await make_setting("a", app="both")
    named, empty = "/process/cam?stream=chain", {"X-Stream": ""}
    assert (await setting.send("cam", 0, named))[0] == 200
    await until(lambda: is_known(setting, "cam?stream=chain"), "the route is known")
    assert (await setting.send("cam", 1, named, empty))[0] == 200
    assert await setting.straight() == 1
    assert (await setting.send("cam", 2, headers=empty))[0] == 404


@pytest.mark.slow
async def test_a_second_stream_is_told_apart_from_then_on(make_setting: MakeSetting) -> None:
    """What need not be named where there is only one must be where there are two."""
    setting = await make_setting("a")
    for n, headers in enumerate(({}, {}, {"X-Stream": "chain"})):
        assert (await setting.send("cam", n, headers=headers))[0] == 200
        await until(lambda: is_known(setting, "cam"), "the route is known")
    setting.cluster.app = "both"
    await setting.cluster.start("b")
    await until(lambda: setting.plane.reloads == 1, "another stream is declared")

    async def is_refused() -> bool:
        return (await setting.send("cam", 2))[0] == 404

    await until(is_refused, "open connections reach the new process")
    straight = await setting.straight()
    for n, headers in enumerate(({"X-Stream": "chain"}, {"X-Stream": "chain"}), 3):
        assert (await setting.send("cam", n, headers=headers))[0] == 200
    assert (await setting.send("cam", 5, "/process/cam?stream=chain"))[0] == 200
    assert await setting.straight() == straight + 3
    assert (await setting.send("cam", 0, headers={"X-Stream": "more"}))[0] == 200


@pytest.mark.slow
async def test_its_files_are_private_and_hold_no_secret(make_setting: MakeSetting, tls: Tls) -> None:
    setting = await make_setting("a", tls=tls)
    folder = setting.plane.fallback.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        text = "" if file.is_socket() else file.read_text()
        assert SECRET not in text
        assert "PRIVATE KEY" not in text
        assert file.stat().st_mode & 0o077 == 0 or file == setting.plane.fallback
    assert (await setting.send("cam", 0))[0] == 200  # the node asked for it
    await setting.gateway.stop()
    assert not folder.exists()
