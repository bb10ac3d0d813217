"""Messages that a producer sends to streams: by the client, sync and async, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import App, AsyncClient, Client, Context, StreamMessage
from holdfast.common.message import Place
from holdfast.config.sources import load
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.ports.queue import Delivery, Outgoing
from holdfast.streams.addressing import address
from holdfast.streams.producer import StreamProducer
from holdfast.wiring.services import Services
from simulator.servers import FauxqsServer


@dataclass
class Reading:
    meter: str
    number: int
    kwh: float = 0.5


class Model(pydantic.BaseModel):
    meter: str = pydantic.Field(alias="m")


app = App("meters")


@app.stream("readings", key="meter", seq="number", message=Reading)
def readings(message: Reading, context: Context) -> None: ...


@app.stream("raw", key=("device", "terminal"), seq="count", run="boot", message=bytes)
def raw(message: bytes, context: Context) -> None: ...


@app.stream("nested", key="source.name", seq="source.place.n")
def nested(message: dict[str, Any], context: Context) -> None: ...


@app.stream("plain")
def plain(message: dict[str, Any], context: Context) -> None: ...


@app.stream("models", key="m", message=Model)
def models(message: Model, context: Context) -> None: ...


@app.stream("numbered", seq="queue")
def numbered(message: dict[str, Any], context: Context) -> None: ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(app, url=url) as made:
        yield made


async def received(url: str, stream: str) -> list[Delivery]:
    """What waits in a stream's queue."""
    async with Services(load({"url": url})) as services:
        return await services.queue(stream).receive(500, 0, 60, "test")


async def placed(url: str, stream: str) -> list[tuple[str, Place]]:
    """The key and place of what waits there, as a node reads them."""
    spec = app.streams[stream]
    return [address(spec, d.body, d.attributes, d.id, d.number) for d in await received(url, stream)]


async def test_a_declared_message_is_sent_as_its_stream_reads_it(client: AsyncClient, url: str) -> None:
    assert await client.stream("readings").send(Reading("m0", 7))
    await client.stream("models").send(Model(m="m1"))
    (reading,) = await received(url, "readings")
    assert msgspec.json.decode(reading.body, type=Reading) == Reading("m0", 7)
    assert [key for key, _ in await placed(url, "models")] == ["m1"]


async def test_many_messages_are_sent_in_few_calls_and_in_order(client: AsyncClient, url: str) -> None:
    ids = await client.stream("readings").send_many(
        [Reading("m0", 0), {"meter": "m0", "number": 1, "kwh": 1}, b'{"meter":"m0","number":2}']
        + [Reading("m0", n) for n in range(3, 700)]
    )
    assert len(set(ids)) == 700
    async with Services(load({"url": url})) as services:
        assert (await services.queue("readings").depth()).ready == 700


async def test_a_place_that_is_said_beside_the_message_is_written_into_it(
    client: AsyncClient, url: str
) -> None:
    await client.stream("readings").send({"kwh": 1}, key="m0", seq=7)
    await client.stream("nested").send({"source": {"color": "red"}}, key="cam", seq=3)
    assert await placed(url, "readings") == [("m0", Place(0, 7))]
    (message,) = await received(url, "nested")
    assert msgspec.json.decode(message.body) == {"source": {"color": "red", "name": "cam", "place": {"n": 3}}}


async def test_the_place_of_raw_bytes_is_said_by_attributes(client: AsyncClient, url: str) -> None:
    await client.stream("raw").send(b"\xff\x00", key="d1", seq=7, run=2)
    await client.stream("raw").send_many([StreamMessage(b"x", key=n, seq=0, run=0) for n in range(2)])
    first, *others = await received(url, "raw")
    assert first.body == b"\xff\x00"
    assert first.attributes == {"device": "d1", "count": "7", "boot": "2"}
    assert [other.attributes["device"] for other in others] == ["0", "1"]


async def test_a_message_id_tells_messages_without_seqs_apart(client: AsyncClient, url: str) -> None:
    await client.stream("plain").send({"key": "a"}, message_id="first")
    assert await placed(url, "plain") == [("a", Place(0, 0, "first"))]


async def test_the_key_goes_to_queues_that_keep_order_by_it(url: str) -> None:
    async with Services(load({"url": url})) as services:
        declared = StreamProducer("numbered", services.queue("numbered"), app.streams["numbered"])
        made = declared.outgoing(StreamMessage({}, key="a", delay_s=3))
        assert made == Outgoing(b'{"key":"a"}', {}, 3, "a")
        undeclared = StreamProducer("other", services.queue("other"))
        made = undeclared.outgoing(StreamMessage({"x": 1}, "a", 2, 3))
        assert made == Outgoing(b'{"x":1,"key":"a","seq":2,"run":3}', {}, 0, "a")
        made = undeclared.outgoing(StreamMessage(b"x", "a", 2))
        assert made == Outgoing(b"x", {"key": "a", "seq": "2"}, 0, "a")
        assert undeclared.outgoing(StreamMessage({"meter": "m"})) == Outgoing(b'{"meter":"m"}')


