"""Places in traces: what is read and written, and which traces are recorded."""

from __future__ import annotations

import random

import pytest

from holdfast.common.traceparent import (
    SampleRate,
    TraceContext,
    checked,
    cut,
    passed_on,
    read_traceparent,
    says_sampled,
    write_traceparent,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "text", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-more"]
)
def test_trace_and_span_are_read_from_a_valid_traceparent(text: str) -> None:
    assert read_traceparent(text) == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}\u0664-{SPAN}-01",
        "x" * 100_000,
    ],
)
def test_an_invalid_traceparent_is_neither_read_nor_passed_on(text: str) -> None:
    assert read_traceparent(text) is None
    assert passed_on(read_traceparent(text)) == ""


def test_what_is_written_is_read_and_says_whether_it_is_recorded() -> None:
    written = write_traceparent(TRACE, SPAN, sampled=True)
    assert read_traceparent(written) == TraceContext(TRACE, SPAN)
    assert says_sampled(written)
    passed = passed_on(read_traceparent(written))
    assert not says_sampled(passed)
    assert read_traceparent(passed) == TraceContext(TRACE, SPAN)


def test_the_share_of_traces_is_the_rate_and_the_id_decides() -> None:
    chance = random.Random(7)
    ids = [f"{chance.getrandbits(128):032x}" for _ in range(20_000)]
    taken = [each for each in ids if SampleRate(0.1).takes(each)]
    assert 0.09 < len(taken) / len(ids) < 0.11
    assert taken == [each for each in ids if SampleRate(0.1).takes(each)]
    assert all(map(SampleRate(0.2).takes, taken)), "a higher rate records what a lower one does"
    assert all(map(SampleRate(1.0).takes, ids))
    assert not any(map(SampleRate(0.0).takes, ids))


def test_what_is_refused_without_reading_is_recorded_by_no_rate_as_low() -> None:
    chance = random.Random(9)
    for _ in range(1000):
        trace_id = f"{chance.getrandbits(128):032x}"
        assert SampleRate(0.3).refuses(f"00-{trace_id}-{SPAN}-01") is not SampleRate(0.3).takes(trace_id)
    assert not SampleRate(0.3).refuses("nonsense")


def test_the_sampler_of_opentelemetry_decides_alike() -> None:
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    chance, theirs, ours = random.Random(8), TraceIdRatioBased(0.3), SampleRate(0.3)
    for _ in range(2000):
        number = chance.getrandbits(128)
        taken = theirs.should_sample(None, number, "x").decision is not Decision.DROP
        assert ours.takes(f"{number:032x}") is taken


def test_what_is_cut_asks_nobody_to_record_it() -> None:
    assert cut(f"00-{TRACE}-{SPAN}-01") == f"00-{TRACE}-{SPAN}-00"


def test_only_a_valid_place_is_passed_on() -> None:
    valid = f"00-{TRACE}-{SPAN}-00"
    assert checked(valid) == valid
    assert checked(cut("nonsense")) == checked("") == ""
