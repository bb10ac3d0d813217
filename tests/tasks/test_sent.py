"""What ``send`` of a task's type returns: the task id, and the way to the outcome."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from holdfast import App, InvalidMessage, Job, Outcome, SentTask, TaskFailed
from holdfast.testing import NodeForTests, node_for_tests

app = App("office")


@dataclass
class Bill:
    customer: str
    due: date


@app.task("bill")
def bill(body: dict[str, Any], job: Job) -> Bill:
    return Bill(body["customer"], date(2026, 1, 2))


@app.task("count")
async def count(body: dict[str, Any], job: Job) -> int:
    return len(body)


@app.task("fail", tries=1)
def fail(body: dict[str, Any], job: Job) -> int:
    raise ValueError("out of paper")


@app.task("lie")
def lie(body: dict[str, Any], job: Job) -> Bill:
    return {"customer": 7}  # type: ignore[return-value] # that is the case


@app.task("plain")
def plain(body, job):  # type: ignore[no-untyped-def]
    return {"pages": 3}


@app.task("echo")
def echo(body: dict[str, Any], job: Job) -> dict[str, Any]:
    return body


@pytest.fixture(scope="module")
def node() -> Iterator[NodeForTests]:
    with node_for_tests(app) as node:
        yield node


@pytest.mark.usefixtures("node")
def test_a_result_is_of_the_type_that_the_handler_returns() -> None:
    sent = bill.send({"customer": "acme"})
    assert sent.result(timeout_s=30) == Bill("acme", date(2026, 1, 2))
    outcome = sent.outcome()
    assert (outcome.task_id, outcome.ok, outcome.value) == (sent.id, True, Bill("acme", date(2026, 1, 2)))
    assert plain.send({}).result(timeout_s=30) == {"pages": 3}


@pytest.mark.usefixtures("node")
async def test_an_async_program_waits_without_blocking_its_loop() -> None:
    sent = await count.asend({"a": 1, "b": 2})
    assert await sent.aresult(timeout_s=30) == 2
    assert (await sent.aoutcome()).value == 2


@pytest.mark.usefixtures("node")
def test_a_task_that_failed_raises_with_its_outcome() -> None:
    sent = fail.send({})
    with pytest.raises(TaskFailed, match=f"task '{sent}' ended as failed: .*out of paper") as caught:
        sent.result(timeout_s=30)
    assert isinstance(caught.value.outcome, Outcome)
    assert not sent.outcome().ok


@pytest.mark.usefixtures("node")
def test_a_value_of_another_type_is_refused() -> None:
    sent = lie.send({})
    with pytest.raises(InvalidMessage, match="isn't of type Bill"):
        sent.result(timeout_s=30)


def test_a_task_can_be_cancelled_and_waited_for_in_vain(node: NodeForTests) -> None:
    sent = count.send({}, delay_s=3600)
    with pytest.raises(TimeoutError):
        sent.outcome(timeout_s=0.05)
    assert sent.cancel("no longer needed")
    with pytest.raises(TaskFailed, match="no longer needed"):
        sent.result(timeout_s=30)
    assert not SentTask("unknown", lambda: node.client, lambda value: value).cancel()


@pytest.mark.usefixtures("node")
def test_it_is_its_task_id_wherever_a_text_is_needed() -> None:
    sent = count.send({}, task_id="t-1")
    assert sent == "t-1"
    assert hash(sent) == hash("t-1")
    assert json.loads(json.dumps([sent])) == ["t-1"]
    assert echo.send({"id": sent}).result(timeout_s=30) == {"id": "t-1"}
    for other in (pickle.loads(pickle.dumps(sent)), copy.deepcopy(sent)):
        assert (other, type(other)) == ("t-1", str)
    assert app.client.wait(sent, 30).value == 0
