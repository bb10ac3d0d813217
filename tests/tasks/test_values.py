"""Bodies and results of tasks that are too large for a queue: they come back whole, or not at all."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Job
from holdfast.common.stored import StoredValue
from holdfast.errors import ConfigError, TooLarge, Unavailable, ValueLost
from holdfast.rules.tasks.task import State
from holdfast.services.memory.objects import MemoryObjects
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.system.clock import SystemClock
from holdfast.system.values import Values
from holdfast.tasks import attempts
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.producer import Producer
from holdfast.tasks.values import INLINE_BYTES_MAX, TaskValues
from holdfast.tasks.wire import (
    Envelope,
    SentTask,
    TaskBrief,
    TaskMessage,
    Unreadable,
    decode_event,
    decode_task,
    encode_event,
    encode_task,
)
from holdfast.testing import NodeForTests, node_for_tests
from tests.cluster.fakes import Log
from tests.tasks.plain import plain

APP, TYPE = "reports", "report.publish"
ENVELOPE = Envelope(app=APP, task_id="t", task_type=TYPE)
LARGE = "x" * (INLINE_BYTES_MAX + 1)


def values(objects: MemoryObjects | None = None) -> TaskValues:
    return TaskValues(APP, SystemClock(), objects or MemoryObjects())


async def test_a_value_comes_back_as_it_was() -> None:
    objects = MemoryObjects()
    stored = await values(objects).put(b"\x00\xff" * 1000)
    assert stored.size == 2000
    assert await values(objects).get(stored) == b"\x00\xff" * 1000
    assert await values(objects).put(b"\x00\xff" * 1000) == stored, "as often as it is put"
    assert len(objects.objects) == 1


@pytest.mark.parametrize("there", [b"\x00\xfe" * 1000, b"\x00\xff" * 999, b""])
async def test_a_value_that_is_damaged_or_gone_is_never_given(there: bytes) -> None:
    objects = MemoryObjects()
    stored = await values(objects).put(b"\x00\xff" * 1000)
    objects.objects = dict.fromkeys(objects.objects, there)
    with pytest.raises(ValueLost, match=rf"{stored.url}' is damaged"):
        await values(objects).get(stored)
    objects.objects.clear()
    with pytest.raises(ValueLost, match=rf"{stored.url}' is gone"):
        await values(objects).get(stored)


async def test_a_result_that_is_no_json_is_never_given() -> None:
    of_a_task = values(MemoryObjects())
    outcome = Outcome(task_id="t", state=State.SUCCEEDED, stored=await of_a_task.put(b"no JSON"))
    after = encode_event(ENVELOPE, outcome)
    with pytest.raises(ValueLost, match="can't be read: it isn't JSON"):
        await of_a_task.whole(SentTask(ENVELOPE, Body(b"{}"), after=after))


async def test_what_can_not_be_a_value_is_not_looked_for() -> None:
    for url, size in (("file:///etc/passwd", 10), ("memory:///a", 2**40)):
        with pytest.raises(ValueLost):
            await values().get(StoredValue(url, size, "0" * 64))
    with pytest.raises(ConfigError, match="set values_url"):
        await TaskValues(APP, SystemClock()).get(StoredValue("memory:///a", 10, "0" * 64))


async def test_a_value_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.system.values.VALUE_BYTES_MAX", 1000)
    with pytest.raises(TooLarge, match="a value of 1001 bytes is too large; it may have 1000"):
        await values().put(bytes(1001))


def test_a_stored_body_comes_back_from_the_wire() -> None:
    order = plain().Order(customer="acme", rows=7)
    stored = StoredValue("s3://bucket/a", 2**40, "f" * 64)
    for name in ("", body_of(order).name):
        task = SentTask(ENVELOPE, Body(b"", name, stored))
        assert decode_task(encode_task(task), ENVELOPE).body == task.body


def test_programs_that_know_no_stored_bodies_refuse_the_task() -> None:
    """As versions of this one did that didn't know them. No handler gets another body."""
    wire = TaskMessage.FromString(
        base64.b64decode(encode_task(SentTask(ENVELOPE, Body(b"", "", StoredValue("s3://b/a", 1, "f" * 64)))))
    )
    wire.ClearField("Stored")
    for text in (False, True):
        with pytest.raises(Unreadable, match=r"'Body' says it is a .* and holds none") as error:
            decode_task(base64.b64encode(wire.SerializeToString()), ENVELOPE, text=text)
        assert error.value.envelope is not None
        assert error.value.envelope.task_id == "t", "so its producer is told"


