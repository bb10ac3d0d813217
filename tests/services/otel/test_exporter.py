"""Spans reach a collector, and no collector holds a node up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from holdfast.ports.tracing import SpanEvent, SpanRecord
from holdfast.services.otel import exporter as module
from holdfast.services.otel.exporter import OtlpExporter, endpoint_of
from tests.collector import Collector, collecting

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PATIENCE_S = 30.0


class Log:
    """What is logged; ``said`` is set with each line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.said = threading.Condition()

    def _say(self, event: str, **values: Any) -> None:
        with self.said:
            self.lines.append(event)
            self.said.notify_all()

    debug = info = warning = error = _say

    def until(self, part: str) -> None:
        with self.said:
            assert self.said.wait_for(lambda: any(part in line for line in self.lines), PATIENCE_S)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.02)


def span(number: int = 1, **values: Any) -> SpanRecord:
    return SpanRecord(TRACE, f"{number:016x}", "", f"span {number}", "client", 10**18, 10**18 + 5, **values)


async def test_a_span_arrives_with_all_that_it_says(collector: Collector) -> None:
    exporter = OtlpExporter(collector.url, {"service.name": "site"}, Log())
    link = f"00-{TRACE}-{2:016x}-01"
    exporter.add(
        span(
            attributes={"text": "x", "count": 3, "share": 0.5, "is": True, "list": ["a", 1]},
            events=[SpanEvent("seen", 10**18, {"by": "me"})],
            links=[link, "nonsense"],
            failed=True,
            error="boom",
            scope="mine",
        )
    )
    await exporter.close()
    [found] = collector.spans
    assert (found.name, found.kind, found.scope, found.service) == ("span 1", "client", "mine", "site")
    assert (found.failed, found.error) == (True, "boom")
    assert found.links == [f"{TRACE}-{2:016x}"]
    assert found.attributes["text"] == "x"
    assert (exporter.exported, exporter.dropped) == (1, 0)


async def test_more_than_may_wait_is_dropped_and_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_S", PATIENCE_S)
    monkeypatch.setattr(module, "WAITING_MAX", 10)
    exporter = OtlpExporter(collector.url, {}, Log())
    for number in range(1, 16):
        exporter.add(span(number))
    await exporter.close()
    assert (exporter.exported, exporter.dropped, len(collector.spans)) == (10, 5, 10)
    exporter.add(span())
    assert exporter.dropped == 6, "it is closed"


async def test_a_span_that_says_nonsense_keeps_no_other_back(collector: Collector) -> None:
    exporter = OtlpExporter(collector.url, {}, Log())
    broken: Any = span(2)
    broken.trace_id = "no number"
    for each in (span(1), broken, span(3)):
        exporter.add(each)
    await exporter.close()
    assert [each.name for each in collector.spans] == ["span 1", "span 3"]
    assert (exporter.exported, exporter.dropped) == (2, 1)


async def test_the_log_says_once_that_a_collector_takes_nothing_and_once_that_it_does_again(
    collector: Collector,
) -> None:
    collector.answers = [400, 400]
    log = Log()
    exporter = OtlpExporter(collector.url, {}, log)
    exporter.add(span(1))
    await asyncio.to_thread(log.until, "collector failed")
    exporter.add(span(2))
    await asyncio.to_thread(collector.until_asked, 2)
    exporter.add(span(3))
    await asyncio.to_thread(log.until, "collector recovered")
    await exporter.close()
    assert [each.name for each in collector.spans] == ["span 3"]
    assert len(log.lines) == 2
    assert (exporter.exported, exporter.dropped) == (1, 2)


async def test_a_collector_that_never_answers_is_left_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = OtlpExporter(f"http://127.0.0.1:{silent.getsockname()[1]}", {}, Log())
        exporter.add(span())
        connection, _ = await asyncio.to_thread(silent.accept)
        exporter.add(span(2))
        await exporter.close()
        (thread,) = [each for each in threading.enumerate() if each.name == "holdfast-spans"]
        assert exporter.exported == 0, "what it waits for is not waited for"
        connection.close()
    await asyncio.to_thread(thread.join, PATIENCE_S)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """There is no thread to be had, but for the collector."""
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(("holdfast", "asyncio")):
            raise RuntimeError("can't start new thread")
        started(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


async def test_spans_wait_until_a_thread_can_be_started(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    log = Log()
    with no_room():
        exporter = OtlpExporter(collector.url, {}, log)
        for number in range(1, 4):
            exporter.add(span(number))
    assert log.lines == ["cannot send to collector"]
    exporter.add(span(4))
    await asyncio.to_thread(log.until, "collector recovered")
    await exporter.close()
    assert [each.name for each in collector.spans][:2] == ["span 1", "span 2"]
    assert exporter.exported + exporter.dropped == 4


async def test_what_waited_for_a_thread_is_exported_at_the_end(collector: Collector) -> None:
    with no_room():
        exporter = OtlpExporter(collector.url, {}, Log())
        exporter.add(span())
    await exporter.close()
    assert (exporter.exported, exporter.dropped, len(collector.spans)) == (1, 0, 1)


async def test_an_exporter_ends_in_order_though_no_thread_was_ever_started(collector: Collector) -> None:
    with no_room():
        exporter = OtlpExporter(collector.url, {}, Log())
        exporter.add(span())
        await exporter.close()
    assert (exporter.exported, exporter.dropped) == (0, 1)


async def test_the_end_takes_no_more_threads(collector: Collector) -> None:
    exporter = OtlpExporter(collector.url, {}, Log())
    exporter.add(span())
    with no_room():
        await exporter.close()
    assert (exporter.exported, exporter.dropped, len(collector.spans)) == (1, 0, 1)


async def test_a_failure_that_is_not_the_collector_s_is_told_as_what_it_is(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    exporter = OtlpExporter(collector.url, {}, log)

    def export(exporter: object, spans: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(OTLPSpanExporter, "export", export)
        exporter.add(span(1))
        await asyncio.to_thread(log.until, "cannot send to collector")
    exporter.add(span(2))
    await asyncio.to_thread(log.until, "collector recovered")
    await exporter.close()
    assert (exporter.exported, exporter.dropped) == (1, 1)


def test_a_collector_may_be_named_with_and_without_a_path() -> None:
    for url in ("http://c:4318", "http://c:4318/"):
        assert endpoint_of(url, "/v1/traces") == "http://c:4318/v1/traces"
    assert endpoint_of("https://c/otlp/v1/traces", "/v1/traces") == "https://c/otlp/v1/traces"


async def test_a_collector_that_is_away_is_told_as_away_whichever_way_the_exporter_says_so(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    exporter = OtlpExporter(collector.url, {}, log)

    def export(exporter: object, spans: object) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as patch:
        patch.setattr(OTLPSpanExporter, "export", export)
        exporter.add(span(1))
        await asyncio.to_thread(log.until, "collector failed")
    await exporter.close()
    assert exporter.dropped == 1
