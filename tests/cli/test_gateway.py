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
from tests.nodes.cluster import Cluster, lives, until

from holdfast.cli import gateway
from holdfast.errors import ConfigError
from holdfast.gateway.haproxy.binary import find

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


async def send(address: str, n: int) -> int:
    """Send one message; the status."""
    async with aiohttp.ClientSession() as client:
        body = json.dumps({"key": "cam", "n": n}).encode()
        headers = {"Content-Type": "application/json"}
        async with client.post(f"{address}/process/cam", data=body, headers=headers) as response:
            return response.status


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


@needs_haproxy
async def test_haproxy_ends_with_it_however_that_ends(make_gateway: Callable[..., GatewayProcess]) -> None:
    started = make_gateway("--data-plane", "haproxy")
    await started.runs()
    (haproxy,) = psutil.Process(started.child.pid).children()
    started.child.kill()
    started.child.wait()
    await until(lambda: not lives(haproxy), "no HAProxy outlives it")


async def test_the_data_plane_in_python(make_gateway: Callable[..., GatewayProcess]) -> None:
    started = make_gateway("--data-plane", "python")
    address = await started.runs()
    assert await send(address, 0) == 200
    assert psutil.Process(started.child.pid).children() == []


def test_without_haproxy_python_does_it_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gateway, "find", lambda: None)
    assert gateway.choose(None, 1000) is None
    assert gateway.choose("python", 1000) is None
    assert "holdfast[gateway]" in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match=r"holdfast\[gateway\]"):
        gateway.choose("haproxy", 1000)


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="--tls-key"):
        gateway.gateway(tls_cert=Path("x.pem"))
