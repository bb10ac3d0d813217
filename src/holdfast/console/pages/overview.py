"""The overview: the cluster at a glance, and what needs attention."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from holdfast.console.access import Group
from holdfast.console.overview import SAMPLES, Overview, Sample
from holdfast.console.parts import ConsoleParts
from holdfast.console.rendering import chart, count, html_response, rate
from holdfast.operate.survey import calls_per_message

MS_PER_S = 1000.0
NODES_MOST = 50
QUEUES_MOST = 30


class OverviewPage:
    """The overview, which is the same for all who may read: it is made once for many."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def page(self, request: web.Request) -> web.Response:
        """Answer with the page."""
        return self._parts.renderer.page(
            request,
            "overview.html",
            title="Overview",
            content=self._parts.renderer.safe(await self._content()),
        )

    async def part(self, request: web.Request) -> web.Response:
        """Answer with what changes on it."""
        return html_response(await self._content())

    async def _content(self) -> str:
        self._parts.attention.asked()
        return await self._parts.cache.get("overview", self._make)

    async def _make(self) -> str:
        overview, index = self._parts.overview, self._parts.index
        members = overview.members
        queues = sorted(
            overview.queues.values(),
            key=lambda queue: (not queue.error, -queue.dead, -queue.ready, queue.stream),
        )
        return self._parts.renderer.part(
            "parts/overview.html",
            known=overview.looked_at is not None,
            members=members,
            lost=overview.lost.all()[:NODES_MOST],
            nodes_most=NODES_MOST,
            streams=len(index),
            parked=len(index.parked),
            waits=len(index.waits),
            waiting=overview.waiting,
            briefs=overview.briefs,
            dead=overview.dead,
            running=overview.running,
            needs=overview.needs(),
            charts=charts(overview),
            from_prometheus=overview.hour is not None,
            prometheus_error=overview.prometheus_error,
            calls=calls_per_message(member.load for member in members),
            queues=queues[:QUEUES_MOST],
            queues_total=len(queues),
            tasks=overview.tasks,
            tables=overview.tables,
            age_s=overview.age_s,
            index_age_s=index.age_s,
        )


def charts(overview: Overview) -> list[dict[str, Any]]:
    """Return the charts of the last hour. What lies before the console's start is a gap."""
    samples = list(overview.samples)
    gap: list[float | None] = [None] * (SAMPLES - len(samples))
    last = samples[-1] if samples else Sample(None, overview.waiting, overview.dead, overview.running)
    hour = overview.hour or {
        name: [*gap, *(getattr(sample, name) for sample in samples)] for name in Sample.__struct_fields__
    }
    drawn: list[tuple[str, str, str, str, float]] = [
        ("Messages handled", _rate(last.handled_per_s), "\u00a0/s", "handled_per_s", 1.0),
        ("Queue to commit, p99", _rate(_scaled(last.p99_s, MS_PER_S)), "\u00a0ms", "p99_s", MS_PER_S),
        ("Queue to commit, p50", _rate(_scaled(last.p50_s, MS_PER_S)), "\u00a0ms", "p50_s", MS_PER_S),
        ("Messages waiting", count(overview.waiting), "", "waiting", 1.0),
        ("Dead letters", count(overview.dead), "", "dead", 1.0),
        ("Tasks running", count(overview.running), "", "running", 1.0),
    ]
    return [
        {
            "label": label,
            "now": now,
            "unit": unit,
            "drawn": chart([_scaled(value, scale) for value in hour[name]]),
        }
        for label, now, unit, name, scale in drawn
    ]


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _rate(value: float | None) -> str:
    return "—" if value is None else rate(value)


def groups(parts: ConsoleParts) -> list[Group]:
    """The routes of the overview."""
    page = OverviewPage(parts)
    return [("read", [web.get("/", page.page), web.get("/parts/overview", page.part)])]
