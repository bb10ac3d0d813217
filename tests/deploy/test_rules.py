"""Each alert fires on its fault, after its time, and on nothing else: tested by Prometheus' own tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.alerts import ALERTS
from deploy.generate import RULES
from simulator.servers import promtool

NODE = 'job="holdfast", instance="a:1"'
MINUTES = 90
"""How long the series are, one sample a minute."""

BROKEN_AT = 40
"""The minute in which a fault begins."""


def gauge(name: str, well: float, ill: float, labels: str = "") -> dict[str, tuple[str, str]]:
    """A number that changes in one step."""
    return {_named(name, labels): (f"{well}x{BROKEN_AT - 1}", f"{ill}x{MINUTES - BROKEN_AT}")}


def counter(name: str, before: int, then: int, labels: str = "") -> dict[str, tuple[str, str]]:
    """A counter that grows by so much a minute, before and then."""
    reached = before * BROKEN_AT
    return {
        _named(name, labels): (
            f"0+{before}x{BROKEN_AT - 1}",
            f"{reached}+{then}x{MINUTES - BROKEN_AT}",
        )
    }


def rising(name: str, well: float, labels: str = "") -> dict[str, tuple[str, str]]:
    """A number that begins to rise by 60 a minute."""
    return {_named(name, labels): (f"{well}x{BROKEN_AT - 1}", f"{well}+60x{MINUTES - BROKEN_AT}")}


def slow(name: str, bound: str, labels: str) -> dict[str, tuple[str, str]]:
    """A histogram whose durations were all within 0.05 s, and then all within ``bound``."""
    found: dict[str, tuple[str, str]] = {}
    for le in ("0.05", bound, "+Inf"):
        growth = 0 if le == "0.05" else 10
        found |= counter(f"{name}_bucket", 10, growth, f'{labels}, le="{le}"')
    return found


def _named(name: str, labels: str) -> str:
    return f"{name}{{{NODE}{f', {labels}' if labels else ''}}}"


QUEUE, OUTBOX, TABLE = 'queue="s"', 'outbox="doors"', 'setting="state_url", table="messages"'

FAULTS: dict[str, dict[str, tuple[str, str]]] = {
    "HoldfastNodeDown": gauge("up", 1, 0),
    "HoldfastNodeLost": counter("holdfast_evictions_total", 0, 1),
    "HoldfastNodeCutOff": gauge("holdfast_member", 1, 0) | gauge("holdfast_draining", 0, 0),
    "HoldfastStreamsParked": gauge("holdfast_parked_streams", 0, 2),
    "HoldfastStreamWaitsLong": rising("holdfast_longest_wait_seconds", 0, 'reason="gap"'),
    "HoldfastDeadLettersGrow": counter("holdfast_set_aside_total", 0, 1)
    | counter("holdfast_malformed_total", 0, 0),
    "HoldfastQueueAges": rising("holdfast_queue_age_seconds", 1, QUEUE),
    "HoldfastQueueGrows": rising("holdfast_queue_messages", 900, f'{QUEUE}, state="ready"'),
    "HoldfastQueueUnknown": gauge("holdfast_queues_unknown", 0, 1),
    "HoldfastFailoverSlow": slow("holdfast_stall_seconds", "10", 'stream="s"'),
    "HoldfastCommitsSlow": slow("holdfast_commit_seconds", "5", 'stream="s"'),
    "HoldfastStoreMayForget": gauge("holdfast_store_risks", 0, 1, 'verdict="failed"'),
    "HoldfastStoreForgot": counter("holdfast_states_lost_total", 0, 1),
    "HoldfastModelDoesNotLoad": gauge("holdfast_streams_without_models", 0, 1),
    "HoldfastEffectsStuck": rising("holdfast_pending_effects_seconds", 1),
    "HoldfastTasksFail": counter("holdfast_tasks_failed_total", 0, 3)
    | counter("holdfast_tasks_timed_out_total", 0, 0)
    | counter("holdfast_tasks_started_total", 10, 10),
    "HoldfastSlotsDie": counter("holdfast_slot_deaths_total", 0, 1),
    "HoldfastGapsSkipped": counter("holdfast_gaps_skipped_total", 0, 1),
    "HoldfastOutboxOffline": gauge("holdfast_outbox_connected", 8, 7, OUTBOX)
    | gauge("holdfast_outbox_shards", 8, 8, OUTBOX),
    "HoldfastOutboxStuck": gauge("holdfast_outbox_in_flight", 3, 3, OUTBOX)
    | counter("holdfast_outbox_turns_total", 60, 0, OUTBOX),
    "HoldfastHorizonHeld": rising(
        "holdfast_database_snapshot_seconds", 1, 'setting="state_url", holder="transaction"'
    ),
    "HoldfastDeadRows": gauge("holdfast_database_rows", 50_000, 500_000, f'{TABLE}, kind="dead"')
    | gauge("holdfast_database_rows", 100_000, 100_000, f'{TABLE}, kind="live"'),
}


def firing(alert: str = "") -> str:
    """An expression for how many alerts of that name fire; of any name, if it is empty."""
    named = f', alertname="{alert}"' if alert else ""
    return f'count by (alertname) (ALERTS{{alertstate="firing"{named}}})'


def at(minute: float, expr: str, *alerts: str) -> dict[str, Any]:
    """At that minute these alerts fire, each once."""
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    return {"expr": expr, "eval_time": f"{minute:g}m", "exp_samples": samples}


def check(tmp_path: Path, *tests: dict[str, Any]) -> None:
    """Have promtool run tests of the rules."""
    file = tmp_path / "tests.yml"
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(tests)}
    file.write_text(json.dumps(whole))  # which YAML reads as it is
    content, said = promtool("test", "rules", file)
    assert content, said


def series(given: dict[str, tuple[str, str]], *, ill: bool = True) -> list[dict[str, str]]:
    return [
        {"series": name, "values": " ".join((before, then) if ill else (before,))}
        for name, (before, then) in given.items()
    ]


def test_the_rules_are_well_formed() -> None:
    content, said = promtool("check", "rules", RULES)
    assert content, said


def test_every_alert_is_tested_with_a_fault() -> None:
    assert set(FAULTS) == {alert.name for alert in ALERTS}


@pytest.mark.nightly
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_on_its_fault_and_not_before(tmp_path: Path, alert: Any) -> None:
    lasts = float(alert.lasts.removesuffix("m"))
    given, expr = FAULTS[alert.name], firing(alert.name)
    checks = [at(BROKEN_AT - 1, expr), at(MINUTES - 1, firing(), alert.name)]
    if lasts > 1:
        checks.append(at(BROKEN_AT + lasts - 1, expr))
    check(tmp_path, {"interval": "1m", "input_series": series(given), "promql_expr_test": checks})


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    """All series together, none of them faulty."""
    well: dict[str, str] = {}
    for given in FAULTS.values():
        for name, (before, _) in given.items():
            well[name] = before
    input_series = [{"series": name, "values": values} for name, values in well.items()]
    checks = [at(minute, firing()) for minute in range(1, BROKEN_AT)]
    check(tmp_path, {"interval": "1m", "input_series": input_series, "promql_expr_test": checks})


@pytest.mark.nightly
def test_a_queue_that_is_worked_off_and_a_node_that_drains_alert_nobody(tmp_path: Path) -> None:
    """No alert for an old queue that becomes shorter, nor for a node that drains."""
    falling = {_named("holdfast_queue_age_seconds", QUEUE): (f"6000-60x{MINUTES}", "")}
    draining = gauge("holdfast_member", 1, 0) | gauge("holdfast_draining", 0, 1)
    old_but_still = gauge("holdfast_queue_messages", 5000, 5000, f'{QUEUE}, state="ready"')
    check(
        tmp_path,
        {
            "interval": "1m",
            "input_series": series(falling | draining | old_but_still),
            "promql_expr_test": [at(minute, firing()) for minute in (30, 60, MINUTES - 1)],
        },
    )


def test_the_fault_of_one_cluster_gives_an_alert_with_only_its_name(tmp_path: Path) -> None:
    """One cluster's fault gives one alert, under its own name."""
    parked = "holdfast_parked_streams"
    given = [
        {"series": f'{parked}{{job="holdfast-{city}", instance="{n}"}}', "values": f"{number}x{MINUTES}"}
        for city, number in (("bern", 0), ("chur", 2))
        for n in range(3)
    ]
    expr = 'count by (job) (ALERTS{alertstate="firing"})'
    expected = {"labels": '{job="holdfast-chur"}', "value": 1}
    check(
        tmp_path,
        {
            "interval": "1m",
            "input_series": given,
            "promql_expr_test": [{"expr": expr, "eval_time": "10m", "exp_samples": [expected]}],
        },
    )


def test_a_recorded_p99_is_that_of_the_histogram(tmp_path: Path) -> None:
    given = slow("holdfast_commit_seconds", "5", 'stream="s"')
    series_of = {"labels": '{__name__="stream:holdfast_commit_seconds:p99", job="holdfast", stream="s"}'}
    check(
        tmp_path,
        {
            "interval": "1m",
            "input_series": series(given),
            "promql_expr_test": [
                {
                    "expr": "stream:holdfast_commit_seconds:p99",
                    "eval_time": f"{BROKEN_AT - 2}m",
                    "exp_samples": [series_of | {"value": 0.0495}],
                }
            ],
        },
    )
