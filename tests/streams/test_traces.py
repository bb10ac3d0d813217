"""The traces of streams on a whole node: what a collector sees of a message and of what it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import trace

from holdfast import App, Context, StreamHandler
from holdfast.common.stored import StoredValue
from holdfast.common.traceparent import read_traceparent
from holdfast.ports.queue import Outgoing
from holdfast.streams.addressing import STORED_BODY, stored_attributes
from holdfast.testing import NodeSettings, node_for_tests
from tests.collector import Collector, collecting
from tests.on_node import on

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PRODUCER = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PRODUCER}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def traced(collector: Collector, sample: float = 1.0) -> NodeSettings:
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
    outgoing = Outgoing(msgspec.json.encode(body), attributes)
    on(node, lambda services: services.queue("cameras").send([outgoing]))


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_a_sender_says_of_sampling_is_not_heeded(collector: Collector) -> None:
    recorded = f"00-{'f' * 16}{'0' * 16}-{PRODUCER}-00"
    with node_for_tests(site(), settings=traced(collector, 0.5)) as node:
        send(node, {"person": "ada"}, traceparent=f"00-{'f' * 32}-{PRODUCER}-01")
        (first,) = node.results("sites", 1)
        send(node, {"person": "bob"}, traceparent=recorded)
        node.results("sites", 2)
        collector.until("process sites", trace_id=recorded[3:35])
    assert {span.trace_id for span in collector.spans} == {recorded[3:35]}
    assert first.value["traceparent"] == f"00-{'f' * 32}-{PRODUCER}-00", "it is passed on, and not recorded"


@pytest.mark.parametrize("sample", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("told", ["nonsense", "00-" + "f" * 49 + "\r\n", "\u0664" * 60, "x" * 10_000])
def test_nonsense_of_a_sender_is_not_passed_on(told: str, sample: float, collector: Collector) -> None:
    with node_for_tests(site(), settings=traced(collector, sample)) as node:
        send(node, {"person": "ada"}, traceparent=told)
        (first,) = node.results("cameras", 1)
        (second,) = node.results("sites", 1)
    for result in (first, second):
        place = result.value["traceparent"]
        assert place == "" or read_traceparent(place) is not None
        assert told[:8] not in place


@pytest.mark.slow
def test_a_failed_try_and_its_repeat_stand_side_by_side_and_the_dead_letter_keeps_the_place(
    collector: Collector,
) -> None:
    with node_for_tests(site(), settings=traced(collector)) as node:
        send(node, {"fails": True}, traceparent=TRACEPARENT)
        node.results("cameras")
        (letter,) = node.dead_letters("cameras")
        assert letter.attributes["traceparent"] == TRACEPARENT
        on(node, lambda services: services.queue("cameras").redrive([letter.id]))
        collector.until("process cameras", trace_id=TRACE)
        node.results("cameras")
    tries = collector.named("process cameras")
    assert [span.parent_id for span in tries] == [PRODUCER] * len(tries)
    assert [span.attributes["holdfast.attempt"] for span in tries][:2] == [1, 2]
    assert all(span.failed and "the lens is dirty" in span.error for span in tries)


@pytest.mark.slow
def test_a_message_whose_stored_body_is_lost_leaves_a_failed_span(
    collector: Collector, tmp_path: Path
) -> None:
    app = site()
    value = StoredValue(f"{tmp_path.as_uri()}/gone", 5, "0" * 64)
    stored = stored_attributes(app.streams["cameras"], b'{"key": "cam-1"}', {}, value)
    settings: NodeSettings = {**traced(collector), "values_url": tmp_path.as_uri()}
    with node_for_tests(app, settings=settings) as node:
        outgoing = Outgoing(STORED_BODY, {**stored, "traceparent": TRACEPARENT})
        on(node, lambda services: services.queue("cameras").send([outgoing]))
        node.results("cameras")
        collector.until("process cameras", trace_id=TRACE)
    tries = collector.named("process cameras")
    assert all(span.failed and "is gone" in span.error for span in tries)


@pytest.mark.slow
def test_the_deliveries_of_a_refused_effect_fail_and_its_dead_letter_keeps_the_place(
    collector: Collector,
) -> None:
    app = App("site")

    class Person(msgspec.Struct):
        key: str
        number: int

    @app.stream("people", message=Person)
    def people(message: Person, context: Context) -> None:
        return None

    @app.stream("cameras")
    class Camera(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> None:
            context.send("people", {"number": "no number"}, key="gate")

    with node_for_tests(app, settings=traced(collector)) as node:
        send(node, {"person": "ada"}, traceparent=TRACEPARENT)
        node.results("cameras")
        collector.until("send letters of cameras", trace_id=TRACE)
        (letter,) = node.dead_letters("cameras")
    (handling,) = collector.named("process cameras")
    deliveries = collector.named("send people")
    assert {span.parent_id for span in deliveries} == {handling.span_id}
    assert all(span.failed for span in deliveries)
    (buried,) = collector.named("send letters of cameras")
    assert (buried.parent_id, buried.failed) == (handling.span_id, False)
    assert letter.attributes["traceparent"] == f"00-{TRACE}-{buried.span_id}-01"


def test_without_a_collector_nothing_is_traced() -> None:
    with node_for_tests(site()) as node:
        send(node, {"person": "ada"}, traceparent=TRACEPARENT)
        (first,) = node.results("cameras", 1)
    assert (first.value["traceparent"], first.value["current"]) == ("", f"{0:032x}-{0:016x}")
