"""The metric of the number of nodes that an app needs. Every node of the app shows the same number, from the
loads of all nodes and the depths of the queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.rules.cluster.scaling import ClusterSample, SampleHistory, advise


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
