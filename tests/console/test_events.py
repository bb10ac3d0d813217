"""Streams of events: bounded in number and in what waits, and ended with their callers' rights."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.console.access import Caller, settings_for
from holdfast.console.attention import Attention
from holdfast.console.events import PAUSE_S, Events, EventStream
from holdfast.console.service import Console, ConsoleSettings
from holdfast.console.tokens import add
from holdfast.ports.coordinator import Claim
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log
from tests.console.browser import Browser


@pytest.mark.nightly
async def test_two_hundred_open_pages_are_served_and_the_overview_stays_quick(
    console: Console, reader: Browser
) -> None:
    await reader.until("cameras", "/")
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(reader.events()) for _ in range(200)]
        assert {answer.status for answer in opened} == {200}
        assert len(console.parts.events) == 200
        for answer in opened:
            line = await answer.content.readline()
            assert line.startswith(b"retry: ")
        began_at = time.monotonic()
        assert (await reader.get("/")).status == 200
        assert time.monotonic() - began_at < 2.0


@pytest.mark.slow
async def test_more_than_the_most_are_asked_to_come_again(console: Console, reader: Browser) -> None:
    console.parts.events.most = 2
    async with reader.events(), reader.events(), reader.events() as third:
        assert third.status == 503
        assert len(console.parts.events) == 2


async def test_what_waits_for_a_slow_browser_is_the_latest_of_each_topic() -> None:
    stream = EventStream(Caller("", frozenset({"read"})))
    for number in range(10_000):
        stream.put(["overview", "streams"], str(number))
    assert stream.waiting == {"overview": "9999", "streams": "9999"}


async def until(true: Callable[[], bool]) -> None:
    """Wait for the console's doing, which nobody tells of."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


class SlowReader:
    """A browser that has asked for events and reads nothing more."""

    def __init__(self, console: Console, cookie: str = "") -> None:
        host, _, port = console.address.removeprefix("http://").partition(":")
        self._console = console
        self._place = host, int(port)
        self._cookie = f"Cookie: {console.parts.access.cookie}={cookie}\r\n" if cookie else ""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)

    async def __aenter__(self) -> socket.socket:
        self._socket.setblocking(False)
        loop, before = asyncio.get_running_loop(), len(self._console.parts.events)
        await loop.sock_connect(self._socket, self._place)
        asked = f"GET /events HTTP/1.1\r\nHost: {self._place[0]}\r\n{self._cookie}\r\n"
        await loop.sock_sendall(self._socket, asked.encode())
        await until(lambda: len(self._console.parts.events) > before)
        return self._socket

    async def __aexit__(self, *error: object) -> None:
        self._socket.close()


async def publish_much(console: Console, kb: int) -> None:
    """Publish so much news that no buffer between here and a browser takes all of it."""
    events, topic = console.parts.events, "overview" * 128
    for _ in range(kb):
        events.publish(topic)
        for _ in range(3):  # each stream takes its turn
            await asyncio.sleep(0)


@pytest.fixture
def unpaused(monkeypatch: pytest.MonkeyPatch) -> None:
    """News are told at once."""
    monkeypatch.setattr("holdfast.console.events.PAUSE_S", 0.0)
    monkeypatch.setattr("holdfast.console.events.PAUSE_PER_STREAM_S", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser has to read within a second."""
    monkeypatch.setattr("holdfast.console.events.WRITE_S", 1.0)


@pytest.mark.nightly
@pytest.mark.usefixtures("unpaused", "impatient")
async def test_two_hundred_browsers_that_read_nothing_are_let_go(console: Console, reader: Browser) -> None:
    events, connections = console.parts.events, console.connections
    before = len(connections)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(200):
            await stack.enter_async_context(SlowReader(console))
        streams = list(events.streams)
        assert len(streams) == 200
        await publish_much(console, kb=400)
        for stream in streams:
            assert stream.transport is not None
            assert stream.transport.get_write_buffer_size() < 256 * 1024
            assert len(stream.waiting) <= 8
        await until(lambda: not len(events) and len(connections) <= before)
        assert (await reader.get("/")).status == 200


@pytest.mark.slow
@pytest.mark.usefixtures("unpaused")
async def test_a_browser_that_reads_nothing_loses_its_events_with_its_token(
    services: Services, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    token = add(file, "loses", ["read"])
    access = settings_for("127.0.0.1", tokens=True)
    running = Console(services, ConsoleSettings(port=0, access=access, tokens=file), Log())
    await running.start()
    try:
        async with SlowReader(running, token):
            (stream,) = running.parts.events.streams
            while not stream.writing or not stream.waiting:
                await publish_much(running, kb=1)
            began_at = time.monotonic()
            file.write_text("")
            await until(lambda: not len(running.connections))
            assert time.monotonic() - began_at < 5
    finally:
        await running.stop()


class StandingClock:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


async def test_news_have_a_pause_which_grows_with_the_open_pages(console: Console) -> None:
    clock = StandingClock()
    events = Events(console.parts.access, clock)  # type: ignore[arg-type]
    streams = [EventStream(Caller("", frozenset())) for _ in range(100)]
    events.streams = dict.fromkeys(streams)
    events.publish("overview", "streams")
    assert streams[0].waiting == {"overview": "1", "streams": "1"}
    streams[0].waiting.clear()
    clock.now += PAUSE_S
    events.publish("overview")
    assert streams[0].waiting == {}, "a hundred pages ask less often"
    clock.now += 1.0
    events.publish("audit")
    assert streams[0].waiting == {"overview": "2", "audit": "2"}, "what changed in the pause is told too"
    events.close()


@pytest.mark.slow
async def test_news_of_a_pause_are_told_after_it_though_nothing_more_changes(console: Console) -> None:
    events = Events(console.parts.access, console.parts.clock)
    stream = EventStream(Caller("", frozenset()))
    events.streams = {stream: None}
    events.publish("overview")
    stream.waiting.clear()
    stream.woken.clear()
    events.publish("audit")
    assert stream.waiting == {}
    await asyncio.wait_for(stream.woken.wait(), 20)
    assert stream.waiting == {"audit": "2"}


async def test_what_a_page_loads_at_news_was_made_after_them(console: Console) -> None:
    made: list[str] = []

    async def make() -> str:
        made.append("made")
        return f"{len(made)} times"

    cache = console.parts.cache
    cache.kept_s = 3600.0
    assert await cache.get("part", make) == "1 times"
    console.parts.events.publish("streams")
    assert await cache.get("part", make) == "2 times"


async def test_a_claim_that_has_changed_is_news_at_once(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(console.parts.events, "publish", lambda *topics: told.append(topics))
    console.host.news.claimed(Claim("cameras/moved", "another", 2))
    assert told == [("streams",)]


async def test_events_end_when_the_console_ends(console: Console, reader: Browser) -> None:
    async with reader.events() as news:
        stopping = asyncio.create_task(console.stop())
        async with asyncio.timeout(10):
            while await news.content.readline():
                pass
            await stopping


async def test_an_idle_console_looks_at_once_when_somebody_comes(console: Console) -> None:
    attention = Attention(Events(console.parts.access, console.parts.clock), console.parts.clock)
    waiting = asyncio.create_task(attention.pause(0.0, 3600.0))
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    attention.asked()
    await asyncio.wait_for(waiting, 10)
