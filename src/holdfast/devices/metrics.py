"""The numbers of outboxes for a node's metrics page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.devices.work import DeviceWork

Number = tuple[str, Callable[[DeviceWork], int]]
"""What it means, and where it is read."""

COUNTERS: dict[str, Number] = {
    "turns": (
        "Transactions in which a dispatcher wrote what had happened.",
        lambda work: work.dispatcher.counts.turns,
    ),
    "sent": ("Commands sent, repetitions included.", lambda work: work.dispatcher.counts.sent),
    "repeated": (
        "Commands sent again, for no answer had come in time.",
        lambda work: work.dispatcher.counts.repeated,
    ),
    "strays": (
        "Answers that fitted no command that was out; they changed nothing.",
        lambda work: work.dispatcher.counts.unmatched,
    ),
    "late": (
        "Answers to a try that another had followed: patience is shorter than answers take.",
        lambda work: work.dispatcher.counts.late,
    ),
    "strangers": (
        "Heartbeats and answers of devices that never had a command; nothing is kept of them.",
        lambda work: work.dispatcher.counts.unknown_devices,
    ),
    "briefs": (
        "Ends of commands that were told on the queue of briefs.",
        lambda work: work.briefs.told if work.briefs else 0,
    ),
}
GAUGES: dict[str, Number] = {
    "in_flight": (
        "Devices whose answer is waited for (limit: in_flight_max).",
        lambda work: work.dispatcher.in_flight,
    ),
    "shards": ("Shards of devices that the node serves.", lambda work: len(work.dispatcher.shards)),
    "connected": (
        "Of these, those that are connected to the broker.",
        lambda work: sum(shard.connected for shard in work.dispatcher.shards.values()),
    ),
    "away": ("Devices that are known to be away.", lambda work: work.dispatcher.away),
}


class OutboxMetrics(Collector):
    """Reads the outboxes of a node whenever the page is asked for."""

    def __init__(self, works: Sequence[DeviceWork]) -> None:
        self._works = works

    def collect(self) -> Iterable[Metric]:
        """Every number as ``holdfast_outbox_…``, by outbox; ends of commands by state, too."""
        for name, (text, read) in COUNTERS.items():
            counter = CounterMetricFamily(f"holdfast_outbox_{name}", text, labels=["outbox"])
            for work in self._works:
                counter.add_metric([work.name], read(work))
            yield counter
        text = "Commands that came to their end, by how."
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
