"""Refreshes the parts of the docs that are taken from the code: ``make docs``.

Such a part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from deploy.alerts import ALERTS
from docs import log_events
from holdfast import App
from holdfast.assembly.node import make_node
from holdfast.common.retry import Backoff
from holdfast.config import problems
from holdfast.config.settings import Config
from holdfast.devices.metrics import OutboxMetrics
from holdfast.devices.rules.device_queue import TABLE, Cause
from holdfast.gateway.service import GatewayMetrics
from holdfast.http.metrics_page import MetricsPage
from holdfast.rules.cluster.gateway import Routes
from holdfast.rules.streams import phases as owner_phases
from holdfast.streams.spec import StreamSpec
from holdfast.wiring.services import Services
from simulator import scenario
from simulator.limits import limits_with
from simulator.mutations import RULES
from simulator.scenario import Scenario
from simulator.stage import LIMITS
from simulator.world import spec_of

DOCS = Path(__file__).parent


def settings() -> str:
    """Every setting of a node."""
    return problems.reference()


def arguments(declare: Callable[..., Any]) -> str:
    """The keyword arguments of a method of App, each with its default and what its docstring says."""
    _, _, listed = (inspect.getdoc(declare) or "").partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", listed, flags=re.MULTILINE)
    meanings = {name: " ".join(text.split()) for name, text in entries}
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for each in inspect.signature(declare).parameters.values():
        if each.kind is each.KEYWORD_ONLY:
            meaning = _but_the_default(meanings[each.name]).replace("``", "`")
            lines.append(f"| `{each.name}` | `{_shown(each.default)}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    if isinstance(default, Backoff):
        return f"Backoff({default.first_s}, {default.max_s})"
    if default == dict[str, Any]:
        return "dict"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _but_the_default(meaning: str) -> str:
    """Remove a default that is stated as a value: the table has it in a column of its own."""
    return re.sub(r" \(default [^:(),;]*\)|(?<=\()default [^:(),;]*, ", "", meaning).removesuffix(".")


def mutations() -> str:
    """Every protection that the simulator can switch off."""
    lines = ["| `--break` | switched off: | found within |", "|---|---|---|"]
    lines += [f"| `{rule}` | {broken.says} | {broken.seeds} seeds |" for rule, broken in RULES.items()]
    return "\n".join(lines) + "\n"


def simulated_limits() -> str:
    """Numbers of simulated nodes and streams that are otherwise than by default, and that no seed draws."""
    spec = spec_of(scenario.make(0))
    plain = StreamSpec(name=spec.name, handler=spec.handler, message=spec.message)
    lines = ["| | simulated | default |", "|---|---|---|"]
    for simulated, default in ((LIMITS, limits_with()), (spec, plain)):
        for name in sorted(set(default.__struct_fields__) - set(Scenario.__struct_fields__)):
            ours, theirs = getattr(simulated, name), getattr(default, name)
            if isinstance(theirs, int | float) and ours != theirs:
                lines.append(f"| `{name}` | {ours:g} | {round(theirs, 3):g} |")
    return "\n".join(lines) + "\n"


def phases() -> str:
    """The phases of an owner, from the table in its module."""
    _, table, _ = re.split(r"^=+  =+$", owner_phases.__doc__ or "", flags=re.MULTILINE)
    rows = re.findall(r"^(\w+) +(.+(?:\n +.+)*)", table, flags=re.MULTILINE)
    lines = ["| phase | what happens, and what follows |", "|---|---|"]
    lines += [f"| `{phase}` | {' '.join(text.split())} |" for phase, text in rows]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every move between the states of a command."""
    words = {
        Cause.PUBLISH: "is sent",
        Cause.ANSWER: "is answered",
        Cause.REFUSE: "is refused by its device",
        Cause.GIVE_UP: "has no answer in all its tries",
        Cause.EXPIRE: "expires",
        Cause.SUPERSEDE: "is replaced by a newer one",
        Cause.CANCEL: "is cancelled, or its rollout aborted",
        Cause.RETRY: "is retried by an operator",
    }
    lines = ["| a command that is | and | becomes |", "|---|---|---|"]
    lines += [f"| {state} | {words[cause]} | {after} |" for (state, cause), after in TABLE.items()]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Every metric of a node, but those of outboxes."""
    return _table(_of_nodes())


def outbox_metrics() -> str:
    """Every metric of a node that serves outboxes."""
    return _table(_of_outboxes())


def gateway_metrics() -> str:
    """Every metric of a gateway that isn't its data plane's own."""
    return _table(_of_gateways())


def all_metrics() -> list[Metric]:
    """Every metric that anything of Holdfast's shows."""
    return [*_of_nodes(), *_of_outboxes(), *_of_gateways()]


