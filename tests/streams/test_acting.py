"""Streams that act, on a whole node: effects to streams and tasks, timers, and refused effects."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast import App, Context, Job, StreamHandler
from holdfast.testing import node_for_tests
from tests.on_node import on

PATIENCE_S = 20.0


def site() -> App:
    """Cameras send what they see to a count of their site, which has a report made of every third person."""
    app = App("site")

    @app.stream("cameras", idle_timeout_s=0.2)
    class Camera(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> None:
            for person in message["people"]:
                context.send("sites", {"person": person}, key=message["site"])
            context.wake("silent", after_s=0.3, body={"site": message["site"]})

        def wake(self, name: str, body: Any, context: Context) -> str:
            context.send("sites", {"silent": context.key}, key=body["site"])
            return f"{context.key} is {name}"

    @app.stream("sites")
    class Site(StreamHandler[dict[str, Any]]):
        def open(self, context: Context, state: bytes | None) -> None:
            self.count = int(state or 0)

        def process(self, message: dict[str, Any], context: Context) -> Any:
            if "silent" in message:
                return message
            self.count += 1
            if self.count % 3 == 0:
                context.send("report", {"site": context.key, "count": self.count}, key="")
            return {"count": self.count, "person": message["person"]}

        def snapshot(self) -> bytes:
            return str(self.count).encode()

    @app.task("report")
    def report(body: dict[str, Any], job: Job) -> str:
        return f"{body['site']}: {body['count']}"

    return app


@pytest.mark.slow
def test_effects_reach_streams_and_tasks_and_timers_wake_a_stream_that_nobody_owns() -> None:
    app = site()
    with node_for_tests(app) as node:
        node.stream("cameras").send({"people": ["a", "b"], "site": "gate"}, key="cam-1")
        node.stream("cameras").send({"people": ["c"], "site": "gate"}, key="cam-1")
        results = [each.value for each in node.results("sites", 4, timeout_s=PATIENCE_S)]
        assert results[:3] == [
            {"count": 1, "person": "a"},
            {"count": 2, "person": "b"},
            {"count": 3, "person": "c"},
        ]
        assert results[3] == {"silent": "cam-1", "key": "gate"}
        assert [each.value for each in node.results("cameras", 1)] == ["cam-1 is silent"]
        [task] = reports(node)
        assert node.outcome(task).value == "gate: 3"


def reports(node: Any) -> list[str]:
    """Wait for the tasks of a site and return their task ids."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := [task.trace for task in tasks(node)]):
        assert time.monotonic() < deadline, "no report was ordered"
    return found


def tasks(node: Any) -> Any:
    return on(node, lambda services: services.task_store("site").list(limit=10))
