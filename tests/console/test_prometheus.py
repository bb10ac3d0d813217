"""Charts of the last hour: as nodes tell it, and as Prometheus has it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError
from yarl import URL

from holdfast.cluster.timings import SHORT_S
from holdfast.config.settings import Config
from holdfast.console.latency import Latency
from holdfast.console.overview import Sample
from holdfast.console.pages.overview import charts
from holdfast.console.prometheus import POINTS, PrometheusHistory
from holdfast.console.service import Console
from holdfast.errors import ConfigError, Unavailable
from holdfast.system.clock import SystemClock
from holdfast.testing import NodeForTests
from holdfast.wiring.services import Services
from simulator.servers import PrometheusServer
from tests.console.browser import Browser, running_console

TOKEN = "a-token-that-nobody-else-may-see"


@asynccontextmanager
async def console_with(node: NodeForTests, **settings: str) -> AsyncIterator[Console]:
    """A console with these settings."""
    config = Config(url=node.url, **settings)  # type: ignore[arg-type]
    async with Services(config) as services, running_console(services) as running:
        yield running


def history(url: str, token: str = TOKEN) -> PrometheusHistory:
    return PrometheusHistory(url, token, "", SystemClock())


# --- in memory


def counts(**by_place: int) -> list[int]:
    told = [0] * (len(SHORT_S) + 1)
    for place, count in by_place.items():
        told[int(place[1:])] = count
    return told


def test_latencies_are_of_what_is_new_on_all_nodes() -> None:
    latency = Latency()
    latency.take({"a": counts(_0=1000), "b": counts(_3=5)})
    assert latency.quantiles(0.5, 0.99) == [None, None], "what was before says nothing"
    latency.take({"a": counts(_0=1098), "b": counts(_3=5, _7=2)})
    p50, p99 = latency.quantiles(0.5, 0.99)
    assert p50 is not None
    assert p99 is not None
    assert 0 < p50 <= SHORT_S[0]
    assert SHORT_S[6] < p99 <= SHORT_S[7]
    latency.take({"a": counts(_0=1098)})
    assert latency.quantiles(0.5) == [None]


@pytest.mark.parametrize("told", [[], [1, 2, 3]])
def test_nodes_of_another_version_tell_no_latency(told: list[int]) -> None:
    latency = Latency()
    latency.take({"a": told})
    latency.take({"a": [count + 1 for count in told]})
    assert latency.quantiles(0.5) == [None]


def test_the_longest_count_as_the_last_bound() -> None:
    latency = Latency()
    latency.take({"a": counts()})
    latency.take({"a": counts(**{f"_{len(SHORT_S)}": 3})})
    assert latency.quantiles(0.5) == [SHORT_S[-1]]


async def test_the_overview_shows_the_latency_from_queue_to_commit(
    console: Console, reader: Browser, node: NodeForTests
) -> None:
    await reader.until("cameras", "/")
    overview = console.parts.overview
    before = await asyncio.to_thread(node.results, "cameras", 5)
    node.stream("cameras").send({"camera": "timed", "frame": 0})
    await asyncio.to_thread(node.results, "cameras", len(before) + 1)
    await overview.look_once_at_nodes()
    overview.take_sample()
    assert (overview.samples[-1].p99_s or 0) > 0
    assert "Queue to commit, p99" in (await reader.get("/parts/overview")).text


async def test_charts_of_latencies_are_in_milliseconds_and_others_as_they_are(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    overview = console.parts.overview
    names = ("handled_per_s", "p50_s", "p99_s", "waiting", "dead", "running")
    monkeypatch.setattr(overview, "hour", {name: [0.25, None, 0.5] for name in names})
    monkeypatch.setattr(overview, "samples", deque[Sample]())
    by_label = {each["label"]: each for each in charts(overview)}
    assert {label: each["drawn"]["most"] for label, each in by_label.items()} == {
        "Messages handled": 0.5,
        "Queue to commit, p99": 500.0,
        "Queue to commit, p50": 500.0,
        "Messages waiting": 0.5,
        "Dead letters": 0.5,
        "Tasks running": 0.5,
    }
    assert by_label["Messages handled"]["now"] == "—", "there is no sample yet"


# --- from Prometheus


@pytest.mark.nightly
async def test_charts_are_from_a_real_prometheus(node: NodeForTests) -> None:
    async with Services(Config(url=node.url)) as services:
        (member,) = await services.coordinator().members()
    target = URL(member.load.metrics).authority
    async with PrometheusServer([target], "groups: []\n") as prometheus:
        url = f"http://{prometheus.address}"
        async with console_with(node, prometheus_url=url, prometheus_labels='job="holdfast"') as console:
            overview = console.parts.overview
            async with Browser(console) as reader:
                page = await reader.until("from Prometheus", "/")
                assert "can't be read" not in page.text
                assert overview.hour is not None
                assert all(len(values) == POINTS for values in overview.hour.values())
                async with asyncio.timeout(40):
                    while (await history(url).read())["dead"][-1] is None:
                        pass
                with pytest.raises(Unavailable, match="400"):
                    await PrometheusHistory(url, "", "job=", SystemClock()).read()
    with pytest.raises(Unavailable, match="prometheus_url"):
        await history(url).read()


async def test_a_prometheus_that_is_away_is_told_and_charts_go_on(node: NodeForTests) -> None:
    async with console_with(node, prometheus_url="http://127.0.0.1:9") as console, Browser(console) as reader:
        page = await reader.until("Prometheus can't be read", "/")
        assert "prometheus_url" in page.text
        assert "The charts show what this console has seen" in page.text


@pytest.mark.parametrize(
    "status,body,said",
    [
        (401, "denied", "it answers 401"),
        (200, "<html>", "another format than Prometheus"),
        (503, '{"status": "error", "error": "busy"}', "503: busy"),
        (200, " " * (2 << 20), "over 1048576 bytes"),
        (200, '{"data": {"result": [{"values": [[NOW, "many"]]}]}}', "another format than Prometheus"),
        (200, '{"data": {"result": [{"values": [[1e400, "1"]]}]}}', "another format than Prometheus"),
        (200, '{"data": ' + "[" * 100_000, "another format than Prometheus"),
        (200, '{"else": ' + "[" * 100_000, "another format than Prometheus"),
    ],
    ids=["denied", "a page", "busy", "too much", "no number", "infinite", "deep", "deep elsewhere"],
)
async def test_what_a_server_answers_instead_is_told_without_the_token(
    status: int, body: str, said: str
) -> None:
    shown: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        shown.append(request.headers["Authorization"])
        return web.Response(status=status, text=body.replace("NOW", str(time.time())))

    app = web.Application()
    app.router.add_get("/under/api/v1/query_range", answer)
    async with TestServer(app) as server:
        with pytest.raises(Unavailable, match=said) as refused:
            await history(str(server.make_url("/under/"))).read()
    assert shown == [f"Bearer {TOKEN}"]
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN}\r\nHost: elsewhere"])
async def test_a_token_that_no_header_can_hold_is_told_without_it(token: str) -> None:
    async with TestServer(web.Application()) as server:
        with pytest.raises(Unavailable, match="prometheus_token") as refused:
            await history(str(server.make_url("/")), token).read()
    assert "line end" in str(refused.value)
    assert TOKEN not in str(refused.value)


async def test_a_redirect_doesnt_carry_the_token_on() -> None:
    asked: list[str] = []

    async def lead(request: web.Request) -> web.Response:
        raise web.HTTPFound("/elsewhere")

    async def other(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    app = web.Application()
    app.router.add_get("/api/v1/query_range", lead)
    app.router.add_get("/elsewhere", other)
    async with TestServer(app) as server:
        with pytest.raises(Unavailable, match="302"):
            await history(str(server.make_url("/"))).read()
    assert asked == []


@pytest.mark.parametrize("url", ["localhost:9090", "http://", "http://user:hunter2@host", "http://host/?q=1"])
def test_a_url_that_is_no_prometheus_is_refused(url: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match="prometheus_url"):
        Config(prometheus_url=url)
