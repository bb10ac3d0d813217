"""Traces over real processes: from a foreign producer on SQS to a webhook, while slots, nodes and collectors
die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from aiohttp import web

from holdfast.config.settings import Config
from holdfast.ports.queue import Outgoing, Queue
from holdfast.tasks.names import event_queue, task_queue
from holdfast.wiring.services import Services
from tests.collector import Collector, collecting
from tests.nodes.cluster import Process, until
from tests.nodes.conftest import MakeQueue
from tests.serving import served

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PRODUCER = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PRODUCER}-01"

Spawn = Callable[..., Process]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture
async def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[list[dict[str, Any]]]:
    """What came to a webhook, which the app knows: each with its header ``traceparent``."""
    came: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        came.append({**await request.json(), "traceparent": request.headers.get("traceparent", "")})
        return web.Response()

    async with served(web.post("/hook", take)) as url:
        monkeypatch.setenv("TRACED_HOOK", f"{url}/hook")
        monkeypatch.setenv("TRACED_PLACE", str(tmp_path))
        yield came


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Spawn]:
    """Start a node of the traced app. It ends with the test."""
    started: list[Process] = []

    def start(name: str, **settings: Any) -> Process:
        values = {
            "url": f"sqlite:///{tmp_path}/holdfast.db",
            "objects_url": f"file:{tmp_path}/objects",
            "durability": "normal",
            "slots": 1,
            "spare_slots": 0,
            "task_slots": 1,
            "port": 0,
            "log_format": "json",
            "trace_sample": 1.0,
            **settings,
        }
        variables = {f"HOLDFAST_{key.upper()}": str(value) for key, value in values.items()}
        command = ("node", "traced_app:app", "--name", name)
        started.append(Process(name, tmp_path, command, variables))
        return started[-1]

    yield start
    for node in started:
        family = node.family()
        node.child.kill()
        await node.ended()
        for process in family:
            if process.is_running():
                process.kill()


@pytest.mark.slow
async def test_a_trace_leads_from_a_producer_on_sqs_over_a_killed_owner_to_a_webhook(
    collector: Collector, hook: list[dict[str, Any]], spawn: Spawn, make_queue: MakeQueue, tmp_path: Path
) -> None:
    for queue in ("frames", task_queue("traced", "report"), event_queue("traced")):
        await make_queue(queue)
    settings = {
        "trace_url": collector.url,
        "queue_url": "sqs:///",
        "visibility_s": 4.0,
        "receive_wait_s": 1.0,
        "ttl_s": 3.0,
        "renew_s": 0.5,
        "custody_check_s": 1.0,
    }
    nodes = {name: spawn(name, **settings) for name in ("a", "b")}
    for node in nodes.values():
        await node.until_said("node runs")
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(9)}
    attributes["traceparent"] = {"DataType": "String", "StringValue": TRACEPARENT}
    await asyncio.to_thread(_send_by_boto, "frames", {"key": "cam", "n": 1, "do": "hold"}, attributes)
    await until((tmp_path / "held").exists, "the message is held")
    owner = nodes[Path((tmp_path / "held").read_text()).name.removeprefix("node-")]
    owner.signal(signal.SIGKILL)
    (tmp_path / "killed").touch()
    await until(lambda: bool(hook), "the webhook is called")
    names = ("process frames", "look", "commit frames", f"send {_hook_url()}")
    spans = await asyncio.to_thread(collector.until, *names, trace_id=TRACE)
    process, delivery = spans["process frames"], spans[f"send {_hook_url()}"]
    assert process.parent_id == PRODUCER
    assert spans["look"].parent_id == process.span_id
    assert (spans["look"].scope, spans["look"].attributes["n"]) == ("traced_app", 1)
    assert delivery.parent_id == process.span_id
    assert hook[0]["traceparent"] == f"00-{TRACE}-{delivery.span_id}-01"


@pytest.mark.nightly
async def test_the_spans_of_user_code_and_of_tasks_join_and_lines_of_the_log_name_the_trace(
    collector: Collector, hook: list[dict[str, Any]], spawn: Spawn, tmp_path: Path
) -> None:
    node = spawn("a", trace_url=collector.url)
    await node.until_said("node runs")
    await send(tmp_path, {"key": "cam", "n": 7})
    names = ("process frames", "look", "send report", "process report", "write")
    spans = await asyncio.to_thread(collector.until, *names, trace_id=TRACE)
    assert spans["look"].parent_id == spans["process frames"].span_id
    assert spans["process report"].parent_id == spans["send report"].span_id
    assert spans["write"].parent_id == spans["process report"].span_id
    line = await node.until_said("a report is written")
    assert line["trace_id"] == TRACE


@pytest.mark.nightly
async def test_a_slot_that_is_killed_leaves_a_span_that_failed(
    collector: Collector, hook: list[dict[str, Any]], spawn: Spawn, tmp_path: Path
) -> None:
    node = spawn("a", trace_url=collector.url)
    await node.until_said("node runs")
    await send(tmp_path, {"key": "cam", "n": 7, "do": "die"})
    await asyncio.to_thread(collector.until, "commit frames", trace_id=TRACE)
    first, second = collector.named("process frames")
    assert first.failed
    assert "SIGKILL" in first.error or "signal 9" in first.error, first.error
    assert not second.failed
    assert {first.parent_id, second.parent_id} == {PRODUCER}


@pytest.mark.nightly
@pytest.mark.parametrize("dead", ["refuses", "silent"])
async def test_a_dead_collector_delays_no_message_and_no_drain(
    dead: str, hook: list[dict[str, Any]], spawn: Spawn, tmp_path: Path
) -> None:
    server = socket.create_server(("127.0.0.1", 0))  # never accepts connections
    port = server.getsockname()[1]
    if dead == "refuses":
        server.close()
    node = spawn("a", trace_url=f"http://127.0.0.1:{port}")
    await node.until_said("node runs")
    for n in range(20):
        await send(tmp_path, {"key": "cam", "n": n})
    await until(lambda: len(hook) == 20, "all messages are handled")
    began_at = time.monotonic()
    node.signal(signal.SIGTERM)
    assert await node.ended() == 0, node.events
    assert time.monotonic() - began_at < 12.0
    server.close()


def _hook_url() -> str:
    return os.environ["TRACED_HOOK"]


async def send(place: Path, body: dict[str, Any]) -> None:
    """Send as a program of another kind does."""
    async with queue_of(place, "frames") as queue:
        await queue.send([Outgoing(json.dumps(body).encode(), {"traceparent": TRACEPARENT})])


@contextlib.asynccontextmanager
async def queue_of(place: Path, name: str) -> AsyncIterator[Queue]:
    """A queue of the nodes at ``place``."""
    async with Services(Config(url=f"sqlite:///{place}/holdfast.db")) as services:
        yield services.queue(name)


def _send_by_boto(queue: str, body: dict[str, Any], attributes: dict[str, Any]) -> None:
    sqs = boto3.client("sqs")
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(body), MessageAttributes=attributes)
