"""The metrics of the services that a node uses: depths of queues, risks, and what keeps a database from
cleaning up."""

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
"""The interval for queues with cheap calls."""

PAID_EVERY_S = 60.0
"""The interval for queues whose calls cost money."""

HEALTH_EVERY_S = 30.0
RISKS_EVERY_S = 300.0

Risks = Callable[[], Awaitable[list[tuple[str, Risk]]]]
Health = Callable[[], Awaitable[Mapping[str, DatabaseHealth]]]


class ServiceMetrics(Collector):
    """Reads the depths of ``queues``, the ``risks`` of the servers' settings, and the ``health`` of
    databases. Unknown numbers are left out: a gauge at 0 would be wrong."""

    def __init__(self, host: Host, queues: Mapping[str, Queue], risks: Risks, health: Health) -> None:
        self._depths = {
            name: ServiceQuestion(
                host, f"queue {name}", queue.depth, PAID_EVERY_S if queue.linger_s else FREE_EVERY_S
            )
            for name, queue in queues.items()
        }
        self._has_age = {name for name, queue in queues.items() if queue.tells_lag}
        self._risks = ServiceQuestion(host, "risks", risks, RISKS_EVERY_S)
        self._health = ServiceQuestion(host, "databases", health, HEALTH_EVERY_S)

    async def refresh(self) -> None:
        """Ask the services that are due; call this before the metrics are read."""
        depths = [depth.refresh() for depth in self._depths.values()]
        await asyncio.gather(*depths, self._risks.refresh(), self._health.refresh())

    def ready(self) -> dict[str, int]:
        """Return the number of ready messages in each queue whose depth is known."""
        answers = {name: asked.answer for name, asked in self._depths.items()}
        return {name: depth.ready for name, depth in answers.items() if depth is not None}

    def collect(self) -> Iterable[Metric]:
        yield from self._of_queues()
        yield from self._of_databases()
        found = GaugeMetricFamily(
            "holdfast_store_risks",
            "Risks from the settings of queue and state store, by severity: `failed` will lose commits,"
            " `warning` may lose them in an accident. `holdfast doctor` names each.",
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
            " Every node shows the same number: take the maximum over nodes, not the sum.",
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
            if name in self._has_age:
                age.add_metric([name], depth.lag_s)
        yield messages
        yield age
        failed = sum(asked.failed for asked in self._depths.values())
        yield GaugeMetricFamily(
            "holdfast_queues_unknown",
            "Queues that didn't answer the last question for their depth.",
            value=failed,
        )

    def _of_databases(self) -> Iterable[Metric]:
        snapshot = GaugeMetricFamily(
            "holdfast_database_snapshot_seconds",
            "The age of the oldest snapshot that keeps PostgreSQL from removing old versions of rows, by its"
            " holder: a `transaction` or a `prepared` one.",
            labels=["setting", "holder"],
        )
        behind = GaugeMetricFamily(
            "holdfast_database_snapshot_transactions",
            "The number of transactions after that snapshot, by its holder: also a replication `slot`, or a"
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
