"""A Redis server of our own, on a free loopback port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from benchmarks.cluster import ROOT

START_TIMEOUT_S = 20.0


@contextlib.contextmanager
def redis_server(place: Path, *options: str) -> Iterator[int]:
    """Run a server in ``place``; gives its port."""
    installer = ROOT / "tools" / "servers" / "install"
    told = subprocess.run([installer, "redis-server"], capture_output=True, text=True, check=True)
    program = told.stdout.split()[-1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place), *options],
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
