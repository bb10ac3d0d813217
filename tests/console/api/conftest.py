"""A node on SQLite in this process, and a console beside it whose API is called."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import aiohttp
import jsonschema
import pytest

from holdfast import App, Context, Job, StreamHandler
from holdfast.config.settings import Config
from holdfast.console.api.openapi import describe
from holdfast.console.api.routes import DESCRIPTION, operations
from holdfast.console.service import Console, ConsoleSettings
from holdfast.testing import NodeForTests, node_for_tests
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log

LET_GO = threading.Event()
"""Ends the tasks that hang: their handlers run in this process."""


def shop() -> App:
    """An app with a stream whose gaps hold, one without seqs, and tasks."""
    app = App("shop")

    @app.stream("frames", key="camera", seq="frame", first_seq=0, gap_timeout_s=3600, max_tries=1)
    class Frames(StreamHandler[dict[str, Any]]):
        def open(self, context: Context, state: bytes | None) -> None:
            self.count = int(state or 0)

        def process(self, message: dict[str, Any], context: Context) -> dict[str, Any]:
            if message.get("bad"):
                raise ValueError("a bad frame")
            self.count += 1
            return {"frame": message["frame"], "count": self.count}

        def snapshot(self) -> bytes:
            return b"%d" % self.count

    @app.stream("visits", key="door")
    class Visits(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> str:
            context.wake("close", after_s=0)
            return str(message["by"])

        def wake(self, name: str, body: Any, context: Context) -> str:
            return f"{name} {context.key}"

    @app.task("mail.send", tries=1)
    def send(body: dict[str, Any], job: Job) -> str:
        if body.get("bad"):
            raise ValueError("no such address")
        return f"sent to {body['to']}"

    @app.task("mail.hang", tries=1)
    async def hang(body: dict[str, Any], job: Job) -> None:
        job.progress(0.4, "waits", mails=7)
        await asyncio.to_thread(LET_GO.wait)

    return app


class Said(NamedTuple):
    """What the API said."""

    status: int
    body: Any
    kind: str


class Api:
    """Calls the API of a console, as a program does."""

    def __init__(self, console: Console, token: str = "") -> None:
        self.console = console
        self._token = token
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Api:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._session = aiohttp.ClientSession(headers=headers)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def raw(
        self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None
    ) -> Said:
        """Send a request as it is."""
        from yarl import URL

        url = URL(f"{self.console.address}{path}", encoded=True)
        async with self._session.request(method, url, data=data, headers=headers) as response:
            text = await response.text()
            kind = response.content_type
            said = Said(response.status, json.loads(text) if "json" in kind else text, kind)
        self._check(method, path.partition("?")[0], said)
        return said

    def _check(self, method: str, path: str, said: Said) -> None:
        """The answer is one that the description has."""
        document = describe(operations(self.console.parts))
        for template, item in document["paths"].items():
            if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path) and method.lower() in item:
                response = item[method.lower()]["responses"][str(said.status)]
                schema = response["content"][said.kind]["schema"]
                jsonschema.validate(said.body, {**schema, "components": document["components"]})
                return
        assert path == DESCRIPTION or said.status in (401, 404, 405), f"{method} {path} is not described"

    async def get(self, path: str) -> Any:
        """Read something; returns the answer."""
        said = await self.raw("GET", f"/api/v1{path}")
        assert said.status == 200, said
        return said.body

    async def send(self, method: str, path: str, body: Any = None) -> Said:
        """Change something."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        return await self.raw(method, f"/api/v1{path}", data, headers)

    async def do(self, method: str, path: str, body: Any = None) -> Any:
        """Change something that can be changed; returns the answer."""
        said = await self.send(method, path, body)
        assert said.status in (200, 202), said
        return said.body


@pytest.fixture(scope="module")
def node() -> Iterator[NodeForTests]:
    """A node of the shop."""
    with node_for_tests(shop()) as running:
        yield running


@pytest.fixture
async def services(node: NodeForTests) -> AsyncIterator[Services]:
    """The services of the node."""
    async with Services(Config(url=node.url)) as opened:
        yield opened


@pytest.fixture
async def console(services: Services) -> AsyncIterator[Console]:
    """A console on loopback."""
    running = Console(services, ConsoleSettings(port=0), Log())
    await running.start()
    try:
        yield running
        if running.host.crashed.done():
            raise running.host.crashed.result()
    finally:
        await running.stop()


@pytest.fixture
async def reader(console: Console) -> AsyncIterator[Api]:
    """A program without a token, which may only read."""
    async with Api(console) as opened:
        yield opened


@pytest.fixture
async def api(console: Console) -> AsyncIterator[Api]:
    """A program with the printed token."""
    async with Api(console, console.own_token) as opened:
        yield opened
