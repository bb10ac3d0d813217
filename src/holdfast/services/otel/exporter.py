"""Exports spans by OTLP over HTTP, with the official exporter, from a thread: the node never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from holdfast.common.conventions import HOLDFAST, SCHEMA_URL
from holdfast.common.traceparent import read_traceparent
from holdfast.ports.tracing import SpanRecord
from holdfast.registration.entry_points import DISTRIBUTION
from holdfast.services.otel.collector import CollectorState

PATH = "/v1/traces"
"""The path where the URL of a collector has none."""

WAITING_MAX = 8192
BATCH_MAX = 512
LINGER_S = 1.0
"""Seconds for which spans wait for others."""

ANSWER_S = 5.0
"""Seconds for a batch, with repetitions, after which it is dropped."""

CLOSE_S = 2.0
"""Seconds for the export of the last spans."""

NOISY = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""The exporter's own log, which reports each failed try."""

SCOPES_MAX = 100

KINDS = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "server": SpanKind.SERVER,
}

SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """Exports spans to the collector at ``url``. ``resource`` names their source, by OpenTelemetry's semantic
    conventions; the variables ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_EXPORTER_OTLP_HEADERS`` of
    OpenTelemetry are heeded."""

    def __init__(self, url: str, resource: Mapping[str, str], log: Any) -> None:
        self.exported = 0
        self.dropped = 0
        self._log = log
        self._resource = Resource.create(dict(resource))
        self._scopes = lru_cache(SCOPES_MAX)(scope_of)
        self._waiting: deque[SpanRecord] = deque()
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._collector = CollectorState(url, log, "spans")
        logging.getLogger(NOISY).setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(
            endpoint_of(url, PATH), timeout=ANSWER_S, compression=Compression.Gzip
        )
        self._thread: threading.Thread | None = None
        self._over: Callable[[], object] = lambda: None
        self._begin()

    def add(self, span: SpanRecord) -> None:
        """See SpanExporter.add."""
        if self._thread is None and not self._closing.is_set():
            self._begin()
        if self._closing.is_set() or len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(span)
        if not self._wake.is_set():
            self._wake.set()
        if len(self._waiting) >= BATCH_MAX:
            self._hurry.set()

    async def close(self) -> None:
        """See SpanExporter.close. A collector that did not take the last batch isn't waited for."""
        if self._closing.is_set():
            return
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self._over = lambda: loop.call_soon_threadsafe(over.set)
        self._closing.set()
        self._hurry.set()
        self._wake.set()
        if self._collector.failing:
            self._shut_down()  # it waits to repeat what will most likely fail
        if self._thread is None and self._waiting:
            self._begin()
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(TimeoutError):  # to join it would take one more thread
                async with asyncio.timeout(CLOSE_S):
                    await over.wait()
        if not self._collector.failing:
            self._shut_down()
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def _shut_down(self) -> None:
        close: Any = self._exporter.shutdown
        close()

    def _begin(self) -> None:
        """Start the thread. If that fails, spans wait, and each new one tries again."""
        thread = threading.Thread(target=self._run, name="holdfast-spans", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._collector.not_sent(error)
        else:
            self._thread = thread

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            self._hurry.wait(LINGER_S)
            self._hurry.clear()
            self._wake.clear()
            closing = self._closing.is_set()
            while batch := self._next():
                self._export(batch)
                if self._closing.is_set() and self._collector.failing:
                    closing = True
                    break
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            self._over()

    def _next(self) -> list[SpanRecord]:
        return [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]

    def _export(self, batch: list[SpanRecord]) -> None:
        spans = list(self._readable(batch))
        try:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except OSError:  # a collector that is away: some versions of the exporter let this through
            done = False
        except Exception as error:  # noqa: BLE001 - a library may raise anything, and the thread must go on
            self.dropped += len(spans)
            self._collector.not_sent(error)
            return
        if done:
            self.exported += len(spans)
        else:
            self.dropped += len(spans)
        self._collector.note(done)

    def _readable(self, batch: Iterable[SpanRecord]) -> Iterable[ReadableSpan]:
        for span in batch:
            try:
                yield self._as_readable(span)
            except (ValueError, KeyError, TypeError) as error:  # a slot's, which user code may have changed
                self.dropped += 1
                self._log.debug("cannot read span", error=str(error))

    def _as_readable(self, span: SpanRecord) -> ReadableSpan:
        context = _context(span.trace_id, span.span_id, is_remote=False)
        return ReadableSpan(
            span.name,
            context,
            _context(span.trace_id, span.parent_id, is_remote=True) if span.parent_id else None,
            self._resource,
            span.attributes,
            [Event(each.name, each.attributes, each.at_ns) for each in span.events],
            [
                Link(_context(*place, is_remote=True))
                for text in span.links
                if (place := read_traceparent(text))
            ],
            KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error or None) if span.failed else Status(StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=max(span.start_ns, span.end_ns),
            instrumentation_scope=self._scopes(span.scope),
        )


def scope_of(name: str = HOLDFAST) -> InstrumentationScope:
    """Return the scope: the library that makes spans or metrics."""
    if name != HOLDFAST:
        return InstrumentationScope(name)
    return InstrumentationScope(name, version(DISTRIBUTION), SCHEMA_URL)


def endpoint_of(url: str, path: str) -> str:
    """Return the URL to post to: ``path`` at a collector that is named without one."""
    return url.rstrip("/") + path if urlsplit(url).path in ("", "/") else url


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, SAMPLED)
