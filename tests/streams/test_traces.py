"""The traces of streams on a whole node: what a collector sees of a message and of what it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from opentelemetry import trace

from holdfast import App, Context, StreamHandler
from holdfast.ports.queue import Outgoing
from holdfast.testing import node_for_tests
from tests.collector import Collector, collecting

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PRODUCER = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PRODUCER}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def traced(collector: Collector, sample: float = 1.0) -> dict[str, Any]:
    """The settings of a node whose traces go to this collector."""
    return {"trace_url": collector.url, "trace_sample": sample}


def site() -> App:
    """Cameras send what they see to their site."""
    app = App("site")

    @app.stream("cameras")
    class Camera(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> Any:
            if message.get("fails"):
                raise ValueError("the lens is dirty")
            context.send("sites", {"person": message["person"]}, key="gate")
            current = trace.get_current_span().get_span_context()
            return {
                "traceparent": context.traceparent,
                "current": f"{current.trace_id:032x}-{current.span_id:016x}",
            }

    @app.stream("sites")
    class Site(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> Any:
            return {"person": message["person"], "traceparent": context.traceparent}

    return app


def send(node: Any, body: dict[str, Any], key: str = "cam-1", **attributes: str) -> None:
    """Send as a producer of another kind does."""
    body = {**body, "key": key}
    node._run(node._services.queue("cameras").send([Outgoing(msgspec.json.encode(body), attributes)]))


def test_a_message_is_handled_committed_and_sent_on_in_the_trace_of_its_producer(
    collector: Collector,
) -> None:
    with node_for_tests(site(), settings=traced(collector)) as node:
        send(node, {"person": "ada"}, traceparent=TRACEPARENT)
        (first,) = node.results("cameras", 1)
        (second,) = node.results("sites", 1)
        names = ("receive cameras", "process cameras", "commit cameras", "send sites", "process sites")
        spans = collector.until(*names, trace_id=TRACE)
    process, delivery = spans["process cameras"], spans["send sites"]
    assert process.parent_id == PRODUCER
    assert first.value["traceparent"] == f"00-{TRACE}-{process.span_id}-01"
    assert first.value["current"] == f"{TRACE}-{process.span_id}", (
        "the span is the current one in the handler"
    )
    assert delivery.parent_id == process.span_id
    assert spans["process sites"].parent_id == delivery.span_id
    assert second.value["traceparent"] == f"00-{TRACE}-{spans['process sites'].span_id}-01"
    assert spans["commit cameras"].parent_id == process.span_id
    assert spans["commit cameras"].links == [f"{TRACE}-{process.span_id}"]
    assert spans["receive cameras"].links == [f"{TRACE}-{PRODUCER}"]
    assert {span.service for span in spans.values()} == {"site"}
    assert (process.kind, delivery.kind) == ("consumer", "producer")
    assert process.attributes["messaging.operation.type"] == "process"
    assert process.attributes["messaging.destination.name"] == "cameras"
