"""Exports metrics by OTLP over HTTP, with the official exporter, in threads: the event loop never waits for
it.

They have the same names and labels as on the page of metrics. Counters and histograms count from the
start of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import Metric as Family
from prometheus_client.registry import CollectorRegistry

from holdfast.ports.clock import Clock
from holdfast.services.otel.collector import CollectorState
from holdfast.services.otel.exporter import ANSWER_S, CLOSE_S, endpoint_of, scope_of

PATH = "/v1/metrics"
"""The path of a collector that is named without one."""

NOISY = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
"""The exporter's own log, which reports each failed try."""

CUMULATIVE = AggregationTemporality.CUMULATIVE


class OtlpMetrics:
    """Sends the metrics of ``registry`` to the collector at ``url`` every ``every_s``. ``before`` is awaited
    before they are read, to update the metrics that come from services. ``resource`` names their source, by
    OpenTelemetry's semantic conventions."""

    def __init__(
        self,
        url: str,
        resource: Mapping[str, str],
        registry: CollectorRegistry,
        every_s: float,
        clock: Clock,
        log: Any,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._resource = Resource.create(dict(resource))
        self._registry = registry
        self._every_s = every_s
        self._clock = clock
        self._before = before
        self._began_ns = int(clock.wall() * 1e9)
        self._collector = CollectorState(url, log, "metrics")
        self._closed = False
        logging.getLogger(NOISY).setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(
            endpoint_of(url, PATH), timeout=ANSWER_S, compression=Compression.Gzip
        )

    async def run(self) -> None:
        """See MetricsPush.run."""
        while True:
            await self._clock.sleep(self._every_s)
            await self._push()

    async def close(self) -> None:
        """See MetricsPush.close. A collector that did not take the last ones isn't waited for."""
        if self._closed:
            return
        self._closed = True
        if not self._collector.failing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._push()
        self._exporter.shutdown()

    async def _push(self) -> None:
        try:
            self._collector.note(await self._export())
        except Exception as error:  # noqa: BLE001 - a source may raise anything, or no thread be started
            self._collector.not_sent(error)

    async def _export(self) -> bool:
        """Return True if the collector took them."""
        if self._before is not None:
            await self._before()
        now_ns = int(self._clock.wall() * 1e9)
        metrics = [metric for family in self._registry.collect() for metric in self._metrics(family, now_ns)]
        scope = scope_of()
        resource = ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, scope.schema_url or "")], "")
        return await _in_thread(lambda: self._exporter.export(MetricsData([resource])))

    def _metrics(self, family: Family, now_ns: int) -> Iterable[Metric]:
        """Return the metric of one family, if there are any numbers of it."""
        if not family.samples:
            return
        text, began_ns = family.documentation, self._began_ns
        if family.type == "histogram":
            points = list(_histograms(family, began_ns, now_ns))
            yield Metric(family.name, text, "", Histogram(points, CUMULATIVE))
            return
        is_counter = family.type == "counter"
        name = f"{family.name}_total" if is_counter else family.name
        numbers = [
            NumberDataPoint(sample.labels, began_ns if is_counter else now_ns, now_ns, float(sample.value))
            for sample in family.samples
            if sample.name == name
        ]
        yield Metric(name, text, "", Sum(numbers, CUMULATIVE, True) if is_counter else Gauge(numbers))


def _histograms(family: Family, began_ns: int, now_ns: int) -> Iterable[HistogramDataPoint]:
    """Return the histograms of a family, one for each set of labels."""
    bounds: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple(pair for pair in sample.labels.items() if pair[0] != "le")
        if sample.name.endswith("_bucket"):
            bounds.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = float(sample.value)
    for labels, upto in bounds.items():
        upto.sort()
        before = [0.0, *(count for _, count in upto)]
        counts = [int(count - less) for less, (_, count) in zip(before, upto, strict=False)]
        yield HistogramDataPoint(
            dict(labels),
            began_ns,
            now_ns,
            int(upto[-1][1]),
            sums.get(labels, 0.0),
            counts,
            [bound for bound, _ in upto[:-1]],
            None,  # type: ignore[arg-type] # it isn't known, and the format needs none
            None,  # type: ignore[arg-type]
        )


async def _in_thread(export: Callable[[], MetricExportResult]) -> bool:
    """Export in a thread; returns True if the collector accepted. The thread is a daemon, so a silent
    collector doesn't delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()

    def settle(done: bool) -> None:
        if not future.done():
            future.set_result(done)

    def work() -> None:
        try:
            done = export() is MetricExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - a library may raise anything
            done = False
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=work, name="holdfast-metrics", daemon=True).start()
    return await future
