"""A node in the test's process: streams, tasks, failures, and programs with a loop."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, ConfigError, Context, InvalidMessage, Job, StreamHandler
from holdfast.rules.tasks.task import State
from holdfast.testing import StartNode, node_for_tests


@dataclass
class Reading:
    meter: str
    number: int
    kwh: float = 0.5


def meters() -> App:
    app = App("meters")

    @app.stream("readings", key="meter", seq="number", message=Reading, first_seq=0, max_tries=1)
    class Total(StreamHandler[Reading]):
        def open(self, context: Context, state: bytes | None) -> None:
            self.total = float(state or 0)
            self.database = sqlite3.connect(":memory:")  # which one thread may use

        def process(self, message: Reading, context: Context) -> dict[str, float]:
            if message.kwh < 0:
                raise InvalidMessage("a meter ran backwards", "kwh")
            self.database.execute("SELECT 1")
            self.total += message.kwh
            return {"total": self.total}

        def snapshot(self) -> bytes:
            return str(self.total).encode()

        def close(self) -> None:
            self.database.close()

    @app.stream("plain")
    async def plain(message: dict[str, Any], context: Context) -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    return app


def test_messages_are_handled_in_order_and_their_results_told() -> None:
    with node_for_tests(meters()) as node:
        node.stream("readings").send_many(Reading(f"m{n % 2}", 4 - n // 2) for n in range(10))
        results = node.results("readings", 10)
        assert [each.value["total"] for each in results if each.key == "m1"] == [0.5, 1.0, 1.5, 2.0, 2.5]
        assert [(each.run, each.seq) for each in results if each.key == "m0"] == [(0, n) for n in range(5)]
        node.stream("plain").send({"key": "a"}, message_id="first")
        (result,) = node.results("plain")
        assert (result.key, result.message_id) == ("a", "first")
        assert result.value != threading.get_ident()


def test_failing_messages_become_dead_letters() -> None:
    with node_for_tests(meters()) as node:
        node.stream("readings").send_many([Reading("m", 0, -1), Reading("m", 1)])
        assert [each.seq for each in node.results("readings")] == [1]
        (letter,) = node.dead_letters("readings")
        assert "ran backwards" in letter.reason


def test_one_that_never_comes_is_told() -> None:
    with node_for_tests(meters()) as node:
        node.stream("readings").send(Reading("m", 7))  # 0 to 6 are missing
        with pytest.raises(TimeoutError, match="0 results of 1"):
            node.results("readings", 1, timeout_s=0.1)


def test_a_node_has_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment of the test says."""
    monkeypatch.setenv("HOLDFAST_QUEUE_URL", "redis://production")
    monkeypatch.setenv("HOLDFAST_REGISTRY_URL", "redis://production")
    app = meters()
    with node_for_tests(app, folder=tmp_path) as node:
        node.stream("plain").send({"key": "a"})
        assert len(node.results("plain", 1)) == 1
        assert (tmp_path / "holdfast.db").exists()
    with node_for_tests(app) as node:
        assert node.results("plain") == []
        folder = node.folder
    assert not folder.exists()


def test_impossible_settings_and_apps_are_refused() -> None:
    with (
        pytest.raises(ConfigError, match="max_message_byte"),
        node_for_tests(meters(), settings={"max_message_byte": 1}),  # type: ignore[arg-type]
    ):
        pass
    with pytest.raises(ConfigError, match="declares no stream"), node_for_tests(App("empty")):
        pass
    app = App("wrong")
    app.stream("s", seq="n", gap_timeout_s=1)(lambda message, context: None)
    with pytest.raises(ConfigError, match="prefer_latency"), node_for_tests(app):
        pass


async def test_programs_with_a_loop_use_it_too() -> None:
    with node_for_tests(meters()) as node:
        node.stream("readings").send(Reading("m", 0))
        results = await asyncio.to_thread(node.results, "readings", 1)
        assert results == node.results("readings")


# --- tasks


def reports() -> App:
    app = App("reports")
    begun = threading.Event()

    @app.task("publish", tries=2)
    def publish(body: dict[str, Any], job: Job) -> str:
        job.progress(0.5, "half")
        if body.get("fails") and job.attempt == 1:
            raise ConnectionError("try again")
        return f"{body['pages']} pages, attempt {job.attempt}, process {os.getpid()}"

    @app.task("each")
    async def each(body: dict[str, Any], job: Job) -> list[str]:
        return [await publish.asend({"pages": pages}) for pages in body["pages"]]

    @app.task("endless")
    def endless(body: dict[str, Any], job: Job) -> None:
        while True:
            begun.set()
            job.progress(note="still here")

    return app


@pytest.mark.slow
def test_tasks_go_to_the_node_and_are_tried_again(holdfast_node: StartNode) -> None:
    app = reports()
    node = holdfast_node(app)
    trace = node.client.send("publish", {"pages": 3, "fails": True})
    outcome = node.outcome(trace)
    assert (outcome.value, outcome.attempts) == (f"3 pages, attempt 2, process {os.getpid()}", 2)


def test_a_task_can_send_other_tasks(holdfast_node: StartNode) -> None:
    node = holdfast_node(reports())
    outcome = node.outcome(node.client.send("each", {"pages": [1, 2]}))
    assert [node.outcome(trace).ok for trace in outcome.value] == [True, True]


@pytest.mark.slow
def test_a_task_that_is_cancelled_hears_of_it_at_its_next_progress(holdfast_node: StartNode) -> None:
    node = holdfast_node(reports())
    trace = node.client.send("endless", {})
    while (task := node.client.status(trace)) is None or task.state is not State.RUNNING:
        pass
    node.client.cancel(trace, "not wanted")
    assert "not wanted" in node.outcome(trace).detail


def test_the_plugin_is_found_by_pytest() -> None:
    (point,) = entry_points(group="pytest11", name="holdfast")
    assert hasattr(point.load(), "holdfast_node")


@pytest.mark.slow
def test_streams_are_archived_in_the_folder_of_the_test_whatever_they_declare(tmp_path: Path) -> None:
    app = App("site")

    @app.stream("cameras", archive="s3://live-messages")
    def camera(message: dict[str, Any], context: Context) -> None: ...

    with node_for_tests(app, folder=tmp_path / "my node") as node:
        node.stream("cameras").send({"key": "cam-1"})
        node.results("cameras")
    [line] = [path.read_text() for path in (tmp_path / "my node" / "archive").rglob("*.jsonl")]
    assert '"key":"cam-1"' in line