@pytest.mark.parametrize(
    "stream, message, said, complaint",
    [
        ("readings", {"number": 1}, {}, "meter"),
        ("readings", Reading("m", -1), {}, "number"),
        ("readings", {"meter": "m", "number": 1, "kwh": "much"}, {}, "kwh"),
        ("readings", Reading("m", 1), {"key": "other"}, "field 'meter' is 'm' in the message"),
        ("readings", Reading("m", 1), {"seq": 2}, "field 'number' is 1 in the message"),
        ("readings", Reading("m", 1), {"run": 2}, "have no run"),
        ("readings", Reading("m", 1), {"message_id": "x"}, "leave message_id out"),
        ("readings", [1], {"key": "m"}, "JSON object"),
        ("readings", b"{", {}, "not JSON"),
        ("readings", object(), {}, "can't be written as JSON"),
        ("readings", {"meter": "m", "number": 1, "kwh": float("nan")}, {}, "NaN"),
        ("nested", {"source": "here"}, {"key": "a"}, "'source' isn't an object"),
        ("plain", {"key": "a"}, {"seq": 1}, "have no seq"),
        ("plain", {}, {"key": ""}, "key"),
        ("plain", {"key": "a"}, {"delay_s": -1}, "delay_s"),
        ("plain", {"key": "a"}, {"message_id": "x" * 300}, "id"),
        ("raw", "text", {"key": "d"}, "raw bytes"),
        ("raw", b"x", {"key": "d", "seq": 1}, "boot"),
    ],
)
async def test_what_the_stream_could_not_take_is_refused_before_anything_is_sent(
    client: AsyncClient, url: str, stream: str, message: Any, said: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        await client.stream(stream).send(message, **said)
    assert await received(url, stream) == []


async def test_one_that_is_wrong_stops_all(client: AsyncClient, url: str) -> None:
    with pytest.raises(InvalidMessage, match="meter"):
        await client.stream("readings").send_many([Reading("m", 1), {}])
    with pytest.raises(TooLarge, match="max_bytes"):
        await client.stream("plain").send_many([{"key": "a"}, {"key": "a", "much": "x" * (1 << 20)}])
    assert await received(url, "readings") == await received(url, "plain") == []


async def test_a_stream_that_is_not_declared_is_misspelt(client: AsyncClient) -> None:
    with pytest.raises(ConfigError, match="declares no stream 'reading'; it has readings"):
        client.stream("reading")


async def test_a_client_that_knows_the_name_of_the_app_alone_sends_what_it_is_given(url: str) -> None:
    async with AsyncClient("meters", url=url) as client:
        await client.stream("readings").send({"meter": "m0", "number": 1})
        await client.stream("other").send(b"\xff", key="a", seq=1)
    assert await placed(url, "readings") == [("m0", Place(0, 1))]
    (message,) = await received(url, "other")
    assert (message.body, message.attributes) == (b"\xff", {"key": "a", "seq": "1"})


async def test_a_program_without_a_loop_sends_too(url: str) -> None:
    with Client(app, url=url) as client:
        stream = client.stream("readings")
        assert stream.send({"kwh": 1}, key="m0", seq=0)
        assert len(stream.send_many(Reading("m0", n) for n in range(1, 3))) == 2
    assert [place.seq for _, place in await placed(url, "readings")] == [0, 1, 2]


async def test_a_fifo_queue_keeps_the_order_of_each_key(
    fauxqs_server: FauxqsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in fauxqs_server.environment().items():
        monkeypatch.setenv(name, value)
    queue_url, url = (
        f"sqs://eu-central-1/p-{uuid.uuid4().hex[:8]}-{{stream}}.fifo",
        f"sqlite:///{tmp_path}/a.db",
    )
    async with Services(load({"queue_url": queue_url, "url": url})) as services:
        setup = services.queue_setup()
        assert setup is not None
        await setup.create("numbered", visibility_s=30, tags={}, encrypt=False, kms_key="")
        async with AsyncClient(app, queue_url=queue_url, url=url) as client:
            await client.stream("numbered").send_many([{"key": key} for key in "aab"])
            await client.stream("numbered").send({"key": "a"})
        queue = services.queue("numbered")
        (first,) = await queue.receive(1, 5, 30, "test")
        others = await queue.receive(10, 5, 30, "test")
        assert [message.body for message in (first, *others)] == [b'{"key":"a"}', b'{"key":"b"}']
