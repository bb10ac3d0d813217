"""A node on SQLite in this process, and a console beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import pytest

from holdfast import App, Context, Job, Order, StreamHandler
from holdfast.config.settings import Config
from holdfast.console.service import Console, ConsoleSettings
from holdfast.testing import NodeForTests, node_for_tests
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log
from tests.console.browser import Browser
from tests.console.chromium import chromium

__all__ = ["chromium"]

LET_GO = threading.Event()
"""Ends the tasks that hang: their handlers run in this process."""

HOSTILE = '<script>alert("x")</script>'
"""A key that would run in a page that doesn't escape."""


def shop() -> App:
    """An app with a stream whose gaps hold, tasks, and one that is sent by the clock."""
    app = App("shop")

    @app.stream("cameras", key="camera", seq="frame", first_seq=0, gap_timeout_s=3600)
    class Cameras(StreamHandler[dict[str, Any]]):
        def open(self, context: Context, state: bytes | None) -> None:
            self.count = int(state or 0)

        def process(self, message: dict[str, Any], context: Context) -> dict[str, Any]:
            if message.get("bad"):
                raise ValueError("a bad frame")
            self.count += 1
            return {"frame": message["frame"], "html": HOSTILE}

        def snapshot(self) -> bytes:
            return b"%d" % self.count

    @app.task("mail.send", tries=1)
    def send(body: dict[str, Any], job: Job) -> str:
        if body.get("bad"):
            raise ValueError("no such address")
        return f"sent to {body['to']}"

    @app.periodic("every-new-year", "0 0 1 1 *", zone="Europe/Berlin")
    def greet(moment: datetime) -> list[Order]:
        return [Order(task_type="mail.send", body={"to": "all"})]

    @app.task("mail.hang", tries=1)
    async def hang(body: dict[str, Any], job: Job) -> None:
        job.progress(0.4, "waits for <nobody>", mails=7)
        await asyncio.to_thread(LET_GO.wait)

    return app


@pytest.fixture(scope="module")
def node() -> Iterator[NodeForTests]:
    """A node with four cameras: one is behind a gap, one has a hostile key, one has dead letters."""
    LET_GO.clear()  # another module may have set it
    with node_for_tests(shop()) as running:
        cameras = running.stream("cameras")
        for frame in range(3):
            cameras.send({"camera": "front", "frame": frame})
        cameras.send({"camera": HOSTILE, "frame": 0})
        cameras.send({"camera": "late", "frame": 0})
        cameras.send({"camera": "late", "frame": 4})
        cameras.send({"camera": "broken", "frame": 0, "bad": True})
        running.results("cameras", 5)
        yield running


@pytest.fixture
async def services(node: NodeForTests) -> AsyncIterator[Services]:
    """The services of the node, for the console and for the test's own looks."""
    async with Services(Config(url=node.url)) as opened:
        yield opened


@pytest.fixture
async def console(services: Services) -> AsyncIterator[Console]:
    """A console that runs on loopback."""
    running = Console(services, ConsoleSettings(port=0), Log())
    await running.start()
    try:
        yield running
        if running.host.crashed.done():
            raise running.host.crashed.result()
    finally:
        await running.stop()


@pytest.fixture
async def reader(console: Console) -> AsyncIterator[Browser]:
    """A browser of somebody who may only read."""
    async with Browser(console) as opened:
        yield opened


@pytest.fixture
async def operator(console: Console) -> AsyncIterator[Browser]:
    """A browser of somebody who has entered with the printed token."""
    async with Browser(console, console.own_token) as opened:
        yield opened
