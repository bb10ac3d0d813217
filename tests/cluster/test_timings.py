"""Durations are counted in plain numbers, and rendered as Prometheus has histograms."""

import pytest
from prometheus_client.core import HistogramMetricFamily

from holdfast.cluster.timings import Histogram, Timings, TimingsBy


def test_a_duration_counts_in_the_bucket_of_the_next_bound() -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for seconds in (0.05, 0.1, 0.11, 99.0):
        histogram.note(seconds)
    assert histogram.buckets() == [("0.1", 2.0), ("1", 3.0), ("10", 3.0), ("+Inf", 4.0)]
    assert histogram.sum_s == pytest.approx(99.26)


def test_several_durations_of_the_same_length_are_one_note() -> None:
    histogram = Histogram((1.0,))
    histogram.note(0.25, 32)
    assert histogram.buckets() == [("1", 32.0), ("+Inf", 32.0)]
    assert histogram.sum_s == 8.0


def test_a_clock_that_was_set_back_gives_no_time_below_none() -> None:
    histogram = Histogram((1.0,))
    histogram.note(-5.0)
    assert (histogram.buckets()[0], histogram.sum_s) == (("1", 1.0), 0.0)


def test_a_declared_name_is_there_from_the_start() -> None:
    timings = TimingsBy("stream", "Times.", (1.0,))
    by = timings.each(["b", "a"])
    by["b"].note(0.5)
    assert [(name, histogram.counts) for name, histogram in timings.items()] == [("a", [0, 0]), ("b", [1, 0])]


def test_every_timing_can_be_rendered() -> None:
    for name, timings in Timings():
        timings.of("x").note(1.0)
        family = HistogramMetricFamily(name, timings.meaning, labels=[timings.label])
        for value, histogram in timings.items():
            family.add_metric([value], histogram.buckets(), histogram.sum_s)
        assert family.samples[-2].value == 1.0, "the count is that of the last bucket"
