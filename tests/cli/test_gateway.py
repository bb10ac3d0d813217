"""``holdfast gateway`` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from holdfast.cli import gateway
from holdfast.errors import ConfigError
from holdfast.gateway.clients import read
from holdfast.gateway.haproxy.binary import find
from holdfast.http.key_file import digest_of
from tests.nodes.cluster import Cluster, lives, until

SECRET = "never-to-be-seen-anywhere"
needs_haproxy = pytest.mark.skipif(find() is None, reason="no HAProxy is here")


class GatewayProcess:
    """One gateway's process, and what it logged."""

    def __init__(self, place: Path, cluster: Cluster, *arguments: str) -> None:
        self._log, self._out = place / "gateway.log", place / "gateway.out"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        with self._log.open("wb") as log, self._out.open("wb") as out:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "gateway", "--port", "0", *arguments],
                stdout=out,
                stderr=log,
                env=environment | cluster.services.config.environment(),
            )

    @property
    def log(self) -> str:
        """What it logged."""
        return self._log.read_text()

    @property
    def out(self) -> list[dict[str, Any]]:
        """The access log, without what HAProxy says of its own end."""
        lines = self._out.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def runs(self) -> str:
        """Wait until it runs; its address."""
        await until(lambda: "gateway runs" in self.log or self.child.poll() is not None, "gateway runs")
        (line,) = [line for line in self.log.splitlines() if "gateway runs" in line]
        address: str = json.loads(line)["address"]
        return address


@pytest.fixture
async def make_gateway(tmp_path: Path) -> AsyncIterator[Callable[..., GatewayProcess]]:
    """Start a gateway before a node; both end with the test."""
    cluster = Cluster(tmp_path, peer_secret=SECRET)
    await cluster.start("a")
    made: list[GatewayProcess] = []

    def make(*arguments: str) -> GatewayProcess:
        made.append(GatewayProcess(tmp_path, cluster, *arguments))
        return made[-1]

    yield make
    for started in made:
        started.child.kill()
        started.child.wait()
    await cluster.close()


async def send(address: str, n: int, **more: str) -> int:
    """Send one message; the status."""
    async with aiohttp.ClientSession() as client:
        body = json.dumps({"key": "cam", "n": n}).encode()
        headers = {"Content-Type": "application/json", **more}
        async with client.post(f"{address}/process/cam", data=body, headers=headers) as response:
            return response.status


@pytest.mark.nightly
@needs_haproxy
async def test_no_eye_sees_the_secret_and_each_request_is_logged_if_wanted(
    make_gateway: Callable[..., GatewayProcess],
) -> None:
    started = make_gateway("--access-log")
    address = await started.runs()
    for n in range(3):
        assert await send(address, n) == 200
    for process in (family := psutil.Process(started.child.pid).children(recursive=True)):
        assert not any(SECRET in argument for argument in process.cmdline())
    assert [process.name() for process in family] == ["haproxy"]
    started.child.send_signal(signal.SIGTERM)
    await until(lambda: started.child.poll() is not None, "it ended")
    assert started.child.returncode == 0
    assert SECRET not in started.log
    assert [(said["path"], said["status"]) for said in started.out] == [("/process/cam", 200)] * 3
    assert SECRET not in json.dumps(started.out)


@pytest.mark.nightly
@needs_haproxy
async def test_the_access_log_has_long_paths_whole(make_gateway: Callable[..., GatewayProcess]) -> None:
    started = make_gateway("--access-log")
    path = f"/process/{'x' * 3000}"
    async with aiohttp.ClientSession() as client, client.post(f"{await started.runs()}{path}") as response:
        status = response.status
    started.child.send_signal(signal.SIGTERM)
    await until(lambda: started.child.poll() is not None, "it ended")
    assert [(said["path"], said["status"]) for said in started.out] == [(path, status)]


@pytest.mark.slow
@needs_haproxy
async def test_haproxy_ends_with_it_however_that_ends(make_gateway: Callable[..., GatewayProcess]) -> None:
    started = make_gateway("--data-plane", "haproxy")
    await started.runs()
    (haproxy,) = psutil.Process(started.child.pid).children()
    started.child.kill()
    started.child.wait()
    await until(lambda: not lives(haproxy), "no HAProxy outlives it")


@pytest.mark.slow
async def test_the_data_plane_in_python_needs_no_child_process(
    make_gateway: Callable[..., GatewayProcess],
) -> None:
    started = make_gateway("--data-plane", "python")
    address = await started.runs()
    assert await send(address, 0) == 200
    assert psutil.Process(started.child.pid).children() == []


@pytest.mark.nightly
async def test_a_proxy_before_it_may_have_another_name_if_no_auth_says_so(
    make_gateway: Callable[..., GatewayProcess],
) -> None:
    started = make_gateway("--data-plane", "python", "--no-auth")
    address = await started.runs()
    assert await send(address, 0, Host="gateway.example") == 200


def test_without_haproxy_python_does_it_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gateway, "find", lambda: None)
    assert gateway.choose(None, 1000) is None
    assert gateway.choose("python", 1000) is None
    assert "holdfast-streams[gateway]" in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match=r"holdfast-streams\[gateway\]"):
        gateway.choose("haproxy", 1000)


def test_a_gateway_with_a_certificate_but_no_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="--tls-key"):
        gateway.gateway(tls_cert=Path("x.pem"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "gateway.example"])
def test_beyond_loopback_clients_must_be_asked_for_keys_or_it_is_said_that_none_are(host: str) -> None:
    with pytest.raises(ConfigError, match="--keys FILE"):
        gateway.gateway(host=host)
    gateway.check_exposure(host, Path("clients.keys"), no_auth=False)
    gateway.check_exposure(host, None, no_auth=True)


def test_keys_and_no_auth_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="contradict"):
        gateway.gateway(keys=Path("clients.keys"), no_auth=True)


@pytest.mark.parametrize("size", [-1, 2**24 + 1])
def test_a_size_that_no_buffer_can_have_is_refused(size: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--replay-bytes is"):
        gateway.gateway(replay_bytes=size, keys=tmp_path / "missing")  # so that it serves in no case


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--per-s"):
        gateway.gateway(per_s=-1)


def test_a_key_is_made_and_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "clients.keys"
    gateway.gateway_key("camera-7", keys=file, per_s=50)
    key = capsys.readouterr().out.strip()
    assert [(client.digest, client.per_s) for client in read(file)] == [(digest_of(key), 50)]
