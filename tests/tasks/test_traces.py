"""The traces of tasks on a whole node."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import App, Job
from holdfast.cluster.tracer import Tracer
from holdfast.common.retry import Backoff
from holdfast.common.traceparent import TraceContext
from holdfast.ports.tracing import TracedCall
from holdfast.rules.tasks.attempt import How
from holdfast.system.clock import SystemClock
from holdfast.tasks.attempts import end_span
from holdfast.tasks.names import event_queue
from holdfast.tasks.slots import Ended
from holdfast.testing import node_for_tests
from tests.cluster.fakes import KeptSpans
from tests.collector import Collector, collecting
from tests.on_node import on


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def test_the_span_of_an_attempt_ends_when_its_handler_did() -> None:
    kept = KeptSpans()
    tracer = Tracer(kept, 1.0, SystemClock())
    for how in (How.RETURNED, How.RAISED):
        span = tracer.begin(TraceContext("4bf92f3577b34da6a3ce929d0e0e4736"), "process x", "consumer", {})
        end_span(tracer, span, Ended(how, traced=TracedCall(times={0: (1_000, 2_000)})))
    assert [(span.start_ns, span.end_ns) for span in kept.spans] == [(1_000, 2_000)] * 2


@pytest.mark.slow
def test_an_attempt_is_a_span_and_effects_and_follow_ups_stand_under_the_last(collector: Collector) -> None:
    app = App("site")

    @app.task("first", tries=2, backoff=Backoff(0.01, 0.02))
    def first(body: dict[str, Any], job: Job) -> str:
        if job.attempt == 1:
            raise ValueError("not yet")
        job.send("second", {"by": job.traceparent})
        return job.traceparent

    @app.task("second")
    def second(body: dict[str, Any], job: Job) -> str:
        return job.traceparent

    with node_for_tests(app, settings={"trace_url": collector.url, "trace_sample": 1.0}) as node:
        trace_id = node.client.send("first", {}, then=second.s({}))
        value = node.outcome(trace_id).value
        collector.until_named("process second", 2)
    tries = collector.named("process first")
    assert [(span.failed, span.attributes["holdfast.attempt"]) for span in tries] == [(True, 1), (False, 2)]
    (delivery,) = collector.named("send second")
    last = tries[1]
    assert value == f"00-{last.trace_id}-{last.span_id}-01"
    assert delivery.parent_id == last.span_id
    assert {span.parent_id for span in collector.named("process second")} == {delivery.span_id, last.span_id}


@pytest.mark.slow
def test_a_task_sent_over_http_stands_in_the_trace_of_its_request_and_so_does_its_brief(
    collector: Collector,
) -> None:
    app = App("site")

    @app.task("first")
    def first(body: dict[str, Any], job: Job) -> str:
        return job.traceparent

    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "Content-Type": "application/json"}
    with node_for_tests(app, settings={"trace_url": collector.url, "trace_sample": 1.0}) as node:
        (member,) = on(node, lambda services: services.coordinator().members())
        request = urllib.request.Request(
            f"{member.address}/v1/tasks",
            data=json.dumps({"task_type": "first", "trace_id": "one", "body": {}}).encode(),
            headers=headers,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 202
        place = node.outcome("one").value
        span = collector.until("process first", trace_id=trace)["process first"]
        assert (span.parent_id, place) == ("00f067aa0ba902b7", f"00-{trace}-{span.span_id}-01")
        (brief,) = on(node, lambda services: services.queue(event_queue("site")).receive(1, 20.0, 60.0, "me"))
        assert brief.attributes["traceparent"] == place