@cache
def _of_nodes() -> list[Metric]:
    return asyncio.run(_metrics_of_nodes())


def _of_outboxes() -> list[Metric]:
    return list(OutboxMetrics([]).collect())


def _of_gateways() -> list[Metric]:
    nothing: Any = SimpleNamespace(members=(), answers={}, retries=0)
    return list(GatewayMetrics(Routes(), nothing, nothing).collect())


def alerts() -> str:
    """Every alert, with what it means and what to do."""
    lines = ["| alert | what it means | what to do |", "|---|---|---|"]
    lines += [
        f"| [`{alert.name}`]({alert.see}), {alert.severity} | {alert.meaning} | {alert.to_do} |"
        for alert in ALERTS
    ]
    return "\n".join(lines) + "\n"


def example(file: str, first: str, last: str) -> str:
    """A piece of an example, from one statement to another, each by what it defines or
    imports."""
    text = (DOCS.parent / "examples" / file).read_text()
    lines = text.splitlines()
    statements = {name: node for node in ast.parse(text).body for name in _names(node)}
    begun = statements[first]
    decorators = getattr(begun, "decorator_list", [])
    start = min(node.lineno for node in (begun, *decorators))
    piece = "\n".join(lines[start - 1 : statements[last].end_lineno])
    return f"```python\n{piece}\n```\n"


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []


async def _metrics_of_nodes() -> list[Metric]:
    """What nodes would show that run each kind of work; none is started."""
    found: dict[str, Metric] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place in ("examples.cameras:app", "examples.tasks:app"):
            async with _Kept(Config(url=f"sqlite:///{folder}/{place}.db")) as services:
                make_node(services, place)
                found |= {metric.name: metric for metric in services.registry_of_node.collect()}
    return [metric for name, metric in found.items() if name.startswith("holdfast_")]


class _Kept(Services):
    """Remembers where the numbers of its node are."""

    registry_of_node: CollectorRegistry

    def metrics_page(self, registry: CollectorRegistry, *others: Any) -> MetricsPage:
        """As that of Services."""
        self.registry_of_node = registry
        return super().metrics_page(registry, *others)


def _table(found: Iterable[Metric]) -> str:
    lines = ["| metric | type | meaning |", "|---|---|---|"]
    for metric in found:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        by = " and ".join(f"`{label}`" for label in getattr(metric, "_labelnames", ()))
        meaning = f"{metric.documentation.removesuffix('.')} (by {by})." if by else metric.documentation
        lines.append(f"| `{name}` | {metric.type} | {meaning} |")
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "stream_options": partial(arguments, App.stream),
    "task_options": partial(arguments, App.task),
    "phases": phases,
    "mutations": mutations,
    "simulated_limits": simulated_limits,
    "commands": commands,
    "metrics": metrics,
    "outbox_metrics": outbox_metrics,
    "gateway_metrics": gateway_metrics,
    "alerts": alerts,
    "log_events": log_events.tables,
    "site_app": partial(example, "site.py", "datetime", "doors"),
    "site_cameras": partial(example, "site.py", "Sight", "Camera"),
    "site_sites": partial(example, "site.py", "Site", "Site"),
    "site_report": partial(example, "site.py", "Report", "nightly"),
}


def refreshed(text: str) -> str:
    """A page's text with its generated parts as the code has them now."""
    return re.sub(
        r"(?<=<!-- generated: )(\w+) -->\n.*?(?=<!-- end -->)",
        lambda part: f"{part[1]} -->\n\n{PARTS[part[1]]()}\n",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Rewrite every page that is out of date."""
    for page in DOCS.rglob("*.md"):
        page.write_text(refreshed(page.read_text()))


if __name__ == "__main__":
    main()
