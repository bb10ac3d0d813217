"""The metrics page, as it is read."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.cluster.metrics import NodeMetrics
from holdfast.cluster.stats import Numbers, Stats
from holdfast.cluster.timings import Timings
from holdfast.ports.coordinator import Load
from holdfast.ports.meter import Meter
from holdfast.services.aws.service import s3, sqs


def page(host: Any, **more: Any) -> list[str]:
    """The lines of a node's page."""
    registry = CollectorRegistry()
    gauges = [("held", "Held.", 3.0)]
    registry.register(NodeMetrics(host, Load, lambda: gauges, lambda: {"gap": 2}, **more))
    return generate_latest(registry).decode().splitlines()


def a_host(meter: Meter | None = None) -> Any:
    return SimpleNamespace(
        stats=Stats(handled=7),
        timings=Timings(),
        meter=meter or Meter(),
        membership=SimpleNamespace(alive=True),
        tracer=None,
    )


def test_calls_are_told_by_service_and_operation() -> None:
    meter = Meter()
    meter.count("sqs", "ReceiveMessage", 2)
    meter.count("s3", "GetObject")
    lines = page(a_host(meter))
    assert 'holdfast_api_calls_total{operation="GetObject",service="s3"} 1.0' in lines
    assert 'holdfast_api_calls_total{operation="ReceiveMessage",service="sqs"} 2.0' in lines
    assert "holdfast_handled_total 7.0" in lines
    assert "holdfast_held 3.0" in lines
    assert 'holdfast_waiting_streams{reason="gap"} 2.0' in lines
    assert "holdfast_member 1.0" in lines


def test_calls_are_told_in_dollars_where_their_price_is_known() -> None:
    meter = Meter()
    meter.count("sqs", "ReceiveMessage", 1_000_000)
    meter.count("s3", "PutObject", 1_000_000)
    meter.count("s3", "GetObject", 1_000_000)
    meter.count("s3", "DeleteObject", 1_000_000)
    meter.count("redis", "EVALSHA", 1_000_000)
    lines = page(a_host(meter), prices={**sqs.prices("sqs://eu-west-1/"), **s3.prices("s3://bucket")})
    dollars = [line for line in lines if line.startswith("holdfast_api_dollars_total")]
    assert dollars == [
        'holdfast_api_dollars_total{service="s3"} 5.4',
        'holdfast_api_dollars_total{service="sqs"} 0.4',
    ]


def test_a_fifo_queue_costs_more_and_one_that_is_not_amazon_s_nothing_that_we_know() -> None:
    assert sqs.prices("sqs://eu-west-1/{stream}.fifo") == {("sqs", ""): 0.5}
    assert sqs.prices("http://127.0.0.1:4566/000000000000/frames") == {}


def test_times_are_told_as_histograms_by_declared_name() -> None:
    host = a_host()
    host.timings.commit_seconds.of("cameras").note(0.003)
    lines = page(host)
    assert 'holdfast_commit_seconds_bucket{le="0.0025",stream="cameras"} 0.0' in lines
    assert 'holdfast_commit_seconds_bucket{le="0.005",stream="cameras"} 1.0' in lines
    assert 'holdfast_commit_seconds_count{stream="cameras"} 1.0' in lines
    assert 'holdfast_commit_seconds_sum{stream="cameras"} 0.003' in lines


def test_kinds_of_work_share_a_metric_of_one_name() -> None:
    def numbers() -> list[Numbers]:
        return [Numbers("gauge", "busy", "Busy.", "work", {work: 1.0}) for work in ("streams", "tasks")]

    lines = page(a_host(), numbers=numbers)
    assert lines.count("# TYPE holdfast_busy gauge") == 1
    assert 'holdfast_busy{work="streams"} 1.0' in lines
    assert 'holdfast_busy{work="tasks"} 1.0' in lines
