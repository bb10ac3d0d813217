"""Nodes as processes behind a gateway with a real HAProxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.gateway.assembly import make_gateway
from holdfast.gateway.haproxy.binary import Build, find
from holdfast.gateway.haproxy.config import FALLBACK, NODE
from holdfast.gateway.haproxy.plane import HaproxyOptions, HaproxyPlane
from holdfast.gateway.service import Gateway
from tests.nodes.acting_app import follow
from tests.nodes.cluster import Cluster

SECRET = "a %secret \"with 'odd' things"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def build() -> Build:
    """The HAProxy that is here."""
    found = find()
    if found is None:
        pytest.skip("no HAProxy is here")
    return found


class Setting:
    """A gateway before a cluster, and a client of it."""

    def __init__(self, cluster: Cluster, gateway: Gateway, client: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.gateway = gateway
        self.client = client

    @property
    def plane(self) -> HaproxyPlane:
        """The part that runs HAProxy."""
        assert self.gateway.plane is not None
        return self.gateway.plane

    @property
    def pid(self) -> int:
        """The process id of the HAProxy that takes new connections."""
        assert self.plane.child is not None
        return self.plane.child.pid

    async def send(
        self, key: str, n: int, path: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send one message of a stream; the status and what was answered."""
        body = json.dumps({"key": key, "n": n}).encode()
        url = f"{self.gateway.address}{path or f'/process/{key}'}"
        async with self.client.post(url, data=body, headers=JSON | (headers or {})) as response:
            said = await response.read()
            return response.status, json.loads(said) if "json" in response.content_type else said

    async def straight(self) -> float:
        """How many answers of 2xx came straight from owners."""
        return await self._served(lambda backend, server: server == NODE)

    async def by_fallback(self) -> float:
        """The most requests that used the fallback at the same time."""
        return await self._served(lambda backend, server: backend == FALLBACK)

    async def by_fallback_in_the_end(self) -> float:
        """How many were sent to a node before."""
        return await self._served(lambda backend, server: server == FALLBACK != backend)

    async def _served(self, counts: Callable[[str, str], bool]) -> float:
        async with self.client.get(self.gateway.page.url) as response:
            page = await response.text()
        total = 0.0
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = sample.labels
                if sample.name == "haproxy_server_http_responses_total" and labels["code"] == "2xx":
                    total += sample.value * counts(labels["proxy"], labels["server"])
        return total


class Load:
    """Clients that each send one stream's messages, the next when the last is answered."""

    def __init__(self, setting: Setting, count: int, pause_s: float = 0.01) -> None:
        self._setting = setting
        self._pause_s = pause_s
        self._over = asyncio.Event()
        self._more = asyncio.Condition()
        self.sent = [0] * count
        self.wrong: list[Any] = []
        self.worst_s = 0.0

    async def __aenter__(self) -> Load:
        self._clients = [asyncio.create_task(self._client(number)) for number in range(len(self.sent))]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._clients)

    async def more(self, count: int) -> None:
        """Wait for so many more answers of every client."""
        wanted = [sent + count for sent in self.sent]
        async with asyncio.timeout(60), self._more:
            await self._more.wait_for(
                lambda: self.wrong or all(map(int.__ge__, self.sent, wanted)),
            )
        assert not self.wrong

    async def _client(self, number: int) -> None:
        digest, key = "", f"load-{number}"
        while not self._over.is_set():
            n, begun = self.sent[number], time.monotonic()
            try:
                status, said = await self._setting.send(key, n)
                digest = follow(digest, n)
                if status != 200 or (said["n"], said["digest"]) != (n, digest):
                    self.wrong.append((key, n, status, said))
            except aiohttp.ClientError as error:
                self.wrong.append((key, n, repr(error)))
            self.worst_s = max(self.worst_s, time.monotonic() - begun)
            async with self._more:
                self.sent[number] += 1
                self._more.notify_all()
            if self.wrong:
                return
            await asyncio.sleep(self._pause_s)


MakeSetting = Callable[..., Awaitable[Setting]]


@pytest.fixture
async def make_setting(tmp_path: Path, build: Build) -> AsyncIterator[MakeSetting]:
    """Make a cluster of the nodes named and a gateway before it; all end with the test."""
    ending: list[Callable[[], Any]] = []

    async def make(
        *names: str, options: dict[str, Any] | None = None, tls: Any = None, **settings: Any
    ) -> Setting:
        cluster = Cluster(tmp_path, peer_secret=SECRET, **settings)
        ending.append(cluster.close)
        await cluster.start(*names)
        haproxy = HaproxyOptions(build, **(options or {}))
        gateway = make_gateway(cluster.services, "127.0.0.1", 0, haproxy=haproxy, tls=tls)
        ending.append(gateway.stop)
        await gateway.start()
        client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=False))
        ending.append(client.close)
        return Setting(cluster, gateway, client)

    yield make
    while ending:
        await ending.pop()()
