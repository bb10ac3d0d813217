"""The numbers of outboxes for a node's metrics page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.devices.work import DeviceWork

Number = tuple[str, Callable[[DeviceWork], int]]
"""The text of a metric, and its value."""

COUNTERS: dict[str, Number] = {
    "turns": (
        "Transactions of dispatchers.",
        lambda work: work.dispatcher.counts.turns,
    ),
    "sent": ("Commands sent, repetitions included.", lambda work: work.dispatcher.counts.sent),
    "repeated": (
        "Commands sent again after no answer had come in time.",
        lambda work: work.dispatcher.counts.repeated,
    ),
    "strays": (
        "Answers that fitted no published command; they changed nothing.",
        lambda work: work.dispatcher.counts.unmatched,
    ),
    "late": (
        "Answers to an earlier try than the last one: patience is shorter than answers take.",
        lambda work: work.dispatcher.counts.late,
    ),
    "strangers": (
        "Heartbeats and answers of devices that never had a command; they are ignored.",
        lambda work: work.dispatcher.counts.unknown_devices,
    ),
    "briefs": (
        "Briefs of closed commands that were sent.",
        lambda work: work.briefs.sent if work.briefs else 0,
    ),
}
GAUGES: dict[str, Number] = {
    "in_flight": (
        "Devices with an awaited answer (limit: in_flight_max).",
        lambda work: work.dispatcher.in_flight,
    ),
    "shards": ("Shards of devices that the node serves.", lambda work: len(work.dispatcher.shards)),
    "connected": (
        "Shards that are connected to the broker.",
        lambda work: sum(shard.connected for shard in work.dispatcher.shards.values()),
    ),
    "away": ("Devices that are known to be away.", lambda work: work.dispatcher.away),
}


class OutboxMetrics(Collector):
    """Reads the numbers of a node's outboxes for each request of the page."""

    def __init__(self, works: Sequence[DeviceWork]) -> None:
        self._works = works

    def collect(self) -> Iterable[Metric]:
        """Yield every number as ``holdfast_outbox_…`` by outbox, and closed commands also by state."""
        for name, (text, read) in COUNTERS.items():
            counter = CounterMetricFamily(f"holdfast_outbox_{name}", text, labels=["outbox"])
            for work in self._works:
                counter.add_metric([work.name], read(work))
            yield counter
        text = "Commands closed, by state."
        closed = CounterMetricFamily("holdfast_outbox_closed", text, labels=["outbox", "state"])
        for work in self._works:
            for state, count in work.dispatcher.counts.ends.items():
                closed.add_metric([work.name, state.value], count)
        yield closed
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(f"holdfast_outbox_{name}", text, labels=["outbox"])
            for work in self._works:
                gauge.add_metric([work.name], read(work))
            yield gauge
