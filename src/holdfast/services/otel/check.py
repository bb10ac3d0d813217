"""Checks with the official exporters whether a collector accepts data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from holdfast.services.otel import exporter, metrics

TIMEOUT_S = 2.0


async def takes_spans(url: str) -> bool:
    """Return True if the collector at ``url`` takes a request without spans."""
    return await asyncio.to_thread(_takes, OTLPSpanExporter, exporter, url, [])


async def takes_metrics(url: str) -> bool:
    """Return True if the collector at ``url`` takes a request without metrics."""
    return await asyncio.to_thread(_takes, OTLPMetricExporter, metrics, url, MetricsData([]))


def _takes(make: Callable[..., Any], module: ModuleType, url: str, nothing: Any) -> bool:
    logging.getLogger(module.NOISY).setLevel(logging.CRITICAL)
    asking = make(exporter.endpoint_of(url, module.PATH), timeout=TIMEOUT_S)
    try:
        return asking.export(nothing) in (SpanExportResult.SUCCESS, MetricExportResult.SUCCESS)
    finally:
        asking.shutdown()
