"""Messages of streams whose bodies are too large for their queue: handlers get them whole, in order, or the
sender hears of the limit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, AsyncClient, Context, StreamHandler
from holdfast.common.message import NO_RUN, Place
from holdfast.common.stored import StoredValue
from holdfast.errors import ConfigError, InvalidMessage, TooLarge, Unavailable
from holdfast.services.memory.objects import MemoryObjects
from holdfast.services.memory.queue import MemoryQueue
from holdfast.slots.thread import SlotThread
from holdfast.streams.addressing import STORED, STORED_BODY, address, stored_of
from holdfast.streams.archive import ArchivedMessage
from holdfast.streams.message import StreamMessage
from holdfast.streams.offline import OfflineStream
from holdfast.streams.performers import loading
from holdfast.streams.producer import StreamProducer
from holdfast.streams.replay import Replay
from holdfast.system.clock import SystemClock
from holdfast.system.values import Values
from holdfast.testing import NodeForTests, NodeSettings, node_for_tests
from tests.on_node import on

LIMIT = 50_000
LARGE = "x" * (LIMIT + 1)
EFFECT = 200_000

app = App("yard")


@app.stream("frames", key="camera", seq="n", first_seq=0)
class Frames(StreamHandler[dict[str, Any]]):
    """Tells how large what came is, and sends it on where that is wanted."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.sizes: list[int] = json.loads(state or b"[]")

    def process(self, message: dict[str, Any], context: Context) -> list[int]:
        self.sizes.append(len(message["pixels"]))
        if message.get("to"):
            context.send(message["to"], {"pixels": "y" * EFFECT, "from": message["n"]}, key="all")
        return self.sizes

    def snapshot(self) -> bytes:
        return json.dumps(self.sizes).encode()


@app.stream("copies")
def copies(message: dict[str, Any], context: Context) -> list[int]:
    return [message["from"], len(message["pixels"])]


@app.stream("raw", key="device", seq="count", run="boot", message=bytes, first_seq=0)
def raw(message: bytes, context: Context) -> list[int]:
    return [context.run, context.seq, len(message)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeForTests]:
    settings: NodeSettings = {"values_url": f"file:{tmp_path}/values", "max_message_bytes": LIMIT}
    with node_for_tests(app, folder=tmp_path, settings=settings) as made:
        yield made


def frame(n: int, pixels: str = LARGE, **more: Any) -> dict[str, Any]:
    return {"camera": "gate", "n": n, "pixels": pixels, **more}


def stored_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "values").rglob("*") if path.is_file())


def values(objects: MemoryObjects | None = None) -> Values:
    return Values(app.name, SystemClock(), objects or MemoryObjects())


def producer(stream: str, objects: MemoryObjects | None = None) -> tuple[StreamProducer, MemoryQueue]:
    queue = MemoryQueue(SystemClock(), max_bytes=LIMIT)
    return StreamProducer(stream, queue, app.streams[stream], values(objects)), queue


async def test_a_large_message_is_placed_by_its_attribute_and_read_by_nobody_else() -> None:
    for stream, message, key, place in (
        ("frames", StreamMessage(frame(7)), "gate", Place(app.streams["frames"].no_run, 7)),
        ("raw", StreamMessage(LARGE.encode(), key="d1", seq=7, run=2), "d1", Place(2, 7)),
        ("copies", StreamMessage({"key": "a", "x": LARGE}, message_id="m"), "a", Place(NO_RUN, 0, "m")),
    ):
        spec, objects = app.streams[stream], MemoryObjects()
        sender, queue = producer(stream, objects)
        await sender.send([message])
        [delivery] = await queue.receive(1, 0.0, 30.0, "n")
        assert delivery.body == STORED_BODY
        assert address(spec, delivery.body, delivery.attributes, "d", None)[0] == key
        found = address(spec, delivery.body, delivery.attributes, "d", None)[1]
        assert (found.seq, found.id) == (place.seq, place.id)
        assert stream != "raw" or found.run == 2
        stored = stored_of(delivery.attributes)
        assert stored is not None
        assert LARGE.encode() in await values(objects).get(stored.value)
        without = {name: value for name, value in delivery.attributes.items() if name != STORED}
        with pytest.raises(InvalidMessage):  # as versions do that don't know the attribute
            address(spec, delivery.body, without if stream != "raw" else {}, "d", None)


async def test_what_fits_its_queue_is_not_stored() -> None:
    objects = MemoryObjects()
    sender, queue = producer("frames", objects)
    await sender.send([StreamMessage(frame(1, "x"))])
    assert not objects.objects
    [delivery] = await queue.receive(1, 0.0, 30.0, "n")
    assert json.loads(delivery.body) == frame(1, "x")


async def test_without_a_store_or_a_declaration_the_error_names_limit_and_setting(tmp_path: Path) -> None:
    queue = MemoryQueue(SystemClock(), max_bytes=LIMIT)
    message = StreamMessage(frame(1))
    without_store = Values(app.name, SystemClock())
    for sender, said in (
        (
            StreamProducer("frames", queue, app.streams["frames"], without_store),
            "with the setting values_url",
        ),
        (StreamProducer("frames", queue, None, values()), "if the client were given the App"),
    ):
        with pytest.raises(TooLarge, match=rf"{LIMIT} \(max_message_bytes\).*{said}"):
            await sender.send([StreamMessage(frame(0, "x")), message])
    assert not queue.messages, "all are checked before one is sent"
    async with AsyncClient(app, url=f"sqlite:///{tmp_path}/a.db", max_message_bytes=LIMIT) as client:
        with pytest.raises(TooLarge, match="values_url"):
            await client.stream("frames").send(frame(1))


