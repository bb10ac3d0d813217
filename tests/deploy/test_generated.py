"""The rules and the board are those that the code makes, and name nothing that no metric has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from deploy import generate
from deploy.alerts import ALERTS, RECORDINGS
from deploy.generate import UnknownMetric, check, check_all, shown
from docs.generate import all_metrics
from tests.docs.test_references import anchors

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", generate.FILES, ids=lambda path: path.name)
def test_committed_files_are_up_to_date(file: Path) -> None:
    assert file.read_text() == generate.FILES[file](), "run: make docs"


def test_no_rule_and_no_panel_names_what_does_not_exist() -> None:
    check_all(shown(all_metrics()))


def test_a_name_that_nothing_shows_is_refused() -> None:
    known = shown(
        [
            GaugeMetricFamily("holdfast_held", "", labels=["stream"]),
            HistogramMetricFamily("holdfast_commit_seconds", "", labels=["stream"]),
        ]
    )
    check("here", 'sum by (job, stream) (holdfast_held{stream="s"}) > 0', known)
    check("here", "sum by (le) (rate(holdfast_commit_seconds_bucket[5m]))", known)
    for expr, error in {
        "holdfast_hold > 0": "nothing shows holdfast_hold",
        "rate(holdfast_commit_seconds[5m])": "nothing shows holdfast_commit_seconds",
        'holdfast_held{key="s"}': "holdfast_held has no label key",
        "sum by (key) (holdfast_held)": "no metric there has the label key",
    }.items():
        with pytest.raises(UnknownMetric, match=error):
            check("here", expr, known)


def test_the_rules_are_yaml_with_all_that_is_declared() -> None:
    groups = msgspec.yaml.decode(generate.RULES.read_text())["groups"]
    recordings, alerts = (group["rules"] for group in groups)
    assert [rule["record"] for rule in recordings] == [recording.name for recording in RECORDINGS]
    assert [rule["alert"] for rule in alerts] == [alert.name for alert in ALERTS]
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}


def test_the_runbook_of_every_alert_is_there() -> None:
    for alert in ALERTS:
        page, _, anchor = alert.see.partition("#")
        assert anchor in anchors(ROOT / "docs" / page), alert.name


def test_panels_lie_beside_each_other_and_have_a_source() -> None:
    board = json.loads(generate.BOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"])))
    assert used - {"__rate_interval"} <= variables
