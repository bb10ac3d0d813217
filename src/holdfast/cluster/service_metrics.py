"""The metrics of the services that a node uses: depths of queues, risks, and what keeps a database from
cleaning up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cluster.host import Host
from holdfast.ports.queue import Queue
from holdfast.ports.state import DatabaseHealth, Risk

FREE_EVERY_S = 10.0
"""The interval for queues with cheap calls."""

PAID_EVERY_S = 60.0
"""The interval for queues whose calls cost money."""

HEALTH_EVERY_S = 30.0
RISKS_EVERY_S = 300.0

T = TypeVar("T")

ANSWER_S = 2.0
"""Seconds that a reader of the metrics waits for an answer."""

KNOWN_TIMES = 3
"""The number of intervals for which an answer counts."""

REST_TIMES = 50
"""The pause after a slow answer, as a multiple of its time: counting a deep queue costs the service work."""

Risks = Callable[[], Awaitable[list[tuple[str, Risk]]]]
Health = Callable[[], Awaitable[Mapping[str, DatabaseHealth]]]


class ServiceQuestion(Generic[T]):
    """One question to a service, asked at most every ``every_s`` seconds, and less often if its answers take
    long. ``about`` names it in the log."""

    def __init__(self, host: Host, about: str, ask: Callable[[], Awaitable[T]], every_s: float) -> None:
        self._host = host
        self._about = about
        self._ask_it = ask
        self._every_s = every_s
        self._asked_at: float | None = None
        self._answered_at = 0.0
        self._took_s = 0.0
        self._answer: T | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def _pause_s(self) -> float:
        return max(self._every_s, REST_TIMES * self._took_s)

    async def refresh(self) -> None:
        """Ask if it is time, and wait a moment for the answer. The next reader gets a later answer."""
        now = self._host.clock.monotonic()
        if self._idle.is_set() and (self._asked_at is None or now >= self._asked_at + self._pause_s):
            self._asked_at = now
            self._idle.clear()
            if self._host.tasks.spawn(self._ask()) is None:
                self._idle.set()
        await self._host.clock.wait(self._idle, ANSWER_S)

    @property
    def answer(self) -> T | None:
        """The last answer; None if the last question failed, or the answer is too old."""
        known_s = self._host.clock.monotonic() - self._answered_at
        return self._answer if known_s < KNOWN_TIMES * self._pause_s else None

    @property
    def failed(self) -> bool:
        """True if the question was asked and has no answer."""
        return self._asked_at is not None and self.answer is None

    async def _ask(self) -> None:
        asked_at = self._host.clock.monotonic()
        try:
            self._answer = await self._ask_it()
            self._answered_at = self._host.clock.monotonic()
            self._took_s = self._answered_at - asked_at
        except Exception as error:  # noqa: BLE001 - an adapter of another package may raise anything
            self._answer = None
            self._host.log.debug("cannot read a service's metrics", about=self._about, error=repr(error))
        finally:
            self._idle.set()


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