def test_a_stored_result_comes_back_from_its_brief_and_is_none_to_others() -> None:
    stored = StoredValue("s3://bucket/a", 70_000, "f" * 64)
    brief = encode_event(ENVELOPE, Outcome(task_id="t", state=State.SUCCEEDED, stored=stored))
    assert decode_event(brief).stored == stored
    wire = TaskBrief.FromString(base64.b64decode(brief))
    assert wire.Value == ""


class Rig:
    """A producer over services in memory, with or without a store of values."""

    def __init__(self, objects: MemoryObjects | None) -> None:
        clock = SystemClock()
        self.queue = MemoryQueue(clock, max_bytes=200_000)
        self.store = MemoryTasks(clock)
        self.objects = objects
        self.producer = Producer(
            APP, lambda _: self.queue, self.store, clock, Log(), values=TaskValues(APP, clock, objects)
        )

    def sent(self) -> list[SentTask]:
        return [decode_task(message.body, ENVELOPE) for message in self.queue.messages.values()]


@pytest.fixture
def rig() -> Rig:
    return Rig(MemoryObjects())


async def test_only_large_bodies_are_stored(rig: Rig) -> None:
    fits, large = "x" * INLINE_BYTES_MAX, LARGE
    await rig.producer.send([Order(task_type=TYPE, body=body) for body in (fits, large, {"a": large})])
    inline, first, second = (task.body for task in rig.sent())
    assert inline == Body(fits.encode())
    assert rig.objects is not None
    assert first.stored is not None
    assert second.stored is not None
    assert await rig.objects.get(first.stored.url) == large.encode()
    assert json.loads(await rig.objects.get(second.stored.url)) == {"a": large}


async def test_large_bodies_of_follow_ups_are_stored_too(rig: Rig) -> None:
    last = Order(task_type=TYPE, body=LARGE)
    then = Order(task_type=TYPE, body="small", on_failure=last)
    await rig.producer.send([Order(task_type=TYPE, body="small", then=[then, last])])
    await rig.producer.send_batch([Order(task_type=TYPE, body=LARGE)], then=then)
    single, member = rig.sent()
    assert len(rig.queue.messages[1].body) < 5000
    assert [each.task.body.stored is not None for each in single.follow_ups] == [False, True]
    assert single.follow_ups[0].task.follow_ups[0].task.body.stored is not None
    assert member.body.stored is not None
    assert member.batch is not None
    assert member.batch.follow_ups[0].task.follow_ups[0].task.body.stored is not None


async def test_a_delayed_task_holds_no_large_body_in_the_store(rig: Rig) -> None:
    rig.queue.delay_max_s = 900.0
    await rig.producer.send([Order(task_type=TYPE, task_id="t", body=LARGE, delay_s=86_400.0)])
    assert len(rig.store.standing["t"].message) < 1000


async def test_without_a_store_for_them_large_bodies_are_refused_with_limit_and_setting() -> None:
    rig = Rig(None)
    await rig.producer.send([Order(task_type=TYPE, body=LARGE)])
    assert rig.sent()[0].body == Body(LARGE.encode()), "what the queue takes is sent"
    then = Order(task_type=TYPE, body="x" * 200_000)
    for order in (then, Order(task_type=TYPE, then=then)):
        with pytest.raises(TooLarge, match="over its queue's max_bytes, 200000; with the setting values_url"):
            await rig.producer.send([order])
    assert len(rig.queue.messages) == 1


async def test_nothing_is_sent_whose_body_can_t_be_stored(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(name: str, data: bytes) -> str:
        raise Unavailable("no connection")

    monkeypatch.setattr(rig.objects, "put", away)
    with pytest.raises(Unavailable):
        await rig.producer.send([Order(task_type=TYPE), Order(task_type=TYPE, body=LARGE)])
    assert not rig.queue.messages
    assert not rig.store.standing


# --- a node

app = App("office")


@app.task("repeat", body=dict, group="customer")
def repeat(body: dict[str, Any], job: Job) -> Any:
    return {"text": body["text"] * body["times"]}


@app.task("measure", body=str)
def measure(body: str, job: Job) -> str:
    assert job.after is not None
    return f"{len(body)} {len(job.after.value['text'])}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeForTests]:
    with node_for_tests(app, folder=tmp_path, settings={"values_url": f"file:{tmp_path}/values"}) as made:
        yield made


def stored_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "values").rglob("*") if path.is_file())


