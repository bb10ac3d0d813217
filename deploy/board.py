"""The Grafana board and its panels. ``deploy/grafana/holdfast.json`` is generated from this."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

WIDTH = 24
HEIGHT = 8
JOB = '{job=~"$job"}'


class Query(NamedTuple):
    """One or several lines of a panel: ``legend`` names them by their labels."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """A picture of some series. Three fit in a row."""

    title: str
    text: str
    unit: Literal["short", "s", "ops", "currencyUSD"]
    queries: tuple[Query, ...]


class Row(NamedTuple):
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


def _sum(metric: str, by: str = "", of: str = "sum") -> Query:
    grouped = f" by ({by})" if by else ""
    return Query(f"{of}{grouped} ({metric}{JOB})", f"{{{{{by}}}}}" if by else "")


def _rate(counter: str, legend: str = "", by: str = "") -> Query:
    grouped = f" by ({by})" if by else ""
    expr = f"sum{grouped} (rate({counter}{JOB}[$__rate_interval]))"
    return Query(expr, f"{{{{{by}}}}}" if by else legend)


def _times(metric: str, label: str) -> tuple[Query, ...]:
    """The p50 and p99 of a histogram by its label."""
    rates = f"sum by ({label}, le) (rate({metric}_bucket{JOB}[$__rate_interval]))"
    return tuple(
        Query(f"histogram_quantile({share}, {rates})", f"{{{{{label}}}}} p{share * 100:.0f}")
        for share in (0.5, 0.99)
    )


ROWS = (
    Row(
        "What needs attention",
        (
            Panel(
                "Streams that wait",
                "Owned streams that can't continue, by the reason.",
                "short",
                (_sum("holdfast_waiting_streams", "reason"),),
            ),
            Panel(
                "Longest wait",
                "How long the longest waiting stream has waited.",
                "s",
                (_sum("holdfast_longest_wait_seconds", "reason", "max"),),
            ),
            Panel(
                "Parked, without a model, nodes cut off",
                "Each should be 0.",
                "short",
                (
                    Query(f"sum (holdfast_parked_streams{JOB})", "parked streams"),
                    Query(f"sum (holdfast_streams_without_models{JOB})", "streams without a model, by node"),
                    Query(f"sum (holdfast_member{JOB} == bool 0)", "nodes without a membership"),
                ),
            ),
            Panel(
                "Dead letters in queues",
                "Dead letters that have been neither redriven nor purged.",
                "short",
                (
                    Query(
                        'max by (queue) (holdfast_queue_messages{job=~"$job", state="dead"})',
                        "{{queue}}",
                    ),
                ),
            ),
            Panel(
                "Set aside",
                "Messages and tasks that went to the dead letters.",
                "ops",
                (
                    _rate("holdfast_set_aside_total", "given up"),
                    _rate("holdfast_malformed_total", "without a usable key"),
                ),
            ),
            Panel(
                "Oldest pending effect",
                "How long the oldest effect has waited for its target.",
                "s",
                (Query(f"max (holdfast_pending_effects_seconds{JOB})", "oldest"),),
            ),
        ),
    ),
    Row(
        "Streams",
        (
            Panel(
                "Messages committed",
                "By node.",
                "ops",
                (_rate("holdfast_committed_total", by="instance"),),
            ),
            Panel(
                "From receipt to commit",
                "How long messages take in nodes.",
                "s",
                _times("holdfast_delivery_seconds", "stream"),
            ),
            Panel(
                "Handlers",
                "How long handlers take for a message.",
                "s",
                _times("holdfast_handler_seconds", "stream"),
            ),
            Panel(
                "Commits",
                "How long the state store takes for a commit.",
                "s",
                _times("holdfast_commit_seconds", "stream"),
            ),
            Panel(
                "Stalls at changes of nodes",
                "How long streams stood still when their node ended or when they moved; usually below 0.3 s.",
                "s",
                _times("holdfast_stall_seconds", "stream"),
            ),
            Panel(
                "Streams by node",
                "Streams that each node owns.",
                "short",
                (_sum("holdfast_streams", "instance"),),
            ),
            Panel(
                "Oldest message held",
                "How long ago the oldest message on a node was received.",
                "s",
                (_sum("holdfast_oldest_message_seconds", "stream", "max"),),
            ),
            Panel(
                "Effects taken",
                "Effects that targets took, and how many wait.",
                "short",
                (
                    _rate("holdfast_effects_total", "taken per second"),
                    Query(f"sum (holdfast_pending_effects{JOB})", "pending"),
                ),
            ),
            Panel(
                "From commit to target",
                "How long effects wait until their targets have taken them.",
                "s",
                _times("holdfast_effect_seconds", "target"),
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel(
                "Messages that wait",
                "Ready messages by queue.",
                "short",
                (
                    Query(
                        'max by (queue) (holdfast_queue_messages{job=~"$job", state="ready"})',
                        "{{queue}}",
                    ),
                ),
            ),
            Panel(
                "Age of the oldest message",
                "For queues that report it.",
                "s",
                (_sum("holdfast_queue_age_seconds", "queue", "max"),),
            ),
            Panel(
                "Messages in flight and delayed",
                "With a node, or hidden until their time.",
                "short",
                (
                    Query(
                        "max by (queue, state)"
                        ' (holdfast_queue_messages{job=~"$job", state=~"in_flight|delayed"})',
                        "{{queue}} {{state}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Tasks",
        (
            Panel(
                "Outcomes",
                "Tasks that ended, by how.",
                "ops",
                (
                    _rate("holdfast_tasks_succeeded_total", "succeeded"),
                    _rate("holdfast_tasks_failed_total", "failed"),
                    _rate("holdfast_tasks_timed_out_total", "timed out"),
                    _rate("holdfast_tasks_retried_total", "tried again"),
                ),
            ),
            Panel(
                "From sending to begin",
                "How long tasks wait for their first attempt.",
                "s",
                _times("holdfast_task_wait_seconds", "type"),
            ),
            Panel(
                "Attempts",
                "How long attempts run.",
                "s",
                _times("holdfast_task_run_seconds", "type"),
            ),
        ),
    ),
    Row(
        "Nodes",
        (
            Panel(
                "Slots at work",
                "By kind of work, with the number of slots.",
                "short",
                (
                    Query(f"sum by (work) (holdfast_slots_busy{JOB})", "{{work}} at work"),
                    Query(f"sum by (work) (holdfast_slots_max{JOB})", "{{work}} at most"),
                ),
            ),
            Panel(
                "Models",
                "In how many slots each model is loaded, and failed loads.",
                "short",
                (
                    _sum("holdfast_models_loaded", "model"),
                    Query(
                        f"sum by (model) (increase(holdfast_model_load_failures_total{JOB}[5m]))",
                        "{{model}} failed",
                    ),
                ),
            ),
            Panel(
                "Slots that died, nodes that were lost",
                "In the last five minutes.",
                "short",
                (
                    Query(f"sum (increase(holdfast_slot_deaths_total{JOB}[5m]))", "slots"),
                    Query(f"sum (increase(holdfast_evictions_total{JOB}[5m]))", "nodes"),
                ),
            ),
            Panel(
                "Calls to services",
                "By service.",
                "ops",
                (_rate("holdfast_api_calls_total", by="service"),),
            ),
            Panel(
                "Dollars an hour",
                "What these calls cost at list price, if it is known.",
                "currencyUSD",
                (
                    Query(
                        f"3600 * sum by (service) (rate(holdfast_api_dollars_total{JOB}[$__rate_interval]))",
                        "{{service}}",
                    ),
                ),
            ),
            Panel(
                "Oldest snapshot in PostgreSQL",
                "What prevents old versions of rows from being removed, and for how long.",
                "s",
                (
                    Query(
                        f"max by (setting, holder) (holdfast_database_snapshot_seconds{JOB})",
                        "{{setting}} {{holder}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Devices",
        (
            Panel(
                "Commands sent",
                "By outbox, repetitions included.",
                "ops",
                (_rate("holdfast_outbox_sent_total", by="outbox"),),
            ),
            Panel(
                "Devices in flight and away",
                "Devices whose answer is awaited, and devices that are offline.",
                "short",
                (
                    Query(f"sum by (outbox) (holdfast_outbox_in_flight{JOB})", "{{outbox}} in flight"),
                    Query(f"sum by (outbox) (holdfast_outbox_away{JOB})", "{{outbox}} away"),
                ),
            ),
            Panel(
                "Parts without a connection",
                "Parts of outboxes on nodes that have no connection to the MQTT server.",
                "short",
                (
                    Query(
                        f"sum by (outbox) (holdfast_outbox_shards{JOB})"
                        f" - sum by (outbox) (holdfast_outbox_connected{JOB})",
                        "{{outbox}}",
                    ),
                ),
            ),
        ),
    ),
)

SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> dict[str, Any]:
    """The board as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    at = 0
    for row in ROWS:
        panels.append(
            _placed(len(panels), 0, at, WIDTH, 1) | {"type": "row", "title": row.title, "panels": []}
        )
        at += 1
        for start in range(0, len(row.panels), 3):
            for place, panel in enumerate(row.panels[start : start + 3]):
                width = WIDTH // 3
                panels.append(_placed(len(panels), place * width, at, width, HEIGHT) | _drawn(panel))
            at += HEIGHT
    return {
        "title": "Holdfast",
        "uid": "holdfast",
        "tags": ["holdfast"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "label": "Cluster",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(holdfast_member, job)", "refId": "job"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def _placed(number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _drawn(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or panel.title,
            }
            for number, query in enumerate(panel.queries)
        ],
    }
