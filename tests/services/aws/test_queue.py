"""What is SQS's own: groups, partial failures, answers that get lost, letters that the service moved."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from holdfast.errors import ConfigError, OutcomeUnknown, TooLarge
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.ports.queue import DeadLetter, Delivery, Outgoing
from holdfast.services.aws import channel
from holdfast.services.aws.channel import Channel, dead_letter_name
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.message import MAX_BYTES, encode
from holdfast.services.aws.queue import SqsQueue
from holdfast.services.aws.sqs import EmptyAnswer, QueueUrl, Sqs
from holdfast.system.clock import SystemClock
from simulator.proxies import CallFault, Rule, SqsFaults
from tests.services.aws.conftest import GLANCE_S, REGION, QuickClock

LONG_S = 60.0
FIFO = pytest.mark.parametrize("queue_name", ["fifo"], indirect=True)
BOTH = pytest.mark.parametrize("queue_name", ["standard", "fifo"], indirect=True)


@pytest.fixture
def queue(sqs: Sqs, queue_name: str, clock: Clock) -> SqsQueue:
    return SqsQueue(sqs, queue_name, clock, poll_max_s=1.0)


@pytest.fixture
async def faults(server: str) -> AsyncIterator[SqsFaults]:
    async with SqsFaults(server, seed=1) as faults:
        yield faults


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def troubled(faults: SqsFaults, queue_name: str, meter: Meter) -> AsyncIterator[SqsQueue]:
    """The same queue, through a proxy that has faults befall its calls."""
    clock = QuickClock()
    client = AwsClient("sqs", clock, meter, region=REGION, endpoint=faults.endpoint)
    yield SqsQueue(Sqs(client), queue_name, clock, poll_max_s=1.0)
    await client.close()


async def receive(queue: SqsQueue, count: int = 1, visibility_s: float = LONG_S) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await queue.receive(min(10, count - len(found)), 2.0, visibility_s, "node")
    return found


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


# --- what it declares


def test_declares_what_a_standard_queue_is(sqs: Sqs, clock: Clock) -> None:
    queue = SqsQueue(sqs, "frames", clock)
    assert (queue.max_batch, queue.max_bytes, queue.max_receives) == (10, MAX_BYTES, 16)
    assert (queue.linger_s > 0, queue.hold_max_s, queue.delay_max_s) == (True, 12 * 3600, 900)
    assert (queue.seq_kind, queue.fifo, queue.frees_on_evict) == ("absent", False, False)
    with pytest.raises(ConfigError, match=str(MAX_BYTES)):
        SqsQueue(sqs, "frames", clock, max_bytes=MAX_BYTES + 1)


def test_declares_what_a_fifo_queue_is(sqs: Sqs, clock: Clock) -> None:
    queue = SqsQueue(sqs, "https://sqs.eu-west-1.amazonaws.com/1/frames.fifo", clock)
    assert (queue.linger_s, queue.hold_max_s, queue.delay_max_s) == (0, math.inf, 0)
    assert (queue.seq_kind, queue.fifo) == ("increasing", True)


# --- groups


@pytest.mark.slow
@FIFO
async def test_the_order_of_a_key_survives_failures(queue: SqsQueue) -> None:
    """Nothing behind a message comes before that is deleted, whether it was given back or lapsed."""
    await queue.send([Outgoing(b"%d" % i, key="k") for i in range(4)] + [Outgoing(b"other", key="l")])
    first = [*await receive(queue), *await receive(queue)]
    assert bodies(first) == [b"0", b"other"]
    receipts = {d.body: d.receipt for d in first}
    assert await queue.receive(10, GLANCE_S, LONG_S, "node") == []
    await queue.give_back([receipts[b"0"]], 0)
    [again] = await receive(queue, 1, visibility_s=1.0)
    assert (again.body, again.receives) == (b"0", 2)
    [lapsed] = await receive(queue)
    assert (lapsed.body, lapsed.receives, lapsed.number) == (b"0", 3, again.number)
    numbers = [lapsed.number or 0]
    await queue.delete([lapsed.receipt])
    for body in (b"1", b"2", b"3"):
        [following] = await receive(queue)
        assert following.body == body
        numbers.append(following.number or 0)
        await queue.delete([following.receipt])
    assert numbers == sorted(set(numbers))


@FIFO
async def test_messages_without_key_wait_for_nobody(queue: SqsQueue) -> None:
    await queue.send([Outgoing(b"a"), Outgoing(b"b")])
    assert set(bodies(await receive(queue, 2))) == {b"a", b"b"}


@FIFO
async def test_messages_of_any_key_are_a_group_of_their_own(queue: SqsQueue) -> None:
    keys = ["käse ☃", "x" * 512, "a b", "plain"]
    await queue.send([Outgoing(key.encode(), key=key) for key in keys for _ in range(2)])
    assert [(await receive(queue))[0].body for _ in keys] == [key.encode() for key in keys]
    assert await queue.receive(10, GLANCE_S, LONG_S, "node") == []


@FIFO
@pytest.mark.parametrize("fault", [CallFault.LOSE_REPLY, CallFault.ERROR_DONE, CallFault.FAIL_ENTRIES_DONE])
async def test_a_send_whose_answer_was_lost_brings_nothing_twice(
    troubled: SqsQueue, faults: SqsFaults, fault: CallFault
) -> None:
    faults.plan.add(Rule(fault=fault, operation="SendMessage*", times=1))
    await troubled.send([Outgoing(b"a", key="k"), Outgoing(b"b", key="l")])
    assert faults.calls["SendMessageBatch"] == 2
    assert set(bodies(await receive(troubled, 2))) == {b"a", b"b"}
    assert (await troubled.depth()).ready == 0


@FIFO
async def test_the_same_message_may_be_sent_twice(queue: SqsQueue) -> None:
    for _ in range(2):
        await queue.send([Outgoing(b"same", key="k")])
    for _ in range(2):
        [delivery] = await receive(queue)
        await queue.delete([delivery.receipt])


async def test_a_longer_delay_than_sqs_has_is_refused(queue: SqsQueue) -> None:
    with pytest.raises(TooLarge, match="900"):
        await queue.send([Outgoing(b"x", delay_s=901)])


# --- failures


@BOTH
async def test_entries_that_fail_are_tried_again_alone(
    troubled: SqsQueue, faults: SqsFaults, meter: Meter
) -> None:
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="*Batch", times=2, share=0.3))
    ids = await troubled.send([Outgoing(b"%d" % i) for i in range(10)])
    assert (len(set(ids)), meter.calls["sqs", "SendMessageBatch"]) == (10, 3)
    assert faults.messages["SendMessageBatch"] == 10
    found = await receive(troubled, 10)
    assert sorted(bodies(found)) == [b"%d" % i for i in range(10)]
    assert {d.id for d in found} == set(ids)
    for act in (troubled.extend, troubled.give_back):
        faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="ChangeMessageVisibility*", times=1))
        assert await act([d.receipt for d in found[:4]], LONG_S) == []
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="Delete*", times=2, code="RequestThrottled"))
    assert await troubled.delete([d.receipt for d in found]) == []
    assert faults.messages["DeleteMessageBatch"] == 10
    depth = await troubled.depth()
    assert (depth.ready, depth.in_flight) == (0, 0)


async def test_entries_that_keep_failing_are_said(troubled: SqsQueue, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="SendMessage*"))
    with pytest.raises(OutcomeUnknown, match=r"of 4 failed .*InternalError"):
        await troubled.send([Outgoing(b"%d" % i) for i in range(4)])
    assert faults.calls["SendMessageBatch"] == 3
    faults.plan.rules = [Rule(fault=CallFault.FAIL_ENTRIES, operation="SendMessage*", sender_fault=True)]
    with pytest.raises(ConfigError, match="InvalidMessageContents"):
        await troubled.send([Outgoing(b"x")])
    assert faults.calls["SendMessageBatch"] == 4


@pytest.mark.parametrize("code", ["MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidParameterValue"])
async def test_stale_deliveries_are_told_from_others(
    troubled: SqsQueue, faults: SqsFaults, code: str
) -> None:
    await troubled.send([Outgoing(b"%d" % i) for i in range(4)])
    receipts = [d.receipt for d in await receive(troubled, 4)]
    for act in (troubled.extend, troubled.give_back):
        faults.plan.add(
            Rule(fault=CallFault.NOT_IN_FLIGHT, times=1, code=f"AWS.SimpleQueueService.{code}", share=0.4)
        )
        stale = await act(receipts, LONG_S)
        assert 0 < len(stale) < 4
        assert set(stale) < set(receipts)
    faults.plan.add(
        Rule(
            fault=CallFault.FAIL_ENTRIES,
            operation="Delete*",
            times=1,
            code=code,
            sender_fault=True,
            share=0.4,
        )
    )
    stale = await troubled.delete(receipts)
    assert 0 < len(stale) < 4
    assert faults.calls["ChangeMessageVisibilityBatch"] == 2
    assert faults.calls["DeleteMessageBatch"] == 1


@pytest.mark.parametrize("act", ["extend", "give_back", "delete"])
async def test_a_change_that_hangs_is_tried_again_before_deliveries_lapse(
    troubled: SqsQueue, faults: SqsFaults, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    await troubled.send([Outgoing(b"a")])
    (found,) = await receive(troubled)
    monkeypatch.setattr(channel, "CHANGE_S", 0.1)
    faults.plan.add(Rule(fault=CallFault.SLOW, operation="*Batch", times=1, delay_s=60))
    async with asyncio.timeout(30):
        arguments = () if act == "delete" else (LONG_S,)
        assert await getattr(troubled, act)([found.receipt], *arguments) == []


async def test_a_receive_whose_answer_was_lost_is_repeated(troubled: SqsQueue, faults: SqsFaults) -> None:
    await troubled.send([Outgoing(b"a"), Outgoing(b"b")])
    faults.plan.add(
        Rule(fault=CallFault.RESET, operation="Receive*", times=1),
        Rule(fault=CallFault.THROTTLE, operation="Receive*", times=1, status=503),
    )
    assert len(await receive(troubled, 2)) == 2


async def test_a_batch_over_a_mebibyte_goes_in_several_calls(
    sqs: Sqs, queue: SqsQueue, meter: Meter, server: str, queue_name: str, clock: Clock
) -> None:
    client = AwsClient("sqs", clock, meter, region=REGION, endpoint=server)
    metered = SqsQueue(Sqs(client), queue_name, clock)
    large = [bytes([65 + i]) * 300_000 for i in range(5)]
    ids = await metered.send([Outgoing(body) for body in large])
    assert meter.calls["sqs", "SendMessageBatch"] == 2
    found = {d.id: d.body for d in await receive(metered, 5)}
    assert found == dict(zip(ids, large, strict=True))
    await client.close()


# --- receives whose caller is gone


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_what_nobody_waits_for_is_given_back(
    queue: SqsQueue, sqs: Sqs, how: str, queue_name: str, clock: Clock
) -> None:
    receiving = asyncio.create_task(queue.receive(10, 2.0, LONG_S, "node"))
    await asyncio.sleep(0)
    if how == "cancelled":
        receiving.cancel()
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        await queue.send([Outgoing(b"x")])
    else:
        sender = SqsQueue(sqs, queue_name, clock)
        closing = asyncio.create_task(queue.close())
        assert await receiving == []
        await sender.send([Outgoing(b"x")])
        await closing
        queue = sender
    [delivery] = await receive(queue)
    assert delivery.receives <= 2


async def test_a_receive_cancelled_as_its_answer_comes_gives_back(
    queue: SqsQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.send([Outgoing(b"x")])
    receiving: asyncio.Task[list[Delivery]]
    loop, channel_receive = asyncio.get_running_loop(), Channel.receive

    def cancel() -> None:
        receiving.cancel()

    async def receive_and_cancel(self: Channel, *asked: Any) -> Any:
        answer = await channel_receive(self, *asked)
        # This call ends, the queue takes its answer, and only then its caller is cancelled.
        loop.call_soon(lambda: loop.call_soon(cancel))
        return answer

    monkeypatch.setattr(Channel, "receive", receive_and_cancel)
    receiving = asyncio.create_task(queue.receive(1, 2.0, LONG_S, "node"))
    await asyncio.wait([receiving])
    assert receiving.cancelled()
    monkeypatch.undo()
    [delivery] = await receive(queue)
    assert delivery.receives == 2


async def test_closing_waits_for_no_service_that_hangs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    called = asyncio.Event()

    async def hang(request: web.BaseRequest) -> web.StreamResponse:
        called.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr("holdfast.services.aws.queue.CLOSE_S", 0.01)
    async with RawTestServer(hang) as service:
        client = AwsClient("sqs", clock, region=REGION, endpoint=str(service.make_url("")))
        queue = SqsQueue(Sqs(client), "http://hangs/1/q", clock, poll_max_s=0.01)
        receiving = asyncio.create_task(queue.receive(1, 20.0, LONG_S, "node"))
        await called.wait()
        await queue.close()
        assert await receiving == []
        await client.close()


async def test_a_closed_queue_receives_nothing(queue: SqsQueue) -> None:
    await queue.send([Outgoing(b"x")])
    await queue.close()
    await queue.close()
    assert await queue.receive(1, 2.0, LONG_S, "node") == []


# --- what others send


async def test_messages_of_other_producers_arrive_as_they_are(
    queue: SqsQueue, sqs: Sqs, queue_name: str
) -> None:
    url = await sqs.queue_url(queue_name)
    attributes = {f"s{i}": {"DataType": "String", "StringValue": "text"} for i in range(9)}
    attributes["n"] = {"DataType": "Number", "StringValue": "7"}
    message = {"QueueUrl": url, "MessageBody": '{"video_id": "v"}', "MessageAttributes": attributes}
    await sqs.call("SendMessage", queue_name, message, EmptyAnswer)
    [delivery] = await receive(queue)
    assert delivery.body == b'{"video_id": "v"}'
    assert delivery.attributes == {f"s{i}": "text" for i in range(9)} | {"n": "7"}
    await queue.bury([DeadLetter("a", delivery.body, "bad", attributes=delivery.attributes)])
    [letter] = await queue.dead_letters(10)
    assert (letter.body, letter.attributes) == (delivery.body, delivery.attributes)


async def test_a_queue_is_known_by_its_url_too(
    sqs: Sqs, queue: SqsQueue, queue_name: str, clock: Clock
) -> None:
    by_url = SqsQueue(sqs, await sqs.queue_url(queue_name), clock)
    await queue.send([Outgoing(b"x")])
    await queue.bury([DeadLetter("a", b"x", "bad")])
    assert bodies(await receive(by_url)) == [b"x"]
    assert (await by_url.depth()).dead == 1


# --- dead letters


FOREIGN = '{"id": "a", "reason": "\\ud800", "at": 1}', '{"id": "a", "at": NaN}', "[" * 9000, "[]", '{"id": 5}'


@BOTH
async def test_a_letter_that_another_program_wrote_hides_no_others(
    sqs: Sqs, queue: SqsQueue, queue_name: str
) -> None:
    await queue.bury([DeadLetter("ours", b"x", "late")])
    url = await sqs.queue_url(dead_letter_name(queue_name))
    dead = Channel(sqs, url, SystemClock())
    await dead.send([encode(b"body", {}, said) for said in FOREIGN], [""] * len(FOREIGN))
    letters = await queue.dead_letters(10)
    assert sorted(letter.body for letter in letters) == [b"body"] * len(FOREIGN) + [b"x"]
    assert len(msgspec.json.encode(letters)) > 0, "each can be shown"


@BOTH
@pytest.mark.parametrize("key", ["k", ""])
async def test_letters_that_the_queue_itself_moved(
    sqs: Sqs, queue: SqsQueue, queue_name: str, key: str
) -> None:
    url = await sqs.queue_url(queue_name)
    policy = json.loads((await sqs.attributes(url))["RedrivePolicy"]) | {"maxReceiveCount": 1}
    request = {"QueueUrl": url, "Attributes": {"RedrivePolicy": json.dumps(policy)}}
    await sqs.call("SetQueueAttributes", queue_name, request, EmptyAnswer)
    [sent] = await queue.send([Outgoing(b"kills", {"a": "b"}, key=key)])
    [delivery] = await receive(queue)
    await queue.give_back([delivery.receipt], 0)
    assert await queue.receive(1, GLANCE_S, LONG_S, "node") == []  # by which it is moved
    [letter] = await queue.dead_letters(10)
    number = delivery.number or 0
    assert letter.id == (f"sqs/{number:020}/{sent}" if queue.fifo else f"sqs/{sent}"), "sorted as they came"
    assert (letter.body, letter.attributes) == (b"kills", {"a": "b"})
    assert letter.reason == "moved by the queue after 1 receives"
    assert letter.key == (key if queue.fifo else "")
    assert letter.at > 0
    assert await queue.dead_letters(10) == [letter]
    assert await queue.redrive([letter.id]) == 1
    [again] = await receive(queue)
    assert (again.body, again.attributes, again.receives) == (b"kills", {"a": "b"}, 1)


async def test_the_detail_of_a_letter_is_cut_to_what_fits(queue: SqsQueue) -> None:
    detail = "é" * 3_000_000 + "the last line"
    await queue.bury([DeadLetter("a", b"\xff" * MAX_BYTES, "bad", detail=detail)])
    [letter] = await queue.dead_letters(10)
    assert len(letter.body) == MAX_BYTES
    assert letter.detail.endswith("the last line")
    assert 1000 < len(letter.detail) < 100_000
    with pytest.raises(TooLarge, match="no room"):
        await queue.bury([DeadLetter("b", b"x" * 1024 * 1024, "bad")])


@BOTH
async def test_a_letter_purged_may_be_buried_again_at_once(queue: SqsQueue) -> None:
    """Deduplication of FIFO queues must not swallow it: its message is deleted on the strength of it."""
    for _ in range(2):
        await queue.bury([DeadLetter("a", b"x", "bad")])
        assert await queue.purge(["a"]) == 1
    assert await queue.dead_letters(10) == []


async def test_expiry_of_what_sqs_dropped_itself_costs_nothing(
    troubled: SqsQueue, clock: Clock, meter: Meter
) -> None:
    await troubled.bury([DeadLetter("a", b"x", "bad")])
    assert await troubled.expire(clock.wall() - 15 * 24 * 3600) == 0
    assert meter.calls["sqs", "ReceiveMessage"] == 0


async def test_letters_are_given_back_though_a_look_fails(troubled: SqsQueue, faults: SqsFaults) -> None:
    await troubled.bury([DeadLetter(f"{i:02d}", b"x", "bad") for i in range(10)])
    await troubled.bury([DeadLetter("10", b"x", "bad")])
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="DeleteMessage*", times=3, share=1.0))
    with pytest.raises(OutcomeUnknown):
        await troubled.purge([f"{i:02d}" for i in range(5)])
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="SendMessage*", times=3, share=1.0))
    with pytest.raises(OutcomeUnknown):
        await troubled.redrive([f"{i:02d}" for i in range(5)])
    assert len(await troubled.dead_letters(20)) == 11


async def test_many_letters_are_sent_again_with_one_look_and_in_order(
    troubled: SqsQueue, faults: SqsFaults, meter: Meter
) -> None:
    names = [f"{number:02d}" for number in range(30)]
    for start in range(0, 30, 10):
        await troubled.bury([DeadLetter(name, name.encode(), "bad") for name in names[start : start + 10]])
    assert await troubled.redrive(names) == 30
    assert meter.calls["sqs", "ReceiveMessage"] <= 3 + 3, "one for each ten, and those in vain"
    assert await troubled.dead_letters(10) == []
    assert sorted(delivery.body.decode() for delivery in await receive(troubled, 30)) == names


async def test_of_letters_that_are_sent_again_only_the_last_ten_may_come_twice(
    troubled: SqsQueue, faults: SqsFaults
) -> None:
    names = [f"{number:02d}" for number in range(30)]
    for start in range(0, 30, 10):
        await troubled.bury([DeadLetter(name, b"x", "bad") for name in names[start : start + 10]])
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, operation="DeleteMessage*", times=3, share=1.0))
    with pytest.raises(OutcomeUnknown):
        await troubled.redrive(names)
    assert len(await receive(troubled, 10)) == 10
    assert (await troubled.depth()).ready == 0
    assert len(await troubled.dead_letters(40)) == 30


async def test_a_look_takes_no_more_than_it_may(queue: SqsQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    await queue.bury([DeadLetter(str(i), b"x", "bad") for i in range(10)])
    await queue.bury([DeadLetter("10", b"x", "bad")])
    monkeypatch.setattr("holdfast.services.aws.dead_letters.SCAN_MAX", 10)
    assert len(await queue.dead_letters(20)) == 10


async def test_a_missing_dead_letter_queue_is_named(sqs: Sqs, queue_name: str, clock: Clock) -> None:
    name = f"{queue_name}-bare"
    await sqs.call("CreateQueue", name, {"QueueName": name}, QueueUrl)
    queue = SqsQueue(sqs, name, clock)
    assert (await queue.depth()).dead == 0
    with pytest.raises(ConfigError, match=f"{name}-dlq.*holdfast queues create"):
        await queue.bury([DeadLetter("a", b"x", "bad")])
    with pytest.raises(ConfigError, match=f"there is no SQS queue .* in {REGION}"):
        await SqsQueue(sqs, f"{name}-none", clock).receive(1, 0, LONG_S, "node")


def test_dead_letter_queues_are_called_after_theirs() -> None:
    assert dead_letter_name("frames") == "frames-dlq"
    assert dead_letter_name("frames.fifo") == "frames-dlq.fifo"


async def test_no_message_shows_before_its_time(queue: SqsQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, object]] = []

    async def send(
        self: Channel, entries: list[dict[str, object]], keys: list[str], dedupe_ids: list[str]
    ) -> list[str]:
        sent.extend(entries)
        return [""] * len(entries)

    monkeypatch.setattr(Channel, "send", send)
    await queue.send([Outgoing(b"x", delay_s=delay_s) for delay_s in (0.0, 0.1, 1.0, 1.5)])
    assert [entry.get("DelaySeconds", 0) for entry in sent] == [0, 1, 1, 2]
