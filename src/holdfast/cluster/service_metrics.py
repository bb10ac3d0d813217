"""The metrics of the services that a node uses: how full queues are, what is at risk, and what holds a
database up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.cluster.questions import ServiceQuestion
from holdfast.ports.queue import Queue
from holdfast.ports.state import DatabaseHealth, Risk

FREE_EVERY_S = 10.0
"""How often a queue is asked whose calls cost almost nothing."""

PAID_EVERY_S = 60.0
"""How often one is asked whose calls cost money."""

HEALTH_EVERY_S = 30.0
RISKS_EVERY_S = 300.0

Risks = Callable[[], Awaitable[list[tuple[str, Risk]]]]
Health = Callable[[], Awaitable[Mapping[str, DatabaseHealth]]]


class ServiceMetrics(Collector):
    """Asks ``queues`` for their depths, ``risks`` for what the settings of servers put at risk, and
    ``health`` for how databases are. What isn't known is left out: a gauge at 0 would say that it is."""

    def __init__(self, host: Host, queues: Mapping[str, Queue], risks: Risks, health: Health) -> None:
        self._depths = {
            name: ServiceQuestion(
                host, f"queue {name}", queue.depth, PAID_EVERY_S if queue.linger_s else FREE_EVERY_S
            )
            for name, queue in queues.items()
        }
        self._tells_age = {name for name, queue in queues.items() if queue.tells_lag}
        self._risks = ServiceQuestion(host, "risks", risks, RISKS_EVERY_S)
        self._health = ServiceQuestion(host, "databases", health, HEALTH_EVERY_S)

    async def look(self) -> None:
        """Ask what is due; call this before the metrics are read."""
        depths = [asked.look() for asked in self._depths.values()]
        await asyncio.gather(*depths, self._risks.look(), self._health.look())

    def ready(self) -> dict[str, int]:
        """Return how many messages are ready in each queue whose depth is known."""
        answers = {name: asked.answer for name, asked in self._depths.items()}
        return {name: depth.ready for name, depth in answers.items() if depth is not None}

    def collect(self) -> Iterable[Metric]:
        yield from self._of_queues()
        yield from self._of_databases()
        found = GaugeMetricFamily(
            "holdfast_store_risks",
            "What the settings of queue and state store put at risk, by how bad it is: `failed` says that"
            " commits will be lost, `warning` that they may be in an accident. `holdfast doctor` names each.",
            labels=["verdict"],
        )
        if (risks := self._risks.answer) is not None:
            for verdict in ("failed", "warning"):
                found.add_metric([verdict], sum(risk.verdict == verdict for _, risk in risks))
        yield found

    def _of_queues(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "holdfast_queue_messages",
            "Messages in a queue that nodes of this app receive from. `ready` ones wait, `in_flight` ones are"
            " with a node, `delayed` ones are hidden until their time, and `dead` ones are dead letters."
            " Every node tells the same: take the maximum over nodes, not the sum.",
            labels=["queue", "state"],
        )
        age = GaugeMetricFamily(
            "holdfast_queue_age_seconds",
            "The age of the oldest message in the queue that isn't deleted, where the queue knows it.",
            labels=["queue"],
        )
        for name, asked in self._depths.items():
            if (depth := asked.answer) is None:
                continue
            for state in ("ready", "in_flight", "delayed", "dead"):
                messages.add_metric([name, state], getattr(depth, state))
            if name in self._tells_age:
                age.add_metric([name], depth.lag_s)
        yield messages
        yield age
        failed = sum(asked.failed for asked in self._depths.values())
        yield GaugeMetricFamily(
            "holdfast_queues_unknown",
            "Queues that didn't tell how full they are when asked last.",
            value=failed,
        )

    def _of_databases(self) -> Iterable[Metric]:
        snapshot = GaugeMetricFamily(
            "holdfast_database_snapshot_seconds",
            "How old the oldest snapshot is that keeps PostgreSQL from removing old versions of rows, by who"
            " holds it: a `transaction` or a `prepared` one.",
            labels=["setting", "holder"],
        )
        behind = GaugeMetricFamily(
            "holdfast_database_snapshot_transactions",
            "How many transactions came after that snapshot, by who holds it: also a replication `slot`, or a"
            " `standby` by its feedback.",
            labels=["setting", "holder"],
        )
        rows = GaugeMetricFamily(
            "holdfast_database_rows",
            "Rows in Holdfast's tables in PostgreSQL, as its statistics have them: `live` ones, and `dead`"
            " ones, which are old versions that vacuum hasn't removed.",
            labels=["setting", "table", "kind"],
        )
        for setting, health in (self._health.answer or {}).items():
            for holder, seconds in health.snapshot_s.items():
                snapshot.add_metric([setting, holder], seconds)
            for holder, transactions in health.snapshot_transactions.items():
                behind.add_metric([setting, holder], transactions)
            for kind, counts in (("live", health.live_rows), ("dead", health.dead_rows)):
                for table, count in counts.items():
                    rows.add_metric([setting, table, kind], count)
        yield from (snapshot, behind, rows)
