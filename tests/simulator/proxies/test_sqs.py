"""Each fault in front of a real server."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from simulator.proxies import CallFault, Rule, SqsFaults
from tests.simulator.proxies.conftest import Refused, Sqs

RESET = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


def receipts(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Entries of a batch, for these messages."""
    return [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


@pytest.mark.slow
async def test_without_rules_all_passes_and_is_counted(sqs: Sqs, faults: SqsFaults) -> None:
    await sqs.send("a", "b", "c")
    got = await sqs.receive()
    await sqs("DeleteMessageBatch", Entries=receipts(got))
    assert await sqs.receive() == []
    assert sorted(bodies(got)) == ["a", "b", "c"]
    assert await sqs.counts() == (0, 0)
    assert faults.calls == {
        "CreateQueue": 1,
        "SendMessageBatch": 1,
        "ReceiveMessage": 2,
        "DeleteMessageBatch": 1,
        "GetQueueAttributes": 1,
    }
    assert faults.messages["SendMessageBatch"] == faults.messages["DeleteMessageBatch"] == 3
    assert faults.messages["ReceiveMessage"] == 3
    assert faults.empty_receives == 1
    assert faults.plan.log == []


async def test_errors_of_the_server_pass_through_the_proxy(sqs: Sqs) -> None:
    with pytest.raises(Refused, match=r"DoesNotExist|NonExistentQueue"):
        await sqs("GetQueueUrl", QueueUrl=None, QueueName="none-such")


# --- deliveries


async def test_a_message_comes_twice_and_both_receipts_work(sqs: Sqs, direct: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.DUPLICATE, times=1))
    await sqs.send("a")
    [first] = await sqs.receive()
    [second] = await sqs.receive()
    assert (second["MessageId"], second["Body"]) == (first["MessageId"], "a")
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert [int(m["Attributes"]["ApproximateReceiveCount"]) for m in (first, second)] == [1, 2]
    for receipt in (first["ReceiptHandle"], second["ReceiptHandle"]):
        await sqs("ChangeMessageVisibility", ReceiptHandle=receipt, VisibilityTimeout=30)
    said = await sqs("DeleteMessageBatch", Entries=receipts([second]))
    assert [done["Id"] for done in said["Successful"]] == ["0"]
    assert await direct.counts() == (0, 0)
    assert await sqs.receive() == []


async def test_a_share_of_the_messages_comes_twice(sqs: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.DUPLICATE, times=1, share=1.0))
    await sqs.send("a", "b", "c")
    first = await sqs.receive()
    again = [*await sqs.receive(limit=1), *await sqs.receive()]
    assert sorted(bodies(again)) == sorted(bodies(first))
    assert await sqs.receive() == []


async def test_a_receive_brings_its_messages_in_another_order(
    sqs: Sqs, direct: Sqs, faults: SqsFaults
) -> None:
    sent = [str(i) for i in range(8)]
    await sqs.send(*sent)
    plain = await direct.receive(visibility_s=30)
    await direct(
        "ChangeMessageVisibilityBatch", Entries=[r | {"VisibilityTimeout": 0} for r in receipts(plain)]
    )
    faults.plan.add(Rule(fault=CallFault.REORDER))
    mixed = await sqs.receive()
    assert sorted(bodies(mixed)) == sent
    assert bodies(mixed) != bodies(plain)


async def test_fifo_queues_are_neither_reordered_nor_repeated(
    http: aiohttp.ClientSession, faults: SqsFaults
) -> None:
    sqs = Sqs(http, faults.endpoint)
    await sqs.make_queue(f"faults-{uuid4().hex}.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    faults.plan.add(Rule(fault=CallFault.DUPLICATE), Rule(fault=CallFault.REORDER))
    for i in range(3):
        await sqs("SendMessage", MessageBody=str(i), MessageGroupId=str(i))
    assert bodies(await sqs.receive()) == ["0", "1", "2"]
    assert await sqs.receive() == []
    assert faults.plan.log == []


# --- changes of visibility


async def test_a_change_of_visibility_finds_nothing_in_flight(sqs: Sqs, faults: SqsFaults) -> None:
    await sqs.send("a")
    [got] = await sqs.receive()
    faults.plan.add(Rule(fault=CallFault.NOT_IN_FLIGHT, operation="ChangeMessageVisibility", times=1))
    change = {"ReceiptHandle": got["ReceiptHandle"], "VisibilityTimeout": 0}
    with pytest.raises(Refused, match="MessageNotInflight"):
        await sqs("ChangeMessageVisibility", **change)
    assert await sqs.counts() == (0, 1)
    await sqs("ChangeMessageVisibility", **change)
    assert await sqs.counts() == (1, 0)


async def test_entries_of_a_change_are_not_in_flight(sqs: Sqs, faults: SqsFaults) -> None:
    await sqs.send("a", "b", "c", "d")
    entries = [entry | {"VisibilityTimeout": 0} for entry in receipts(await sqs.receive())]
    faults.plan.add(Rule(fault=CallFault.NOT_IN_FLIGHT))
    said = await sqs("ChangeMessageVisibilityBatch", Entries=entries)
    assert {(entry["Code"], entry["SenderFault"]) for entry in said["Failed"]} == {
        ("MessageNotInflight", True)
    }
    assert sorted(e["Id"] for e in [*said["Successful"], *said["Failed"]]) == ["0", "1", "2", "3"]
    assert await sqs.counts() == (len(said["Successful"]), len(said["Failed"]))


# --- batches


@pytest.mark.parametrize(
    "sender_fault,code", [(True, "ReceiptHandleIsInvalid"), (False, "InternalError"), (False, "Mine")]
)
async def test_entries_fail_and_the_others_are_done(
    sqs: Sqs, faults: SqsFaults, sender_fault: bool, code: str
) -> None:
    await sqs.send(*map(str, range(10)))
    got = await sqs.receive()
    faults.plan.add(
        Rule(
            fault=CallFault.FAIL_ENTRIES,
            operation="DeleteMessageBatch",
            times=1,
            sender_fault=sender_fault,
            code="Mine" if code == "Mine" else "",
        )
    )
    said = await sqs("DeleteMessageBatch", Entries=receipts(got))
    failed = {int(entry["Id"]) for entry in said["Failed"]}
    assert {(entry["Code"], entry["SenderFault"]) for entry in said["Failed"]} == {(code, sender_fault)}
    assert failed | {int(entry["Id"]) for entry in said["Successful"]} == set(range(len(got)))
    assert await sqs.counts() == (10 - len(got), len(failed))
    assert faults.messages["DeleteMessageBatch"] == len(got) - len(failed)


async def test_every_entry_of_a_batch_may_be_failed(sqs: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, share=1.0, times=1, sender_fault=True))
    said = await sqs("SendMessageBatch", Entries=[{"Id": "0", "MessageBody": "a"}])
    assert [entry["Code"] for entry in said["Failed"]] == ["InvalidMessageContents"]
    assert await sqs.counts() == (0, 0)


