"""The metrics of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.cluster.stats import MEANINGS, Numbers
from holdfast.ports.coordinator import Load
from holdfast.rules.cluster.scaling import ClusterSample, SampleHistory, advise

A_MILLION = 1_000_000


class NodeMetrics(Collector):
    """Reads a node's counters, times and load at each request for metrics. ``gauges`` returns further numbers
    with their names and meanings, and ``numbers`` further metrics with a label. ``waiting`` returns the
    number of waiting streams, by cause. ``prices`` are dollars for a million calls, by service and
    operation."""

    def __init__(
        self,
        host: Host,
        load: Callable[[], Load],
        gauges: Callable[[], Iterable[tuple[str, str, float]]],
        waiting: Callable[[], Mapping[str, int]],
        numbers: Callable[[], Iterable[Numbers]] = lambda: (),
        prices: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self._host = host
        self._load = load
        self._gauges = gauges
        self._waiting = waiting
        self._numbers = numbers
        self._prices = prices or {}

    def collect(self) -> Iterable[Metric]:
        """Return the counters as ``holdfast_…_total``, the gauges and the histograms."""
        for name, value in msgspec.structs.asdict(self._host.stats).items():
            yield CounterMetricFamily(f"holdfast_{name}", MEANINGS[name], value=value)
        yield from self._spans()
        yield self._calls()
        yield self._dollars()
        yield from self._timings()
        for name, text, number in self._gauges():
            yield GaugeMetricFamily(f"holdfast_{name}", text, value=number)
        waiting = GaugeMetricFamily(
            "holdfast_waiting_streams", "Owned streams that wait, by cause.", labels=["reason"]
        )
        for reason, count in sorted(self._waiting().items()):
            waiting.add_metric([reason], count)
        yield waiting
        yield from self._labelled()
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
            "Lost spans: too many waited, or the collector was too slow.",
            value=dropped,
        )

    def _calls(self) -> Metric:
        text = "Calls to paid and shared services, failed ones and handlers' fetches included."
        calls = CounterMetricFamily("holdfast_api_calls", text, labels=["service", "operation"])
        for names, count in sorted(self._host.meter.calls.items()):
            calls.add_metric(names, count)
        return calls

    def _dollars(self) -> Metric:
        text = "The list price of these calls, in dollars, without services of unknown price."
        dollars = CounterMetricFamily("holdfast_api_dollars", text, labels=["service"])
        sums: dict[str, float] = {service: 0.0 for service, _ in self._prices}
        for (service, operation), count in self._host.meter.calls.items():
            if service in sums:
                price = self._prices.get((service, operation), self._prices.get((service, ""), 0.0))
                sums[service] += count * price / A_MILLION
        for service, total in sorted(sums.items()):
            dollars.add_metric([service], total)
        return dollars

    def _timings(self) -> Iterable[Metric]:
        for name, timings in self._host.timings:
            family = HistogramMetricFamily(f"holdfast_{name}", timings.meaning, labels=[timings.label])
            for value, histogram in timings.items():
                family.add_metric([value], histogram.buckets(), histogram.sum_s)
            yield family

    def _labelled(self) -> Iterable[Metric]:
        """Return the metrics with a label, which kinds of work may share."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for kind, name, text, label, values in self._numbers():
            made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = families.setdefault(name, made(f"holdfast_{name}", text, labels=[label]))
            for value, number in values.items():
                family.add_metric([value], number)
        return families.values()


class NodesWanted(Collector):
    """Takes a sample whenever the metrics are read. ``ready`` returns the number of ready messages in each
    queue whose depth is known. A node that isn't a member, or has taken only one sample, shows nothing."""

    def __init__(self, host: Host, app: str, ready: Callable[[], Mapping[str, int]]) -> None:
        self._host = host
        self._app = app
        self._ready = ready
        self._history = SampleHistory()

    def collect(self) -> Iterable[Metric]:
        wanted = GaugeMetricFamily(
            "holdfast_nodes_wanted",
            "How many nodes the app needs. Unchanged while loads or queue depths are unknown. Every node"
            " shows the same number: take the maximum over nodes, not the sum.",
            labels=["app"],
        )
        membership = self._host.membership
        if membership.alive:
            now = ClusterSample(self._host.clock.monotonic(), [*membership.view.values()], {**self._ready()})
            if (before := self._history.add(now)) is not None:
                wanted.add_metric([self._app], advise(self._app, before, now).wanted)
        yield wanted