def test_an_attribute_that_says_nothing_is_no_message() -> None:
    for text in ("", "{}", "[1]", '{"value": {"url": "file:///etc/passwd"}, "key": "a"}'):
        with pytest.raises(InvalidMessage, match="holdfast-stored"):
            address(app.streams["frames"], b"stored", {STORED: text}, "d", None)


def test_handlers_know_nothing_of_where_bodies_are_and_get_them_in_order(
    node: NodeForTests, tmp_path: Path
) -> None:
    stream = node.stream("frames")
    stream.send_many([frame(0, "x"), frame(1), frame(2, LARGE + "x"), frame(3, "xx"), frame(4, LARGE)])
    assert node.results("frames", 5)[-1].value == [1, LIMIT + 1, LIMIT + 2, 2, LIMIT + 1]
    assert len(stored_files(tmp_path)) == 3
    node.stream("raw").send_many([StreamMessage(b"\xff" * 60_000, key="d", seq=n, run=5) for n in range(2)])
    assert [result.value for result in node.results("raw", 2)] == [[5, 0, 60_000], [5, 1, 60_000]]


def test_an_effect_that_is_too_large_for_its_target_s_queue_arrives(node: NodeForTests) -> None:
    node.stream("frames").send_many([frame(n, "x", to="copies") for n in range(3)])
    found = sorted(result.value for result in node.results("copies", 3))
    assert found == [[n, EFFECT] for n in range(3)]
    assert not node.dead_letters("frames")


def test_an_effect_that_a_foreign_queue_can_t_take_is_a_dead_letter_with_the_limit(
    node: NodeForTests, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path}/holdfast.db#others"
    node.stream("frames").send(frame(0, "x", to=target))
    node.results("frames", 1)
    letters: list[Any] = []
    while not letters:
        letters = node.dead_letters("frames")
    assert f"over the queue's max_bytes, {LIMIT} (max_message_bytes)" in letters[0].reason


def test_while_objects_are_away_a_message_waits_and_spends_no_try(
    node: NodeForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, failures = Values.get, [Unavailable("no connection"), ConfigError("no such bucket")] * 4

    async def away_at_first(self: Values, stored: StoredValue) -> bytes:
        if failures:
            raise failures.pop()
        return await get(self, stored)

    monkeypatch.setattr(loading, "pause_s", lambda *_: 0.01)
    monkeypatch.setattr(Values, "get", away_at_first)
    node.stream("frames").send_many([frame(0, "x"), frame(1), frame(2, "x")])
    assert node.results("frames", 3)[-1].value == [1, LIMIT + 1, 1]
    assert not failures, "more failures than a message has tries"
    assert not node.dead_letters("frames")


def test_a_message_whose_body_is_gone_is_a_dead_letter_and_can_be_sent_again_once_it_is_back(
    node: NodeForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, hidden = Values.get, dict[Path, bytes]()

    async def gone(self: Values, stored: StoredValue) -> bytes:
        for path in stored_files(tmp_path):
            hidden[path] = path.read_bytes()
            path.unlink()
        return await get(self, stored)

    monkeypatch.setattr(Values, "get", gone)
    node.stream("copies").send_many([{"key": "a", "from": n, "pixels": p} for n, p in ((0, LARGE), (1, "x"))])
    letters: list[Any] = []
    while not letters:
        letters = node.dead_letters("copies")
    assert "is gone: there is no such object" in letters[0].reason
    assert [result.value for result in node.results("copies", 1)] == [[1, 1]], "others go on"
    monkeypatch.undo()
    for path, data in hidden.items():
        path.write_bytes(data)
    on(node, lambda services: services.queue("copies").redrive([letters[0].id]))
    assert [result.value for result in node.results("copies", 2)] == [[1, 1], [0, LIMIT + 1]]


async def test_a_replay_reads_the_body_that_an_archived_message_names() -> None:
    objects = MemoryObjects()
    sender, queue = producer("frames", objects)
    await sender.send([StreamMessage(frame(0)), StreamMessage(frame(1))])
    archived = [
        ArchivedMessage("gate", 0, n, 1, n + 1, 100.0 + n, attributes=delivery.attributes, body_base64="c3Rv")
        for n, delivery in enumerate(await queue.receive(2, 0.0, 30.0, "n"))
    ]

    async def given() -> AsyncIterator[ArchivedMessage]:
        for each in archived:
            yield each
        objects.objects.clear()
        yield archived[0]

    offline = OfflineStream(app.streams["frames"], None, models={}, targets=app.targets)
    replay = Replay(offline, SlotThread("test").wait, None, values(objects).get)
    first, second, lost = [each async for each in replay.run(given())]
    await replay.stop()
    assert second.handled.result == json.dumps([LIMIT + 1] * 2, separators=(",", ":")).encode()
    assert not first.error
    assert "is gone" in lost.error