def test_handlers_and_producers_know_nothing_of_where_values_are(node: NodeForTests, tmp_path: Path) -> None:
    text = "y" * 100_000
    then = measure.s("z" * 200_000, task_id="measured")
    task_id = repeat.send({"customer": "acme", "text": text, "times": 3}, then=then)
    assert app.client.wait(task_id, timeout_s=30.0).value == {"text": text * 3}
    assert node.outcome(task_id).value == {"text": text * 3}
    assert node.outcome("measured").value == "200000 300000"
    task = app.client.status(task_id)
    assert task is not None
    assert (task.result, task.group) == (b"", "acme")
    assert [path.parent.parent.name for path in stored_files(tmp_path)] == ["office"] * 3
    told = {}
    for brief in app.client.briefs(follow=False):
        told[brief.outcome.task_id] = brief.outcome.value
        brief.ack()
    assert told == {task_id: {"text": text * 3}, "measured": "200000 300000"}


def test_a_task_whose_body_is_gone_fails_and_its_dead_letter_names_the_object(
    node: NodeForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = Values.get

    async def gone(self: Values, stored: StoredValue) -> bytes:
        for path in stored_files(tmp_path):
            path.unlink()
        return await get(self, stored)

    monkeypatch.setattr(Values, "get", gone)
    outcome = node.outcome(measure.send("z" * 100_000))
    assert (outcome.state, outcome.attempts) == (State.FAILED, 1), "no other attempt could help"
    assert outcome.detail.startswith(f"the value in 'file://{tmp_path}/values/office/")
    assert "is gone: there is no such object" in outcome.detail
    app.client.wait(outcome.task_id)
    letters: list[Any] = []
    while not letters:
        letters = node.dead_letters("measure")
    assert f"failed: the value in 'file://{tmp_path}/values/office/" in letters[0].reason


def test_while_objects_are_away_a_task_waits_and_spends_no_try(
    node: NodeForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, failures = Values.get, [Unavailable("no connection"), ConfigError("no such bucket")]

    async def away_at_first(self: Values, stored: StoredValue) -> bytes:
        if failures:
            raise failures.pop()
        return await get(self, stored)

    monkeypatch.setattr(attempts, "FETCH_AGAIN_S", 0.05)
    monkeypatch.setattr(Values, "get", away_at_first)
    outcome = node.outcome(repeat.send({"customer": "acme", "text": LARGE, "times": 0}))
    assert (outcome.value, outcome.attempts, failures) == ({"text": ""}, 1, [])


def test_a_result_waits_for_its_object_store_and_nothing_runs_again(
    node: NodeForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failures = Values.put, [Unavailable("no connection")]

    async def away_at_first(self: Values, data: bytes) -> StoredValue:
        if failures:
            raise failures.pop()
        return await put(self, data)

    monkeypatch.setattr(Values, "put", away_at_first)
    outcome = node.outcome(repeat.send({"customer": "acme", "text": "y", "times": 100_000}))
    assert (outcome.value, outcome.attempts, outcome.epoch) == ({"text": "y" * 100_000}, 1, 1)


def test_a_result_that_no_object_store_takes_fails_its_task(
    node: NodeForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: Values, data: bytes) -> StoredValue:
        raise ConfigError("no bucket 'values'; make it")

    monkeypatch.setattr(Values, "put", refused)
    outcome = node.outcome(repeat.send({"customer": "acme", "text": "y", "times": 100_000}))
    assert outcome.state is State.FAILED
    assert outcome.detail == "its result can't be stored: no bucket 'values'; make it"


def test_a_value_that_is_gone_is_told_to_who_waits_for_it(node: NodeForTests, tmp_path: Path) -> None:
    task_id = repeat.send({"customer": "acme", "text": "y", "times": 100_000})
    assert len(node.outcome(task_id).value["text"]) == 100_000
    [path] = stored_files(tmp_path)
    path.unlink()
    with pytest.raises(ValueLost, match=f"{path.name}' is gone"):
        app.client.wait(task_id)
    assert list(app.client.briefs(follow=False)) == [], "its brief is with the dead letters"


@pytest.mark.slow
def test_without_a_store_for_it_a_large_result_fails_and_names_limit_and_setting(tmp_path: Path) -> None:
    with node_for_tests(app, folder=tmp_path) as node:
        outcome = node.outcome(repeat.send({"customer": "acme", "text": "y", "times": 100_000}))
    assert outcome.state is State.FAILED
    assert "a result has 65536 at most; with the setting values_url" in outcome.detail


def test_a_body_without_its_group_fails_its_task(node: NodeForTests) -> None:
    for body in ({"text": ""}, [1]):
        outcome = node.outcome(repeat.send(body))  # type: ignore[arg-type]
        assert outcome.state is State.FAILED
        assert outcome.detail.startswith("malformed: ")
