"""Asks a collector whether it takes what is sent to it, with the official exporters."""

from __future__ import annotations

import asyncio
import logging

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from holdfast.services.otel import exporter, metrics

TIMEOUT_S = 2.0


async def takes_spans(url: str) -> bool:
    """Return True if the collector at ``url`` takes a request without spans."""
    return await asyncio.to_thread(_takes_spans, url)


async def takes_metrics(url: str) -> bool:
    """Return True if the collector at ``url`` takes a request without metrics."""
    return await asyncio.to_thread(_takes_metrics, url)


def _takes_spans(url: str) -> bool:
    logging.getLogger(exporter.NOISY).setLevel(logging.CRITICAL)
    asking = OTLPSpanExporter(exporter.endpoint_of(url, exporter.PATH), timeout=TIMEOUT_S)
    try:
        return asking.export([]) is SpanExportResult.SUCCESS
    finally:
        asking.shutdown()  # type: ignore[no-untyped-call]


def _takes_metrics(url: str) -> bool:
    logging.getLogger(metrics.NOISY).setLevel(logging.CRITICAL)
    asking = OTLPMetricExporter(exporter.endpoint_of(url, metrics.PATH), timeout=TIMEOUT_S)
    try:
        return asking.export(MetricsData([])) is MetricExportResult.SUCCESS
    finally:
        asking.shutdown()
