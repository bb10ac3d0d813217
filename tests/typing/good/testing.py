"""Tests of an app, as they should be written."""

from __future__ import annotations

from typing import Any, assert_type

from holdfast import App, Backoff, Brief, Client, Context, Job, Outcome, StreamHandler, Task
from holdfast.testing import (
    NodeForTests,
    SentEffect,
    SetTimer,
    StartNode,
    StreamResult,
    StreamTest,
    TaskTest,
    node_for_tests,
)

app = App("reports")


@app.stream("counts")
class Count(StreamHandler[dict[str, Any]]):
    def process(self, message: dict[str, Any], context: Context) -> int:
        return 1


@app.task("publish", backoff=Backoff(1.0, 10.0))
def publish(body: dict[str, Any], job: Job) -> str:
    return ""


def of_text(body: str, job: Job) -> str:
    return body


def test_tests_of_handlers_without_a_node_are_typed() -> None:
    assert_type(StreamTest(Count).send({"key": "a"}), list[Any])
    StreamTest(app, "counts", restart_every=1).restart()
    acting = StreamTest(Count, targets=["sites"])
    assert_type(acting.sent, list[SentEffect])
    assert_type(acting.timers, dict[str, SetTimer])
    assert_type(acting.advance(30), list[Any])
    acting.wake("silent")
    TaskTest(publish).run({})
    TaskTest(app, "publish", attempt=2).run({})
    TaskTest(of_text, body=str, timeout_s=5, permanent=KeyError).run("text")


def test_tests_of_an_app_on_a_node_are_typed(holdfast_node: StartNode) -> None:
    assert_type(holdfast_node(app, settings={"max_message_bytes": 1000}), NodeForTests)
    with node_for_tests(app) as node:
        assert_type(node, NodeForTests)
        node.stream("counts").send({"key": "a"})
        assert_type(node.results("counts", 1, timeout_s=5), list[StreamResult[Any]])
        assert_type(node.outcome(publish.send({})), Outcome)


def hear(client: Client, trace: str) -> None:
    assert_type(client.status(trace), Task | None)
    for brief in client.briefs(follow=False):
        assert_type(brief, Brief)
        brief.ack()
