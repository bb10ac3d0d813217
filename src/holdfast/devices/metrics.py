"""The numbers of outboxes for a node's metrics page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.devices.work import DeviceWork

COUNTERS = {
    "turns": "Transactions of dispatchers.",
    "sent": "Commands sent, repetitions included.",
    "repeated": "Commands sent again after no answer had come in time.",
    "strays": "Answers that fitted no published command; they changed nothing.",
    "late": "Answers to an earlier try than the last one: patience is shorter than answers take.",
    "strangers": "Heartbeats and answers of devices that never had a command; they are ignored.",
    "briefs": "Briefs of closed commands that were sent.",
}
GAUGES = {
    "in_flight": "Devices with an awaited answer (limit: in_flight_max).",
    "shards": "Shards of devices that the node serves.",
    "connected": "Shards that are connected to the broker.",
    "away": "Devices that are known to be away.",
}


def numbers(work: DeviceWork) -> dict[str, int]:
    """Return the numbers of an outbox by the names of its metrics."""
    dispatcher, counts = work.dispatcher, work.dispatcher.counts
    return {
        "turns": counts.turns,
        "sent": counts.sent,
        "repeated": counts.repeated,
        "strays": counts.unmatched,
        "late": counts.late,
        "strangers": counts.unknown_devices,
        "briefs": work.briefs.sent if work.briefs else 0,
        "in_flight": dispatcher.in_flight,
        "shards": len(dispatcher.shards),
        "connected": sum(shard.connected for shard in dispatcher.shards.values()),
        "away": dispatcher.away,
    }


class OutboxMetrics(Collector):
    """Reads the numbers of a node's outboxes for each request of the page."""

    def __init__(self, works: Sequence[DeviceWork]) -> None:
        self._works = works

    def collect(self) -> Iterable[Metric]:
        """Yield every number as ``holdfast_outbox_…`` by outbox, and closed commands also by state."""
        read = {work.name: numbers(work) for work in self._works}
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"holdfast_outbox_{name}", text, labels=["outbox"])
            for outbox, values in read.items():
                counter.add_metric([outbox], values[name])
            yield counter
        text = "Commands closed, by state."
        closed = CounterMetricFamily("holdfast_outbox_closed", text, labels=["outbox", "state"])
        for work in self._works:
            for state, count in work.dispatcher.counts.ends.items():
                closed.add_metric([work.name, state.value], count)
        yield closed
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"holdfast_outbox_{name}", text, labels=["outbox"])
            for outbox, values in read.items():
                gauge.add_metric([outbox], values[name])
            yield gauge
