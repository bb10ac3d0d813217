"""A node outlives whoever opens connections and sends nothing, also when it has no file descriptor left."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from holdfast.system.machine import Machine
from simulator.servers.loopback import free_port
from tests.nodes.cluster import LOOK_S, PATIENCE_S

APP = """
from holdfast import App

app = App("quiet")
app.stream("frames", message=bytes)(lambda message, context: None)
"""

FILES = 40
"""About ten more than the node has open already."""

ANSWER_S = 2.0
HELD_S = 3.0
"""Several renewals."""


@pytest.mark.nightly
def test_a_node_without_a_file_descriptor_left_lives_on(tmp_path: Path) -> None:
    (tmp_path / "quiet_app.py").write_text(APP)
    port = free_port()
    environment = os.environ | {
        "HOLDFAST_URL": f"sqlite:///{tmp_path}/h.db",
        "HOLDFAST_PORT": str(port),
        "HOLDFAST_SLOTS": "1",
        "HOLDFAST_TTL_S": "2",
        "HOLDFAST_LOCK_TIMEOUT_S": "0.5",
        "PYTHONPATH": str(tmp_path),
    }
    node = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "node", "quiet_app:app"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_ready(node, port)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        with contextlib.ExitStack() as idle:
            for _ in range(4 * FILES):
                idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            with pytest.raises(subprocess.TimeoutExpired):
                node.wait(HELD_S)
        until_ready(node, port)
        node.terminate()
        assert node.wait(PATIENCE_S) == 0
    finally:
        node.kill()
        node.wait()


def until_ready(node: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=ANSWER_S) as said,
        ):
            if said.status == 200:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the node ended with {node.wait(LOOK_S)}")
    raise AssertionError("the node is not ready")


def test_loads_are_told_without_what_the_machine_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert Machine().shares() == (0.0, 0.0)
