"""Writes Prometheus' rules, Grafana's board, and what the Helm chart takes from the code: ``make docs``.

Rules and board are made of ``deploy/alerts.py`` and ``deploy/board.py``, and of the metrics that nodes,
outboxes and gateways show: what names a metric, or a label of one, that doesn't exist is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client.core import Metric

from deploy.alerts import ALERTS, RECORDINGS, Alert
from deploy.board import ROWS, dashboard
from deploy.chart import ABOUT, CHART_RULES, SCHEMA, about, schema
from docs.generate import all_metrics

DEPLOY = Path(__file__).parent
RULES = DEPLOY / "prometheus" / "holdfast.rules.yml"
BOARD = DEPLOY / "grafana" / "holdfast.json"

HEAD = "# Rules for Prometheus, generated from deploy/alerts.py by `make docs`: change them there.\n"
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to every series."""

NAME = re.compile(r"\b(?:\w+:)?holdfast_\w+(?::\w+)?")
SELECTOR = re.compile(r"\b((?:\w+:)?holdfast_\w+(?::\w+)?)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


class UnknownMetric(ValueError):
    """A rule or panel names a metric or label that doesn't exist."""


def shown(metrics: Iterable[Metric]) -> dict[str, set[str]]:
    """Return the names of all series, each with its labels."""
    found: dict[str, set[str]] = {}
    for metric in metrics:
        labels = {*getattr(metric, "_labelnames", ())} | TARGET_LABELS
        if metric.type == "counter":
            found[f"{metric.name}_total"] = labels
        elif metric.type == "histogram":
            found |= {f"{metric.name}_bucket": labels | {"le"}}
            found |= {f"{metric.name}_{part}": labels for part in ("count", "sum")}
        else:
            found[metric.name] = labels
    return found


def check(where: str, expr: str, known: Mapping[str, set[str]]) -> None:
    """Raise UnknownMetric if an expression names a series or label that doesn't exist."""
    named = {*NAME.findall(expr)} - {""}
    if unknown := named - known.keys():
        raise UnknownMetric(f"{where}: nothing shows {', '.join(sorted(unknown))}")
    for name, matchers in SELECTOR.findall(expr):
        labels = {*re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", matchers))}
        if strange := labels - known[name]:
            raise UnknownMetric(f"{where}: {name} has no label {', '.join(sorted(strange))}")
    all_labels = TARGET_LABELS.union(*(known[name] for name in named))
    for grouped in GROUPED.findall(expr):
        if strange := {label.strip() for label in grouped.split(",")} - all_labels:
            raise UnknownMetric(f"{where}: no metric there has the label {', '.join(sorted(strange))}")


def check_all(known: Mapping[str, set[str]]) -> None:
    """Raise UnknownMetric if any rule, text of an alert or panel names one that doesn't exist."""
    for recording in RECORDINGS:
        check(recording.name, recording.expr, known)
    for alert in ALERTS:
        check(alert.name, alert.expr, known)
        labels = {*re.findall(r"\$labels\.(\w+)", alert.summary)}
        kept = {label.strip() for group in GROUPED.findall(alert.expr) for label in group.split(",")}
        if strange := labels - (kept or TARGET_LABELS):
            raise UnknownMetric(f"{alert.name}: its series have no label {', '.join(sorted(strange))}")
    for row in ROWS:
        for panel in row.panels:
            for query in panel.queries:
                check(f"panel {panel.title!r}", query.expr, known)


def rules() -> str:
    """The rules as Prometheus reads them."""
    groups = [*_group("holdfast-recordings", _recordings()), *_group("holdfast-alerts", _alerts())]
    return "".join([HEAD, "groups:\n", *groups])


def _group(name: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"  - name: {name}\n    rules:\n"
    yield from (f"      {line}\n" for line in lines)


def _recordings() -> Iterator[str]:
    for name, expr in RECORDINGS:
        yield f"- record: {name}"
        yield f"  expr: {_text(expr)}"


def _alerts() -> Iterator[str]:
    for alert in ALERTS:
        yield f"- alert: {alert.name}"
        yield f"  expr: {_text(alert.expr)}"
        yield f"  for: {alert.lasts}"
        yield "  labels:"
        yield f"    severity: {alert.severity}"
        yield "  annotations:"
        yield f"    summary: {_text(alert.summary)}"
        yield f"    description: {_text(f'{alert.meaning} {alert.to_do}')}"
        yield f"    runbook: {_text(_runbook(alert))}"


def _runbook(alert: Alert) -> str:
    return f"docs/{alert.see}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # which YAML reads as it is


def board() -> str:
    """The board as Grafana imports it."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


FILES = {RULES: rules, BOARD: board, ABOUT: about, SCHEMA: schema, CHART_RULES: rules}


def main() -> None:
    """Check everything, and write the files."""
    check_all(shown(all_metrics()))
    for path, made in FILES.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(made())


if __name__ == "__main__":
    main()
