"""Metrics reach a collector as the page of metrics has them, and no collector holds a program up."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as Source

from holdfast import App, Context
from holdfast.services.otel import metrics as module
from holdfast.services.otel.metrics import OtlpMetrics
from holdfast.system.clock import SystemClock
from holdfast.testing import NodeSettings, node_for_tests
from tests.collector import Collector, collecting
from tests.on_node import on
from tests.services.otel.test_exporter import Log

EVERY_S = 0.02


class Some(Source):
    """A metric of each kind."""

    def collect(self) -> Iterable[Metric]:
        counter = CounterMetricFamily("holdfast_things", "Things.", labels=["stream"])
        counter.add_metric(["a"], 3)
        counter.add_metric(["b"], 4)
        yield counter
        yield GaugeMetricFamily("holdfast_room", "Room.", value=0.5)
        times = HistogramMetricFamily("holdfast_time_seconds", "Times.", labels=["stream"])
        times.add_metric(["a"], buckets=[("0.1", 2), ("1.0", 5), ("+Inf", 6)], sum_value=9.5)
        yield times


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def push(url: str, log: Log, every_s: float = EVERY_S) -> OtlpMetrics:
    registry = CollectorRegistry()
    registry.register(Some())
    return OtlpMetrics(url, {"service.name": "site"}, registry, every_s, SystemClock(), log)


async def test_each_kind_of_metric_arrives_with_its_labels(collector: Collector) -> None:
    await push(collector.url, Log()).close()
    assert collector.metrics_of == "site"
    things = collector.metrics["holdfast_things_total"]
    assert things.sum.is_monotonic
    assert things.description == "Things."
    found = {point.attributes[0].value.string_value: point.as_double for point in things.sum.data_points}
    assert found == {"a": 3, "b": 4}
    assert [point.as_double for point in collector.metrics["holdfast_room"].gauge.data_points] == [0.5]
    [times] = collector.metrics["holdfast_time_seconds"].histogram.data_points
    assert (times.count, times.sum) == (6, 9.5)
    assert ([*times.explicit_bounds], [*times.bucket_counts]) == ([0.1, 1.0], [2, 3, 1])
    assert [each.key for each in times.attributes] == ["stream"]
    assert times.start_time_unix_nano <= times.time_unix_nano


async def test_they_come_at_intervals_and_the_log_says_once_that_nobody_takes_them(
    collector: Collector,
) -> None:
    collector.answers = [400, 400]
    log = Log()
    metrics = push(collector.url, log)
    running = asyncio.create_task(metrics.run())
    await asyncio.to_thread(log.until, "collector failed")
    await asyncio.to_thread(log.until, "collector recovered")
    running.cancel()
    await metrics.close()
    assert len(log.lines) == 2


@pytest.mark.slow
async def test_a_collector_that_never_answers_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        metrics = push(f"http://127.0.0.1:{silent.getsockname()[1]}", Log())
        async with asyncio.timeout(5):
            await metrics.close()


async def test_a_push_for_which_no_thread_can_be_started_ends_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, refused = threading.Thread.start, asyncio.Event()

    def start(thread: threading.Thread) -> None:
        if thread.name == "holdfast-metrics":
            refused.set()
            raise RuntimeError("can't start new thread")
        started(thread)

    log = Log()
    metrics, closed = push(collector.url, log), push(collector.url, Log())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        await closed.close()
        refused.clear()
        running = asyncio.create_task(metrics.run())
        await asyncio.wait({asyncio.create_task(refused.wait()), running}, return_when="FIRST_COMPLETED")
        assert not running.done()
    await asyncio.to_thread(log.until, "collector recovered")
    running.cancel()
    await metrics.close()
    assert log.lines == ["cannot send to collector", "collector recovered"]


def test_a_node_brings_what_its_page_of_metrics_has(collector: Collector) -> None:
    app = App("site")

    @app.stream("cameras")
    def look(message: dict[str, str], context: Context) -> str:
        return message["key"]

    settings: NodeSettings = {"metrics_url": collector.url, "metrics_every_s": 3600.0}
    with node_for_tests(app, settings=settings) as node:
        node.stream("cameras").send({"key": "cam-1"})
        node.results("cameras", 1)
        (member,) = on(node, lambda services: services.coordinator().members())
        with urllib.request.urlopen(member.load.metrics, timeout=30) as answer:
            text = answer.read().decode()
        page = {
            sample.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
    assert {*collector.metrics} == page, "brought once more at the end"
    assert collector.metrics_of == "site"
