"""The number of nodes that an app wants, as a metric: every node of the app tells the same, from the loads
that all report and the depths of the queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.rules.cluster.scaling import Glance, Looks, wish


class NodesWanted(Collector):
    """Looks whenever the metrics are read. ``ready`` returns how many messages wait in each queue whose depth
    is known. A node that isn't a member, or has looked but once, tells nothing."""

    def __init__(self, host: Host, app: str, ready: Callable[[], Mapping[str, int]]) -> None:
        self._host = host
        self._app = app
        self._ready = ready
        self._looks = Looks()

    def collect(self) -> Iterable[Metric]:
        wanted = GaugeMetricFamily(
            "holdfast_nodes_wanted",
            "How many nodes the app wants. Unchanged while loads or queue depths are unknown. Every node"
            " tells the same: take the maximum over nodes, not the sum.",
            labels=["app"],
        )
        if self._host.membership.alive:
            now = Glance(
                self._host.clock.monotonic(), [*self._host.membership.view.values()], {**self._ready()}
            )
            if (before := self._looks.add(now)) is not None:
                wanted.add_metric([self._app], wish(self._app, before, now).wanted)
        yield wanted
