"""Traces through what products do, over real processes: to the answer of a device, and to the delivery of a
report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from simulator.servers import MosquittoServer
from tests.collector import Collector, collecting
from tests.nodes.cluster import Process, until
from tests.nodes.test_tracing import TRACE, queue_of, send
from tests.serving import served

NAMES = (
    "process frames",
    "send doors",
    "publish doors",
    "process doors",
    "send report.publish",
    "process report.publish",
    "open sources",
    "read source",
    "format file",
    "deliver file",
)


class Door:
    """A device that obeys all commands, and records their trace contexts."""

    def __init__(self, broker: MosquittoServer) -> None:
        self.places: list[str] = []
        self._client = Client(CallbackAPIVersion.VERSION2, "door-1", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_message = self._do
        self._client.on_connect = lambda client, *_: client.subscribe("dev/face/door-1", 1)
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _do(self, client: Client, _: object, message: MQTTMessage) -> None:
        came: Any = message.properties
        self.places += [value for name, value in getattr(came, "UserProperty", []) if name == "traceparent"]
        answer: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        answer.CorrelationData = came.CorrelationData
        client.publish(came.ResponseTopic, b'{"code": 200}', 1, properties=answer)


@pytest.fixture
async def destination() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that takes files, and the places in traces that they came with."""
    came: list[str] = []

    async def take(request: web.Request) -> web.Response:
        await request.read()
        came.append(request.headers.get("traceparent", ""))
        return web.Response(status=201)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=404)

    async with served(web.put("/{name}", take), web.get("/{name}", answer)) as url:
        yield f"{url}/", came


@pytest.mark.nightly
async def test_a_trace_leads_to_the_answer_of_a_device_and_to_the_delivery_of_a_report(
    destination: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, deliveries = destination
    monkeypatch.setenv("TRACED_PLACE", str(tmp_path))
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "rows.parquet")
    order = {
        "customer": "acme",
        "report": "visits",
        "tables": [{"sources": [f"file:{tmp_path}/rows.parquet"]}],
        "name": "visits.csv",
        "delivery": {"destination": url},
    }
    async with MosquittoServer() as broker:
        door = Door(broker)
        with collecting() as collector:
            node = _start(tmp_path, collector, broker)
            try:
                await node.until_said("node runs")
                await send(tmp_path, {"key": "cam", "order": order})
                spans = await asyncio.to_thread(collector.until, *NAMES, trace_id=TRACE)
                await until((tmp_path / "told").exists, "the business code gets the command")
                async with queue_of(tmp_path, "ends") as ends:
                    (brief,) = await ends.receive(1, 30.0, 60.0, "me")
            finally:
                node.child.kill()
                await node.ended()
                door.close()
    ids = {spans[name].span_id: name for name in NAMES}
    under = {name: ids.get(spans[name].parent_id, "") for name in NAMES}
    assert under == {
        "process frames": "",
        "send doors": "process frames",
        "publish doors": "send doors",
        "process doors": "send doors",
        "send report.publish": "process frames",
        "process report.publish": "send report.publish",
        "open sources": "process report.publish",
        "deliver file": "process report.publish",
        "format file": "deliver file",
        "read source": "format file",
    }
    assert door.places == [f"00-{TRACE}-{spans['publish doors'].span_id}-01"]
    command = spans["process doors"]
    assert (
        command.attributes.items() >= {"holdfast.device": "door-1", "holdfast.state": "acknowledged"}.items()
    )
    place = f"00-{TRACE}-{spans['send doors'].span_id}-01"
    assert (tmp_path / "told").read_text() == brief.attributes["traceparent"] == place
    assert deliveries == [f"00-{TRACE}-{spans['deliver file'].span_id}-01"]
    assert not any(span.failed for span in spans.values())


def _start(place: Path, collector: Collector, broker: MosquittoServer) -> Process:
    values: dict[str, Any] = {
        "url": f"sqlite:///{place}/holdfast.db",
        "objects_url": f"file:{place}/objects",
        "outbox_url": f"sqlite:///{place}/office.db",
        "devices_url": broker.url,
        "durability": "normal",
        "slots": 1,
        "spare_slots": 0,
        "task_slots": 1,
        "port": 0,
        "log_format": "json",
        "trace_sample": 1.0,
        "trace_url": collector.url,
    }
    variables = {f"HOLDFAST_{key.upper()}": str(value) for key, value in values.items()}
    return Process("a", place, ("node", "traced_products_app:app", "--name", "a"), variables)