async def test_entries_are_done_and_said_to_have_failed(sqs: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES_DONE, times=1))
    entries = [{"Id": str(i), "MessageBody": str(i)} for i in range(4)]
    said = await sqs("SendMessageBatch", Entries=entries)
    assert said["Failed"]
    assert len(said["Failed"]) + len(said["Successful"]) == 4
    assert await sqs.counts() == (4, 0)


# --- answers that say no


@pytest.mark.parametrize("status", [400, 503])
async def test_the_next_calls_are_throttled(sqs: Sqs, faults: SqsFaults, status: int) -> None:
    faults.plan.add(Rule(fault=CallFault.THROTTLE, operation="SendMessage*", times=2, status=status))
    for _ in range(2):
        with pytest.raises(Refused, match=f"{status}, 'RequestThrottled'"):
            await sqs.send("a")
    await sqs.send("b")
    assert bodies(await sqs.receive()) == ["b"]


async def test_a_call_with_expired_credentials_is_refused(sqs: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.EXPIRE, times=1, status=403))
    with pytest.raises(Refused, match="403, 'ExpiredTokenException'"):
        await sqs.send("a")


async def test_the_service_fails_before_or_after_the_effect(sqs: Sqs, direct: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.ERROR, times=1), Rule(fault=CallFault.ERROR_DONE, times=1))
    for sent in (0, 1):
        with pytest.raises(Refused, match="500"):
            await sqs.send("a")
        assert await direct.counts() == (sent, 0)


# --- connections


async def test_a_connection_is_reset_before_the_call_is_seen(
    sqs: Sqs, direct: Sqs, faults: SqsFaults
) -> None:
    faults.plan.add(Rule(fault=CallFault.RESET, times=1))
    with pytest.raises(RESET):
        await sqs.send("a")
    assert await direct.counts() == (0, 0)
    await sqs.send("a")
    assert await direct.counts() == (1, 0)


async def test_a_reply_is_lost_after_its_effect(sqs: Sqs, direct: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.LOSE_REPLY, operation="SendMessageBatch", times=1))
    with pytest.raises(RESET):
        await sqs.send("a")
    assert await direct.counts() == (1, 0)


async def test_an_answer_is_cut_in_its_middle(sqs: Sqs, direct: Sqs, faults: SqsFaults) -> None:
    await sqs.send("a")
    faults.plan.add(Rule(fault=CallFault.CUT, times=1))
    with pytest.raises((aiohttp.ClientPayloadError, *RESET)):
        await sqs.receive()
    assert await direct.counts() == (0, 1)


async def test_the_answer_to_a_slow_call_is_late(sqs: Sqs, faults: SqsFaults) -> None:
    faults.plan.add(Rule(fault=CallFault.SLOW, delay_s=0.3))
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    await sqs.receive()
    assert loop.time() - asked_at >= 0.3


async def test_an_outage_refuses_connections_and_ends(sqs: Sqs, direct: Sqs, faults: SqsFaults) -> None:
    polling = asyncio.create_task(sqs.receive(wait_s=5))
    await faults.called("ReceiveMessage")
    faults.refuse()
    with pytest.raises(RESET):
        await polling
    for _ in range(2):
        with pytest.raises(aiohttp.ClientConnectorError):
            await sqs.send("a")
    await faults.accept()
    await sqs.send("a")


async def test_a_server_that_is_away_resets(http: aiohttp.ClientSession) -> None:
    async with SqsFaults("http://127.0.0.1:9") as faults:
        with pytest.raises(RESET):
            await Sqs(http, faults.endpoint).send("a")


# --- chance


@pytest.mark.slow
async def test_a_seed_repeats_what_befalls_the_same_calls(
    http: aiohttp.ClientSession, backend: str, sqs: Sqs
) -> None:
    rules = [
        Rule(fault=CallFault.THROTTLE, operation="Get*", probability=0.3),
        Rule(fault=CallFault.ERROR, probability=0.2),
    ]
    logs = []
    for seed in (1, 1, 2):
        async with SqsFaults(backend, rules, seed=seed) as proxy:
            client = Sqs(http, proxy.endpoint)
            client.queue = sqs.queue
            for _ in range(40):
                try:
                    await client.counts()
                except Refused:
                    continue
            logs.append(proxy.plan.log)
    assert logs[0] == logs[1] != logs[2]
    assert {line.fault for line in logs[0]} == {CallFault.THROTTLE, CallFault.ERROR}
    assert 5 < len(logs[0]) < 35
