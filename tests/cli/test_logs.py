"""``holdfast logs``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_node import APP, Process

EVENTS = {
    "lab-1": [
        {"timestamp": "2026-01-01T00:00:01Z", "level": "info", "event": "joined"},
        {"timestamp": "2026-01-01T00:00:04Z", "level": "warning", "event": "late", "key": "detect/cam-1"},
    ],
    "lab-2": [
        {"timestamp": "2026-01-01T00:00:02Z", "level": "error", "event": "failed", "task": "0f"},
        {"timestamp": "2026-01-01T00:00:03Z", "level": "info", "event": "opened", "key": "detect/cam-2"},
    ],
}


@pytest.fixture
def written(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_LOG_DIR", "kept")
    (place / "kept").mkdir()
    for node, events in EVENTS.items():
        lines = "".join(f"{json.dumps(event)}\n" for event in events)
        (place / "kept" / f"{node}.jsonl").write_text(lines)
    return place / "kept"


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], ["joined", "failed", "opened", "late"]),
        (["--lines", "2"], ["opened", "late"]),
        (["--node", "lab-2"], ["failed", "opened"]),
        (["--node", "lab"], ["joined", "failed", "opened", "late"]),
        (["--level", "warning"], ["failed", "late"]),
        (["--key", "detect/cam-1"], ["late"]),
        (["--key", "cam-2"], ["opened"]),
        (["--key", "0f"], ["failed"]),
        (["--key", "cam"], []),
    ],
)
def test_logs_are_merged_by_time_and_chosen(holdfast: Any, arguments: list[str], told: list[str]) -> None:
    assert [line["event"] for line in holdfast("logs", "--json", *arguments).lines] == told


@pytest.mark.usefixtures("written")
def test_people_see_them_as_on_a_terminal(holdfast: Any) -> None:
    first, *_, last = holdfast("logs").out.splitlines()
    assert first.split() == ["2026-01-01T00:00:01Z", "[info", "]", "joined", "node=lab-1"]
    assert "late" in last
    assert "key=detect/cam-1" in last


def test_without_a_folder_it_says_what_to_do(holdfast: Any) -> None:
    refused = holdfast("logs")
    assert refused.code == 2
    assert "log_dir isn't set" in refused.err
    assert holdfast("logs", "--set", "log_dir=nowhere").code == 2


@pytest.mark.nightly
def test_nodes_of_a_host_write_what_is_followed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "counting.py").write_text(APP)
    monkeypatch.setenv("HOLDFAST_LOG_DIR", "kept")
    node = Process("counting:app", "--nodes", "2", "--set", "slots=1", "--name", "lab", as_users_do=True)
    try:
        for number in range(2):
            node.wait_for("node runs", number)
        command = [sys.executable, "-m", "holdfast", "logs", "--follow", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as follow:
            assert follow.stdout is not None
            seen: list[dict[str, Any]] = []
            try:
                while len([event for event in seen if event["event"] == "node runs"]) < 2:
                    seen.append(json.loads(follow.stdout.readline()))
                assert node.end() == 0
                while len([event for event in seen if event["event"] == "node ended"]) < 2:
                    seen.append(json.loads(follow.stdout.readline()))
            finally:
                follow.kill()
        assert len({event["node"] for event in seen if event["event"] == "node runs"}) == 2
        assert len(seen) == len({json.dumps(event) for event in seen}), "none is shown twice"
    finally:
        node.child.kill()
        node.join()


@pytest.mark.slow
def test_a_folder_that_can_not_be_written_ends_the_node(place: Path) -> None:
    (place / "counting.py").write_text(APP)
    (place / "kept").touch()
    node = Process("counting:app", "--set", "log_dir=kept", as_users_do=True)
    assert node.join() == 2
    assert "log_dir is 'kept'" in "\n".join(entry["event"] for entry in node.events)
