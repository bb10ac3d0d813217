"""HAProxy's files, and how files of killed gateways are removed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.cluster.host import Host
from holdfast.errors import ConfigError
from holdfast.gateway.haproxy.binary import Build
from holdfast.gateway.haproxy.folder import Folder
from holdfast.gateway.haproxy.plane import HaproxyOptions
from holdfast.gateway.listen import GatewaySettings
from holdfast.gateway.service import Gateway
from holdfast.services.http.peer import HttpPeer
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.system.clock import SystemClock
from simulator.limits import limits_with
from tests.cluster.fakes import Log

PROGRAM = """
import sys, time
from holdfast.gateway.haproxy.folder import Folder
folder = Folder()
folder.hide("secret", "certificate")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_one_left_is_deleted_and_what_lives_is_not(place: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(place)},
        text=True,
    )
    with started:
        assert started.stdout is not None
        theirs = Path(started.stdout.readline().strip())
        assert theirs.parent == place
        foreign = place / "holdfast-gateway-of-another-user"
        foreign.mkdir()
        ours = Folder()
        assert theirs.exists()
        started.send_signal(signal.SIGKILL)
        started.wait()
    again = Folder()
    assert sorted(place.iterdir()) == sorted([ours.path, again.path, foreign])
    again.close()
    ours.close()
    assert list(place.iterdir()) == [foreign]


def test_a_secret_is_read_by_who_inherits_it_and_on_linux_stands_in_no_file() -> None:
    folder = Folder()
    path = folder.hide("secret", "certificate")
    for _ in range(2):
        result = subprocess.run(["cat", path], pass_fds=folder.descriptors, capture_output=True, check=True)
        assert result.stdout == b"secret"
    assert folder.hide("new", "certificate") == path
    result = subprocess.run(["cat", path], pass_fds=folder.descriptors, capture_output=True, check=True)
    assert result.stdout == b"new"
    assert sys.platform != "linux" or [file.name for file in folder.path.iterdir()] == ["lock"]
    folder.close()


def inside(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def gateway(port: int, build: Build) -> Gateway:
    clock = SystemClock()
    host = Host(MemoryCoordinator(clock), HttpPeer(clock), clock, limits_with(), Log(), "gateway")
    settings = GatewaySettings(host="127.0.0.1", port=port, max_body_bytes=50_000)
    return Gateway(host, settings, haproxy=HaproxyOptions(build))


async def test_a_gateway_whose_port_is_in_use_leaves_no_folder(place: Path, build: Build) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = gateway(taken.getsockname()[1], build)
        assert len(inside(place)) == 1
        with pytest.raises(ConfigError, match=r"can.t listen on 127\.0\.0\.1:\d+: "):
            await refused.start()
    assert inside(place) == []
    await refused.stop()


async def test_a_gateway_whose_folder_can_have_no_sockets_leaves_none(
    place: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = place / ("x" * 120)  # longer than the path of a socket may be
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    refused = gateway(0, build)
    with pytest.raises(OSError, match="AF_UNIX path too long"):
        await refused.start()
    assert inside(deep) == []
    await refused.stop()
