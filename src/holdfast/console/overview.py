"""The cluster at a glance: nodes, queues, tasks, tables of products, what needs attention, the last hour."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.assembly.products import operator_parts
from holdfast.cluster.host import Host
from holdfast.cluster.view import View
from holdfast.common.redaction import redact
from holdfast.common.text import duration
from holdfast.console.attention import Attention
from holdfast.console.events import Events
from holdfast.console.index import StreamIndex
from holdfast.console.latency import Latency
from holdfast.console.lost import LostNodes, lost_since
from holdfast.console.prometheus import Hour, PrometheusHistory
from holdfast.console.rendering import count, quoted, stream_path
from holdfast.errors import HoldfastError
from holdfast.operate.products import StatusPart, StatusTable
from holdfast.operate.survey import (
    NodeReport,
    QueueStatus,
    node_report,
    node_troubles,
    queue_status,
    undeclared_queues,
    unplaced_queues,
)
from holdfast.ports.coordinator import Member
from holdfast.ports.state import Risk
from holdfast.rules.tasks.task import State
from holdfast.tasks.names import event_queue
from holdfast.wiring.services import Services

NODES_S = (1.0, 30.0)
QUEUES_S = (3.0, 60.0)
REST_S = (5.0, 120.0)
"""Seconds between two reads of nodes, queues and the rest: while the console is watched, and else."""

HISTORY_S = (15.0, 120.0)
RISKS_S = 300.0
SAMPLE_S = 15.0
SAMPLES = 240
"""The samples of one hour, which the charts show."""

LONG_S = 60.0
"""Seconds of waiting after which a stream may need attention."""

AT_ONCE = 16
"""Queues that are read at the same time."""

NEEDS_EACH = 5
"""Streams of each kind that are named among what needs attention."""


class Sample(msgspec.Struct, frozen=True):
    """The cluster at one moment. ``handled_per_s`` is None if it isn't known. ``p50_s`` and ``p99_s`` are the
    times of recent messages from the queue to their commit; None without such messages."""

    handled_per_s: float | None
    waiting: int
    dead: int
    running: int
    p50_s: float | None = None
    p99_s: float | None = None


class Need(msgspec.Struct, frozen=True):
    """A fact that needs an operator's attention. ``kind`` is ``bad`` if something stands still or may be
    lost. ``command`` or ``link`` is the next step."""

    kind: Literal["bad", "warn"]
    label: str
    text: str
    link: str = ""
    link_text: str = ""
    command: str = ""


class TaskTotals(msgspec.Struct, frozen=True):
    """The tasks of one app: how many of each type are in each state."""

    app: str
    types: dict[str, dict[str, int]]
    error: str = ""

    def total(self, state: str) -> int:
        """Return how many tasks are in a state."""
        return sum(states.get(state, 0) for states in self.types.values())


class Overview:
    """The state of a cluster as a console knows it, without the streams.

    Attributes:
        lost: the nodes that ended lately without a drain.
        queues: the queues by name.
        knows_queues: whether the queues were read once.
        tasks: the tasks of each app.
        tables: the tables of products.
        troubles: problems of nodes, in words.
        risks: data that the settings of servers put at risk, each with the setting that names the server.
        samples: the last hour, as this console has seen it.
        hour: the last hour from Prometheus; None without one, or if it doesn't answer.
        prometheus_error: the error of reading from Prometheus.
        looked_at: the monotonic time of the last read of nodes from the coordinator.
    """

    def __init__(
        self,
        services: Services,
        host: Host,
        view: View,
        index: StreamIndex,
        lost: LostNodes,
        events: Events,
        attention: Attention,
    ) -> None:
        self._services = services
        self._host = host
        self._clock = host.clock
        self._view = view
        self._index = index
        self.lost = lost
        self._events = events
        self._attention = attention
        self._handled: dict[str, int] = {}
        self._handled_at: float | None = None
        self._per_s: float | None = None
        self._risks_at: float | None = None
        self.knows_queues = False
        self._latency = Latency()
        self._has_reports = False
        self._took: Sequence[float | None] = (None, None)
        self.queues: dict[str, QueueStatus] = {}
        self.tasks: list[TaskTotals] = []
        self.tables: list[StatusTable] = []
        self.troubles: list[str] = []
        self.undeclared: list[str] = []
        self.risks: list[tuple[str, Risk]] = []
        self._prometheus = PrometheusHistory.of(services.config, self._clock)
        self.hour: Hour | None = None
        self.prometheus_error = ""
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.looked_at: float | None = None
        self.revision = 0

    @property
    def members(self) -> list[Member]:
        """The living nodes, by name."""
        return sorted(self._view.members.values(), key=lambda member: (member.name, member.id))

    @property
    def age_s(self) -> float | None:
        """The seconds since nodes were read; None before the first time."""
        return None if self.looked_at is None else self._clock.monotonic() - self.looked_at

    @property
    def waiting(self) -> int:
        """The number of messages that wait in the queues that could be read, without briefs."""
        return sum(queue.ready + queue.delayed for queue in self.queues.values()) - self.briefs

    @property
    def briefs(self) -> int:
        """The number of briefs that no program has read. They don't wait for nodes."""
        named = {event_queue(app.app) for app in self.tasks}
        return sum(queue.ready + queue.delayed for name, queue in self.queues.items() if name in named)

    @property
    def dead(self) -> int:
        """The number of dead letters in the queues that could be read."""
        return sum(queue.dead for queue in self.queues.values())

    @property
    def running(self) -> int:
        """The number of running tasks."""
        return sum(app.total(State.RUNNING) for app in self.tasks)

    # --- looking

    async def look_at_nodes(self) -> None:
        """Read the reports of nodes again and again, until cancelled."""
        while True:
            await self.look_once_at_nodes()
            await self._attention.pause(*NODES_S)

    async def look_once_at_nodes(self) -> None:
        """Read the nodes from the coordinator, and the report of each."""
        try:
            await self._view.refresh()
            refreshed = True
        except HoldfastError as error:
            self._host.log.debug("cannot read members", error=str(error))
            refreshed = False
        ours = [member for member in self._view.members.values() if not member.foreign]
        answers = await asyncio.gather(*(node_report(self._host.peer, member) for member in ours))
        found = list(zip(ours, answers, strict=True))
        reports = {member.id: report for member, report in found if isinstance(report, NodeReport)}
        self.troubles = [trouble for member, report in found for trouble in node_troubles(member, report)]
        self._latency.take({member: report.took for member, report in reports.items()})
        self._has_reports = True
        self._index.reported(reports)
        if refreshed:
            self.looked_at = self._clock.monotonic()
        self._changed("overview", "streams")

    async def look_at_queues(self) -> None:
        """Read queues again and again, until cancelled."""
        while True:
            await self._look_at_queues()
            await self._attention.pause(*QUEUES_S)

    async def _look_at_queues(self) -> None:
        run = {name for member in self._view.members.values() for name in member.load.queues}
        try:
            held = {*await self._services.queue_names()}
            filled = {*await self._services.filled_queues()}
        except HoldfastError:
            held, filled = set(), set()  # the status of each queue has the error
        names = sorted({*run, *held, *filled, *self._index.names})
        found: dict[str, QueueStatus] = {}
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            statuses = await asyncio.gather(*(queue_status(self._services, name) for name in some))
            found |= dict(zip(some, statuses, strict=True))
        self.queues, self.knows_queues = found, True
        self.undeclared = [*undeclared_queues(filled, run), *unplaced_queues(found.values(), self.members)]
        self._changed("overview", "letters")

    async def look_at_the_rest(self) -> None:
        """Read tasks, tables of products and risks again and again, until cancelled."""
        while True:
            await self._look_at_tasks()
            await self._look_at_products()
            now = self._clock.monotonic()
            if self._risks_at is None or now - self._risks_at >= RISKS_S:
                self._risks_at = now
                try:
                    self.risks = await self._services.risks()
                except HoldfastError as error:
                    self._host.log.debug("cannot read risks", error=str(error))
            self._changed("overview", "tasks", "products")
            await self._attention.pause(*REST_S)

    async def _look_at_tasks(self) -> None:
        try:
            apps = await self._services.task_apps()
        except HoldfastError as error:
            self._host.log.debug("cannot list apps with tasks", error=str(error))
            return
        self.tasks = [await self._tasks_of(app) for app in sorted(apps)]

    async def _tasks_of(self, app: str) -> TaskTotals:
        try:
            counts = await self._services.task_store(app).counts()
        except HoldfastError as error:
            return TaskTotals(app, {}, redact(str(error)))
        types: dict[str, dict[str, int]] = {}
        for (name, state), number in sorted(counts.items()):
            types.setdefault(name, {})[state.value] = number
        return TaskTotals(app, types)

    async def _look_at_products(self) -> None:
        claims, tables = self._index.others.values(), []
        for product, part in operator_parts(StatusPart):
            own = [
                claim for claim in claims if product.claim_label and claim.key.startswith(product.claim_label)
            ]
            try:
                table = await part.status(self._services, self.members, own)
            except HoldfastError as error:
                self._host.log.debug("cannot read the status of a product", error=str(error))
                continue
            if table is not None and table.rows:
                tables.append(table)
        self.tables = tables

    async def look_at_prometheus(self) -> None:
        """Read the last hour from Prometheus, if it is set, again and again until cancelled."""
        while self._prometheus is not None:
            try:
                self.hour, self.prometheus_error = await self._prometheus.read(), ""
            except HoldfastError as error:
                self.hour, self.prometheus_error = None, str(error)
            self._changed("overview")
            await self._attention.pause(*HISTORY_S)

    async def sample(self) -> None:
        """Take samples for the charts, until cancelled."""
        while True:
            self.take_sample()
            await self._clock.sleep(SAMPLE_S)

    def take_sample(self) -> None:
        """Add a sample for the charts, once the queues are known."""
        if not self.knows_queues:
            return
        if self._has_reports:  # reports come less often than samples while the console isn't watched
            self._has_reports, self._took = False, self._latency.quantiles(0.5, 0.99)
            self._per_s = self._rate()
        self.samples.append(Sample(self._per_s, self.waiting, self.dead, self.running, *self._took))

    def _rate(self) -> float | None:
        """Return the messages per second that nodes have handled between the last two reads. None without a
        new read, or if no node was there both times."""
        before, before_at = self._handled, self._handled_at
        if self.looked_at is None or self.looked_at == before_at:
            return None
        self._handled = {member.id: member.load.handled for member in self._view.members.values()}
        self._handled_at = self.looked_at
        stayed = self._handled.keys() & before.keys()  # nodes count since they began
        if before_at is None or (self._handled and not stayed):
            return None
        count = sum(max(0, self._handled[member] - before[member]) for member in stayed)
        return count / (self.looked_at - before_at)

    def _changed(self, *topics: str) -> None:
        self.revision += 1
        self._events.publish(*topics)

    # --- what needs attention

    def needs(self) -> list[Need]:
        """Return what needs attention, the worst first."""
        found = [*self._stuck(), *self._dead_letters(), *self._unable(), *self._risky()]
        return sorted(found, key=lambda need: need.kind != "bad")

    def _stuck(self) -> Iterable[Need]:
        index = self._index
        yield from _named(
            "bad",
            "parked",
            [
                (key, f"{stream.parked}")
                for key in list(index.parked)[:NEEDS_EACH]
                if (stream := index.get(key)) is not None
            ],
            len(index.parked),
            "parked",
            "holdfast streams resume",
        )
        late = sorted(
            (waits for waits in index.waits.values() if waits.since_s >= LONG_S and waits.kind != "parked"),
            key=lambda waits: -waits.since_s,
        )
        yield from _named(
            "warn",
            "waits long",
            [(waits.key, f"{waits.sentence}, for {duration(waits.since_s)}") for waits in late[:NEEDS_EACH]],
            len(late),
            "waiting",
            "holdfast why",
        )
        unsent = sorted(
            (pending for pending in index.effects.values() if pending.oldest_s >= LONG_S),
            key=lambda pending: -pending.oldest_s,
        )
        yield from _named(
            "warn",
            "unsent",
            [(each.key, each.sentence) for each in unsent[:NEEDS_EACH]],
            len(unsent),
            "effects",
            "holdfast streams effects",
        )

    def _dead_letters(self) -> Iterable[Need]:
        dead = sorted((queue for queue in self.queues.values() if queue.dead), key=lambda queue: -queue.dead)
        before = self.samples[0].dead if self.samples else self.dead
        for queue in dead[:NEEDS_EACH]:
            yield Need(
                "warn",
                "dead letters",
                f"{_dead_letters_of(queue.dead)} of {queue.stream}",
                f"/dead-letters?queue={quoted(queue.stream)}",
                "Open them",
            )
        if len(dead) > NEEDS_EACH:
            yield Need(
                "warn",
                "dead letters",
                f"{len(dead) - NEEDS_EACH} more queues have dead letters",
                "/dead-letters",
                "All",
            )
        if self.dead > before:
            yield Need(
                "warn",
                "growing",
                f"{_dead_letters_of(self.dead - before)} more than at the beginning of the chart",
                "/dead-letters",
                "Find out why",
            )

    def _unable(self) -> Iterable[Need]:
        if self.looked_at is not None and not self._view.members:
            yield Need(
                "bad", "no node", "No node is alive: nothing is handled.", command="holdfast node MODULE:APP"
            )
        for trouble in self.troubles[: 2 * NEEDS_EACH]:
            yield Need("bad", "node", trouble, command="holdfast doctor")
        now = self._clock.wall()
        for node in self.lost.all()[:NEEDS_EACH]:
            yield Need("warn", "lost", lost_since(node, now), command="holdfast status")
        for queue in [queue for queue in self.queues.values() if queue.error][:NEEDS_EACH]:
            yield Need(
                "bad",
                "queue",
                f"queue {queue.stream} can't be read: {queue.error}",
                command="holdfast doctor",
            )
        for text in self.undeclared[:NEEDS_EACH]:
            yield Need("warn", "no node", text, command="holdfast status")
        for app in self.tasks:
            if app.error:
                yield Need("bad", "tasks", f"{app.app}: {app.error}", command="holdfast doctor")

    def _risky(self) -> Iterable[Need]:
        for setting, risk in self.risks:
            where = f" at {risk.server}" if risk.server else ""
            kind: Literal["bad", "warn"] = "bad" if risk.verdict == "failed" else "warn"
            yield Need(kind, "risk", f"{setting}{where}: {risk.text}. {risk.fix}", command="holdfast doctor")


def _dead_letters_of(number: int) -> str:
    return f"{count(number)} dead {'letter' if number == 1 else 'letters'}"


def _named(
    kind: Literal["bad", "warn"],
    label: str,
    some: Sequence[tuple[str, str]],
    total: int,
    standing: str,
    command: str,
) -> Iterable[Need]:
    for key, text in some:
        yield Need(kind, label, f"{key}: {text}", stream_path(key), "Open the stream", f"{command} {key}")
    if total > len(some) and some:
        more = total - len(some)
        yield Need(kind, label, f"{more} more streams", f"/streams?standing={standing}", "List them")
