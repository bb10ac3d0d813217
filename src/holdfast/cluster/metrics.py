"""The metrics of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.cluster.stats import MEANINGS
from holdfast.ports.coordinator import Load


class NodeMetrics(Collector):
    """Reads a node's counters and load at each request for metrics. ``gauges`` returns further numbers, each
    with its name and meaning; ``waiting`` returns how many streams wait, by cause."""

    def __init__(
        self,
        host: Host,
        load: Callable[[], Load],
        gauges: Callable[[], Iterable[tuple[str, str, float]]],
        waiting: Callable[[], Mapping[str, int]],
    ) -> None:
        self._host = host
        self._load = load
        self._gauges = gauges
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        """Return every counter as ``holdfast_…_total``, and gauges of what the node holds now."""
        for name, value in msgspec.structs.asdict(self._host.stats).items():
            yield CounterMetricFamily(f"holdfast_{name}", MEANINGS[name], value=value)
        yield from self._spans()
        yield self._calls()
        for name, text, number in self._gauges():
            yield GaugeMetricFamily(f"holdfast_{name}", text, value=number)
        waiting = GaugeMetricFamily(
            "holdfast_waiting_streams", "Owned streams that wait, by what for.", labels=["reason"]
        )
        for reason, count in sorted(self._waiting().items()):
            waiting.add_metric([reason], count)
        yield waiting
        load = self._load()
        yield GaugeMetricFamily("holdfast_streams", "Streams that the node owns.", value=load.streams)
        yield GaugeMetricFamily("holdfast_slots", "Slots of the node.", value=load.slots)
        yield GaugeMetricFamily("holdfast_room", "Further streams that the node would take.", value=load.room)
        yield GaugeMetricFamily("holdfast_draining", "1 while the node drains.", value=load.draining)
        alive = self._host.membership.alive
        yield GaugeMetricFamily(
            "holdfast_member", "1 while the node's membership may be trusted.", value=alive
        )

    def _spans(self) -> Iterable[Metric]:
        tracer = self._host.tracer
        exported = 0 if tracer is None else tracer.exporter.exported
        dropped = 0 if tracer is None else tracer.exporter.dropped + tracer.dropped
        yield CounterMetricFamily(
            "holdfast_spans", "Spans of traces that the collector took.", value=exported
        )
        yield CounterMetricFamily(
            "holdfast_spans_dropped",
            "Spans that were lost: more than may wait, or not taken in time.",
            value=dropped,
        )

    def _calls(self) -> Metric:
        text = "Calls to paid and shared services, whatever came of them, handlers' fetches included."
        calls = CounterMetricFamily("holdfast_api_calls", text, labels=["service", "operation"])
        for names, count in sorted(self._host.meter.calls.items()):
            calls.add_metric(names, count)
        return calls
