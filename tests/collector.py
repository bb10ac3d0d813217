"""A collector for tests: takes spans and metrics by OTLP over HTTP, as real ones do."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PATIENCE_S = 30.0


class CollectedSpan(NamedTuple):
    """A span as a collector gets it."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    attributes: dict[str, Any]
    links: list[str]
    failed: bool
    error: str
    scope: str
    service: str
    took_s: float


class Collector:
    """What has come so far. ``answers`` are the statuses of the next answers; then all is taken."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.metrics: dict[str, Metric] = {}
        """The metrics that came last, by name."""
        self.metrics_of = ""
        """Whose they are."""
        self.requests = 0
        self.answers: list[int] = []
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, data: bytes) -> int:
        """Take a request; returns the status of the answer."""
        with self._news:
            self.requests += 1
            status = self.answers.pop(0) if self.answers else 200
            if status == 200 and path == "/v1/metrics":
                self._take_metrics(ExportMetricsServiceRequest.FromString(data))
            elif status == 200:
                assert path == "/v1/traces", path
                self.spans += _spans(ExportTraceServiceRequest.FromString(data))
            self._news.notify_all()
        return status

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        if not request.resource_metrics:
            return  # somebody asks whether it takes any
        (of_resource,) = request.resource_metrics
        (of_scope,) = of_resource.scope_metrics
        resource = {each.key: _value(each.value) for each in of_resource.resource.attributes}
        self.metrics_of = resource["service.name"]
        self.metrics = {metric.name: metric for metric in of_scope.metrics}

    def until(self, *names: str, trace_id: str = "") -> dict[str, CollectedSpan]:
        """Wait until spans of all these names have come, of one trace if given; returns the first of each."""
        deadline = time.monotonic() + PATIENCE_S
        with self._news:
            while True:
                found: dict[str, CollectedSpan] = {}
                for span in self.spans:
                    if not trace_id or span.trace_id == trace_id:
                        found.setdefault(span.name, span)
                if found.keys() >= {*names}:
                    return found
                left_s = deadline - time.monotonic()
                assert left_s > 0, (names, [(span.name, span.trace_id) for span in self.spans])
                self._news.wait(left_s)

    def until_asked(self, times: int) -> None:
        """Wait for so many requests."""
        with self._news:
            assert self._news.wait_for(lambda: self.requests >= times, PATIENCE_S)

    def until_named(self, name: str, count: int) -> None:
        """Wait for so many spans of this name."""
        with self._news:
            came = self._news.wait_for(lambda: [s.name for s in self.spans].count(name) >= count, PATIENCE_S)
            assert came, self.spans

    def named(self, name: str) -> list[CollectedSpan]:
        """All spans of this name that have come."""
        with self._news:
            return [span for span in self.spans if span.name == name]


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            status = collector.take(self.path, data)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name is inherited
            pass

    return Handler


def _spans(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for of_resource in request.resource_spans:
        resource = {each.key: _value(each.value) for each in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield CollectedSpan(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    {each.key: _value(each.value) for each in span.attributes},
                    [f"{link.trace_id.hex()}-{link.span_id.hex()}" for link in span.links],
                    span.status.code == Status.STATUS_CODE_ERROR,
                    span.status.message,
                    of_scope.scope.name,
                    resource.get("service.name", ""),
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    return getattr(value, kind)
