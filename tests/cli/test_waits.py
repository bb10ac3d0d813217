"""What an operator sees of streams that wait: a real node, asked by commands."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.ports.queue import Outgoing
from holdfast.tasks.names import event_queue, task_queue
from holdfast.wiring.services import Services
from tests.cli.test_node import Process, get

APP = """
from functools import partial
from pathlib import Path
from holdfast import App

app = App("seeing")
app.model("weights", partial(Path.read_bytes, Path("weights.onnx")))


@app.stream("count", seq="n", first_seq=0)
def count(message, context):
    return {"n": message["n"]}


@app.stream("seen", seq="n", first_seq=0, models="weights", max_tries=1)
def seen(message, context):
    return {"n": message["n"], "bytes": len(context.model("weights"))}


@app.stream("alarm", seq="n", first_seq=0)
def alarm(message, context):
    context.send("https://127.0.0.1:1/a", {"n": message["n"]})


@app.task("report.make")
def make(body, job):
    return 1
"""
SLEEPING = """
import time
from holdfast import App

app = App("sleeping")


@app.stream("slow", seq="n", first_seq=0, timeout_s=300)
def slow(message, context):
    time.sleep(100)


@app.stream("count", seq="n", first_seq=0)
def count(message, context):
    return 1
"""
PATIENCE_S = 60.0


@pytest.fixture
def node(place: Path) -> Iterator[Process]:
    """A node of the app ``seeing``, whose model's file isn't there yet."""
    (place / "seeing.py").write_text(APP)
    process = Process("seeing:app", "--name", "a", "--slots", "1")
    process.wait_for("joined")
    yield process
    process.child.kill()
    process.join()


def until(holds: Callable[[], Any]) -> Any:
    """What ``holds`` returns, once it is true."""
    end_at = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end_at
    return found


def send(arrange: Any, stream: str, *numbers: int) -> None:
    async def put(services: Services) -> None:
        bodies = [json.dumps({"key": "cam-1", "n": n}).encode() for n in numbers]
        await services.queue(stream).send([Outgoing(body) for body in bodies])

    arrange(put)


def status(holdfast: Any) -> Any:
    (found,) = holdfast("status", "--json").lines
    return found


@pytest.mark.nightly
def test_status_shows_every_declared_queue_before_anything_was_committed(
    holdfast: Any, node: Process
) -> None:
    found = status(holdfast)
    names = [queue["stream"] for queue in found["queues"]]
    assert names == sorted(
        ["alarm", "count", "seen", event_queue("seeing"), task_queue("seeing", "report.make")]
    )
    assert {queue["ready"] for queue in found["queues"]} == {0}
    assert found["troubles"] == []
    assert task_queue("seeing", "report.make") in holdfast("status").out


@pytest.mark.nightly
def test_messages_that_no_node_is_there_for_are_shown(node: Process, holdfast: Any, arrange: Any) -> None:
    """A program puts them into the queue itself, so that no command could warn it."""

    async def send(services: Services) -> None:
        await services.queue("cuont").send([Outgoing(b"{}")])
        await services.queue("empty").depth()

    arrange(send)
    found = status(holdfast)
    shown = {entry["stream"]: entry["ready"] for entry in found["queues"]}
    assert shown["cuont"] == 1
    assert "empty" not in shown
    [trouble] = found["troubles"]
    assert trouble.startswith("no node runs 'cuont', whose queue holds messages: ")
    assert "The nodes run alarm, count, " in trouble
    told = holdfast("doctor")
    assert "no node runs 'cuont'" in told.out
    node.end()
    assert status(holdfast)["troubles"] == [], "nobody declares anything"


@pytest.mark.usefixtures("database")
def test_status_shows_the_queues_of_an_app_that_no_node_runs(holdfast: Any, place: Path) -> None:
    (place / "seeing.py").write_text(APP)
    assert task_queue("seeing", "report.make") in holdfast("status", "seeing:app").out


@pytest.mark.nightly
def test_effects_that_wait_are_shown_with_the_last_error_of_their_target(
    holdfast: Any, arrange: Any, node: Process
) -> None:
    send(arrange, "alarm", 0)
    key, reason = "alarm/cam-1", "can't connect to 127.0.0.1:1: "
    [effect] = until(lambda: [e for e in holdfast("streams", "effects", key, "--json").lines if e["error"]])
    assert (effect["target"], reason in effect["error"]) == ("https://127.0.0.1:1/a", True)
    assert "can't connect" in holdfast("streams", "effects", key).out
    (why,) = holdfast("why", key, "--json").lines
    assert why["target_errors"] == {"https://127.0.0.1:1/a": effect["error"]}
    assert "whose last error is" in holdfast("why", key).out
    [stream] = [entry for entry in status(holdfast)["streams"] if entry["stream"] == "alarm"]
    assert stream["effects"]["error"] == effect["error"]
    assert f"its last error: {effect['error']}" in holdfast("doctor").out


@pytest.mark.slow
def test_a_gap_is_named_with_the_time_that_is_left(holdfast: Any, arrange: Any, node: Process) -> None:
    send(arrange, "count", 0, 2)

    def waits() -> list[str]:
        said = [entry["waits"] for entry in status(holdfast)["streams"]]
        return [each for each in said if each.startswith("waits for seq 1 of run 0, ")]

    (said,) = until(waits)
    assert said.endswith(" s left")
    assert "waits for seq 1" in holdfast("status").out
    (why,) = holdfast("why", "cam-1", "--json").lines
    assert (why["key"], why["node"], why["run"], why["seq"]) == ("count/cam-1", "a", 0, 0)
    assert why["waits"].startswith("waits for seq 1 of run 0, ")
    assert "- waits for seq 1 of run 0, " in holdfast("why", "count/cam-1").out
    line = node.wait_for("stream waits")
    assert (line["key"], line["messages"]) == ("count/cam-1", 1)
    metrics = get(node.wait_for("metrics page served")["url"])
    assert 'holdfast_waiting_streams{reason="gap"} 1.0' in metrics
    node.child.kill()
    node.join()
    (why,) = holdfast("why", "cam-1", "--json").lines
    assert why["reasons"][0].startswith("its node doesn't report on it: "), "as it is gone"
    assert status(holdfast)["troubles"][0].startswith("a does not answer: ")


@pytest.mark.nightly
def test_a_slot_that_is_busy_with_another_key_is_named_everywhere(
    holdfast: Any, arrange: Any, place: Path
) -> None:
    (place / "sleeping.py").write_text(SLEEPING)
    node = Process("sleeping:app", "--name", "a", "--slots", "1")
    try:
        node.wait_for("joined")
        send(arrange, "slow", 0)
        until(lambda: [entry for entry in status(holdfast)["streams"] if entry["runs"]])
        send(arrange, "count", 0)

        def waits() -> list[str]:
            return [entry["waits"] for entry in status(holdfast)["streams"] if entry["waits"]]

        (said,) = until(waits)
        assert said.startswith("waits for its slot ")
        assert ", which has been busy with slow/cam-1 for " in said
        (why,) = holdfast("why", "count/cam-1", "--json").lines
        assert why["waits"].startswith("waits for its slot ")
        assert why["waits_s"] > 0
        assert "; it has waited for " in holdfast("why", "count/cam-1").out
        assert "- message 0:0 runs in " in holdfast("why", "slow/cam-1").out
        assert "message 0:0 runs in " in holdfast("status").out
        assert node.wait_for("stream waits")["key"] == "count/cam-1"
    finally:
        node.child.kill()
        node.join()


@pytest.mark.slow
def test_a_stream_that_no_node_owns_says_where_it_stands_and_an_unknown_one_that_it_is(
    holdfast: Any, arrange: Any, node: Process
) -> None:
    unknown = holdfast("why", "cam-1")
    assert unknown.code == 1
    assert "no stream 'cam-1' is known" in unknown.err
    send(arrange, "count", 0)
    until(lambda: [entry for entry in status(holdfast)["streams"] if entry["done"]])
    assert "did you mean count/cam-1?" in holdfast("why", "count/cam-2").err
    assert node.end() == 0
    (why,) = holdfast("why", "cam-1", "--json").lines
    assert (why["node"], why["waits"], why["seq"]) == ("", "", 0)
    assert "no node owns it" in why["reasons"][0]
    assert holdfast("streams", "pause", "count/cam-1").code == 0
    assert "- parked: paused" in holdfast("why", "cam-1").out


@pytest.mark.nightly
def test_a_missing_model_is_named_everywhere_and_costs_no_message(
    holdfast: Any, arrange: Any, node: Process, place: Path
) -> None:
    send(arrange, "seen", 0, 1)
    can_t = "a can't run seen: model 'weights' did not load: FileNotFoundError"
    until(lambda: [trouble for trouble in status(holdfast)["troubles"] if trouble.startswith(can_t)])
    address = node.wait_for("joined")["address"]
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{address}/readyz", timeout=PATIENCE_S)
    assert refusal.value.code == 503
    assert "model 'weights' did not load" in refusal.value.read().decode()
    doctor = holdfast("doctor")
    assert doctor.code == 1
    assert "✗ stream seen on a: model 'weights' did not load" in doctor.out
    assert "model 'weights' did not load" in holdfast("why", "cam-1").out
    assert node.wait_for("cannot load model")["stream"] == "seen"
    metrics = get(node.wait_for("metrics page served")["url"])
    assert "holdfast_streams_without_models 1.0" in metrics
    before = holdfast("doctor", "seeing:app")
    assert before.code == 1
    assert "✗ model weights: model 'weights' did not load: FileNotFoundError" in before.out
    (place / "weights.onnx").write_bytes(b"12345")
    assert "✓ model weights: loads" in holdfast("doctor", "seeing:app").out
    results = holdfast("results", "--follow", "--limit", "2").lines
    assert [line["result"] for line in results] == [{"n": 0, "bytes": 5}, {"n": 1, "bytes": 5}]
    assert get(f"{address}/readyz") == "ready\n"
    assert holdfast("dlq", "ls", "--json").lines == []
