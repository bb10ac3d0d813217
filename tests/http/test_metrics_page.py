"""The page of metrics: on a port of its own, and to whom it is told."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge
from yarl import URL

from holdfast.errors import ConfigError
from holdfast.http.metrics_page import MetricsPage, MetricsPageSettings
from holdfast.http.tls import PeerTls
from holdfast.system.clock import SystemClock
from simulator.servers import certificate
from simulator.servers.loopback import free_port

TOKEN = "of-the-one-who-reads-metrics"
EVERYWHERE = "0.0.0.0"


def made(**settings: Any) -> MetricsPage:
    registry = CollectorRegistry()
    gauge = Gauge("holdfast_depth", "The depth.", registry=registry)

    async def look() -> None:
        gauge.inc()

    async def more() -> bytes:
        return b"haproxy_up 1\n"

    return MetricsPage(MetricsPageSettings(**settings), SystemClock(), registry, before=look, more=more)


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[URL]:
    page = made(**settings)
    await page.serve()
    try:
        yield URL(page.url)
    finally:
        await page.close()


async def get(url: URL, **asked: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **asked) as answer:
        return answer.status, await answer.text()


async def test_services_are_asked_before_each_reading_and_more_is_added() -> None:
    async with served() as url:
        for times in (1, 2):
            status, text = await get(url)
            assert status == 200
            assert f"holdfast_depth {times}.0" in text
            assert text.endswith("haproxy_up 1\n")


async def test_nothing_but_metrics_is_served_on_their_port() -> None:
    async with served() as url:
        for path in ("/", "/healthz", "/readyz", "/v1/peer", "/v1/models"):
            assert (await get(url.with_path(path)))[0] == 404


async def test_by_default_only_this_machine_is_told_and_pages_of_other_sites_are_not() -> None:
    async with served() as url:
        assert url.host == "127.0.0.1"
        assert (await get(url, headers={"Host": "holdfast.example"}))[0] == 403
        assert (await get(url, headers={"Origin": "https://elsewhere.example"}))[0] == 403


async def test_a_page_that_others_reach_is_not_served_without_a_token() -> None:
    with pytest.raises(ConfigError, match=r"metrics_host '0.0.0.0'.* metrics_token.*HOLDFAST_METRICS_TOKEN"):
        await made(host=EVERYWHERE).serve()


async def test_only_who_shows_the_token_reads_the_metrics() -> None:
    async with served(host=EVERYWHERE, token=TOKEN) as url:
        here = url.with_host("127.0.0.1")
        for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
            status, text = await get(here, headers=wrong)
            assert status == 401
            assert "holdfast_depth" not in text
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "node-7.example"}
        assert (await get(here, headers=right))[0] == 200


async def test_where_nodes_speak_tls_metrics_are_told_by_https(tmp_path: Path) -> None:
    cert, key = certificate.make(tmp_path)
    async with served(tls=PeerTls(cert, key, cert)) as url:
        assert url.scheme == "https"
        trust = ssl.create_default_context(cafile=cert)
        assert (await get(url, ssl=trust))[0] == 200


async def test_a_port_in_use_is_told_with_the_setting_to_change() -> None:
    port = free_port()
    async with served(port=port):
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} for metrics.*metrics_port"):
            await made(port=port).serve()
