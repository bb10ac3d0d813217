"""The spans that a node makes."""

from __future__ import annotations

from holdfast.cluster.tracer import LINKS_MAX, Tracer, trace_of
from holdfast.common.traceparent import TraceContext
from holdfast.ports.tracing import SpanRecord, TracedCall
from holdfast.system.clock import SystemClock
from tests.cluster.fakes import KeptSpans

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


def tracer(sample: float) -> tuple[Tracer, list[SpanRecord]]:
    kept = KeptSpans()
    return Tracer(kept, sample, SystemClock()), kept.spans


def test_the_flag_of_a_stranger_does_not_decide_what_is_recorded() -> None:
    none, _ = tracer(0.0)
    every, _ = tracer(1.0)
    for flag in ("00", "01", "ff"):
        parent = f"00-{TRACE}-{SPAN}-{flag}"
        assert none.place(parent) is None
        assert every.place(parent) == TraceContext(TRACE, SPAN)


def test_a_share_of_what_comes_without_a_trace_begins_one_that_every_node_records() -> None:
    some, _ = tracer(0.1)
    began = [place for _ in range(5000) if (place := some.place("")) is not None]
    assert 350 < len(began) < 650
    assert len({place.trace_id for place in began}) == len(began)
    for place in began:
        assert place.span_id == ""
        assert some.place(f"00-{place.trace_id}-{SPAN}-00") is not None


def test_a_span_that_has_failed_says_so() -> None:
    every, spans = tracer(1.0)
    span = every.begin(TraceContext(TRACE, SPAN), "process x", "consumer", {"a": 1})
    assert trace_of(span.traceparent) == {"trace_id": TRACE, "span_id": span.record.span_id}
    assert spans == [], "it has not ended"
    span.end("boom")
    assert [(each.parent_id, each.failed, each.error) for each in spans] == [(SPAN, True, "boom")]
    assert spans[0].end_ns >= spans[0].start_ns


def test_what_is_done_for_one_message_is_its_child_and_for_several_a_trace_of_its_own() -> None:
    every, spans = tracer(1.0)
    every.begin_for([SAMPLED], "commit x", "client", {}).end()
    every.begin_for([SAMPLED, SAMPLED], "commit x", "client", {}).end()
    one, both = spans
    assert (one.trace_id, one.parent_id, one.links) == (TRACE, SPAN, [SAMPLED])
    assert both.trace_id != TRACE
    assert (both.parent_id, both.links) == ("", [SAMPLED, SAMPLED])


def test_a_span_has_no_more_links_than_the_specification_allows() -> None:
    every, spans = tracer(1.0)
    every.begin_for([SAMPLED] * (LINKS_MAX + 50), "commit x", "client", {}).end()
    assert len(spans[0].links) == LINKS_MAX


def test_what_slots_recorded_is_exported_and_what_they_dropped_counted() -> None:
    every, spans = tracer(1.0)
    record = SpanRecord(TRACE, "1" * 16, SPAN, "mine", "internal", 1, 2)
    every.take(TracedCall([record], 3))
    assert (spans, every.dropped) == ([record], 3)
