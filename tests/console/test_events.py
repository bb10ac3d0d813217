"""Streams of events: bounded in number and in what waits, and ended with their callers' rights."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from holdfast.console.access import Caller
from holdfast.console.attention import Attention
from holdfast.console.events import PAUSE_S, Events, _EventStream
from holdfast.console.service import Console
from tests.console.browser import Browser


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


async def test_more_than_the_most_are_asked_to_come_again(
    console: Console, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.parts.events, "_most", 2)
    async with reader.events(), reader.events(), reader.events() as third:
        assert third.status == 503
        assert len(console.parts.events) == 2


async def test_what_waits_for_a_slow_browser_is_the_latest_of_each_topic() -> None:
    stream = _EventStream(Caller("", frozenset({"read"})))
    for number in range(10_000):
        stream.put("overview", str(number))
        stream.put("streams", str(number))
    assert stream.waiting == {"overview": "9999", "streams": "9999"}


class StandingClock:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


async def test_news_of_one_topic_have_a_pause_which_grows_with_the_open_pages(console: Console) -> None:
    clock = StandingClock()
    events = Events(console.parts.access, clock)  # type: ignore[arg-type]
    streams = [_EventStream(Caller("", frozenset())) for _ in range(100)]
    events._streams = dict.fromkeys(streams)
    events.publish("overview")
    assert streams[0].waiting.pop("overview") == "1"
    clock.now += PAUSE_S
    events.publish("overview")
    assert streams[0].waiting == {}, "a hundred pages ask less often"
    clock.now += 1.0
    events.publish("overview")
    assert streams[0].waiting == {"overview": "2"}


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
