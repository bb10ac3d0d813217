"""Programs that send with a tracer of their own: a span for each call, whose place goes with the messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from holdfast import App, Client
from holdfast.config.settings import Config
from holdfast.tasks.names import task_queue
from holdfast.wiring.services import Services

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
url = sys.argv[1]

async def received(name):
    async with Services(Config(url=url)) as services:
        return [d.attributes for d in await services.queue(name).receive(10, 1.0, 60.0, "me")]

with Client("site", url=url) as client:
    with trace.get_tracer("mine").start_as_current_span("order"):
        client.stream("cameras").send({"people": []}, key="cam")
        client.send("report", {"n": 1})
found = {s.name: (s.context.trace_id, s.context.span_id, s.parent.span_id if s.parent else 0, s.kind.name)
         for s in kept.get_finished_spans()}
queues = "cameras", task_queue("site", "report")
print(json.dumps([found, *(asyncio.run(received(name)) for name in queues)]))
"""


@pytest.mark.slow
def test_a_send_is_a_span_under_the_current_one_and_its_place_goes_with_the_message(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, check=False, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    spans, [message], [task] = json.loads(ran.stdout)
    order = spans.pop("order")
    (_, stream), (_, of_task) = sorted(spans.items())
    for span, attributes in ((stream, message), (of_task, task)):
        assert span[2:] == [order[1], "PRODUCER"]
        assert attributes["traceparent"] == f"00-{order[0]:032x}-{span[1]:016x}-01"


@pytest.mark.slow
def test_holdfast_imports_nothing_of_opentelemetry() -> None:
    code = "import sys, holdfast.assembly.node, holdfast.cluster.node;"
    code += "import holdfast.streams.work, holdfast.tasks.work;"
    code += "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert ran.stdout.strip() == "[]"
