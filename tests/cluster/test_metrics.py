"""The metrics page, as it is read."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.cluster.metrics import NodeMetrics
from holdfast.cluster.stats import Stats
from holdfast.ports.coordinator import Load
from holdfast.ports.meter import Meter


def test_calls_are_told_by_service_and_operation() -> None:
    meter = Meter()
    meter.count("sqs", "ReceiveMessage", 2)
    meter.count("s3", "GetObject")
    host: Any = SimpleNamespace(
        stats=Stats(handled=7), meter=meter, membership=SimpleNamespace(alive=True), tracer=None
    )
    registry = CollectorRegistry()
    registry.register(NodeMetrics(host, Load, lambda: [("held", "Held.", 3.0)], lambda: {"gap": 2}))
    lines = generate_latest(registry).decode().splitlines()
    assert 'holdfast_api_calls_total{operation="GetObject",service="s3"} 1.0' in lines
    assert 'holdfast_api_calls_total{operation="ReceiveMessage",service="sqs"} 2.0' in lines
    assert "holdfast_handled_total 7.0" in lines
    assert "holdfast_held 3.0" in lines
    assert 'holdfast_waiting_streams{reason="gap"} 2.0' in lines
    assert "holdfast_member 1.0" in lines
