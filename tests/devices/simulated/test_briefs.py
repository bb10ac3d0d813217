"""Ends of commands are reported on a queue, at least once, in the form of outcomes of tasks."""

from typing import Any

import msgspec
import pytest

from holdfast.devices.briefs import Briefs, brief_of
from holdfast.devices.rules.device_queue import CommandState, Patience, StoredCommand
from holdfast.errors import Unavailable
from holdfast.rules.tasks import task
from holdfast.services.memory.queue import MemoryQueue
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.wire import decode_event
from tests.devices.simulated.conftest import Site

ENTRY = StoredCommand(
    id=7, device="d0", lane=0, shard=0, state=CommandState.ACKNOWLEDGED, body=b"{}", tries=2, epoch=5,
    trace_id="t-1", created_at=100.0, published_at=101.5, closed_at=102.25, answer=b'{"code":200}',
)  # fmt: skip


async def telling(site: Site, queue: MemoryQueue) -> Briefs:
    briefs = Briefs(site.host, "office", "doors", site.store, queue, site.dispatcher.shards)
    site.dispatcher.on_closed = briefs.wake
    site.tasks.spawn(briefs.run())
    return briefs


async def outcomes_on(queue: MemoryQueue, count: int) -> list[Outcome]:
    found: list[Outcome] = []
    while len(found) < count:
        deliveries = await queue.receive(10, 600.0, 30.0, "reader")
        assert deliveries, "nothing more came"
        found += [decode_event(delivery.body) for delivery in deliveries]
        await queue.delete([delivery.receipt for delivery in deliveries])
    return found


async def test_the_end_of_every_command_is_reported(site: Site) -> None:
    await site.start(1, briefs="briefs", patience=Patience(retry_s=1.0, retry_max_s=1.0, max_tries=2))
    queue = MemoryQueue(site.clock)
    briefs = await telling(site, queue)
    site.silence("odd")
    done = await site.add("d0", trace_id="t-1")
    failed = await site.add("odd")
    expired = await site.add("odd", expires_in_s=0.5)
    outcomes = {outcome.task_id: outcome for outcome in await outcomes_on(queue, 3)}
    assert {trace: outcome.state for trace, outcome in outcomes.items()} == {
        f"doors-{done}": task.State.SUCCEEDED,
        f"doors-{failed}": task.State.FAILED,
        f"doors-{expired}": task.State.TIMEOUT,
    }
    outcome = outcomes[f"doors-{done}"]
    assert (outcome.app, outcome.task_type, outcome.attempts, outcome.node) == ("office", "doors", 1, "node")
    assert outcome.value["answer"]["messageId"]
    assert (outcome.value["device"], outcome.value["trace_id"]) == ("d0", "t-1")
    assert outcomes[f"doors-{failed}"].detail == "no answer in all tries"
    await site.clock.sleep(60.0)
    assert not queue.messages
    assert briefs.sent == 3
    assert await site.store.pending_briefs("doors", [0], 10) == []


async def test_pending_briefs_are_sent_when_the_queue_is_back(site: Site) -> None:
    await site.start(1, briefs="briefs")
    command = await site.add("d0")
    await site.until(command, CommandState.ACKNOWLEDGED)
    queue = MemoryQueue(site.clock)
    send, failures = queue.send, 3

    async def sometimes(messages: Any) -> list[str]:
        nonlocal failures
        ids = await send(messages)
        if failures:
            failures -= 1
            raise Unavailable("its answer was lost")
        return ids

    queue.send = sometimes  # type: ignore[method-assign]
    await telling(site, queue)
    assert {outcome.task_id for outcome in await outcomes_on(queue, 4)} == {f"doors-{command}"}
    assert site.log.events("warning").count("cannot send briefs") == 3


async def test_without_a_queue_no_briefs_are_stored(site: Site) -> None:
    await site.start(1)
    await site.run("d0")
    assert await site.store.pending_briefs("doors", [0], 10) == []


async def test_an_answer_that_no_brief_has_room_for_is_left_out(site: Site) -> None:
    await site.start(0, briefs="briefs")
    answer = b'{"text":"%s"}' % (b"x" * 1000)
    site.broker.listen("d0", lambda id_, payload: site.broker.answer("d0", id_, answer))
    queue = MemoryQueue(site.clock, max_bytes=800)
    await telling(site, queue)
    await site.add("d0")
    [outcome] = await outcomes_on(queue, 1)
    assert outcome.ok
    assert "answer" not in outcome.value
    assert site.log.events("warning") == ["brief sent without the answer"]


@pytest.mark.parametrize(
    "answer, fields",
    [
        (None, {}),
        (b"", {"answer": ""}),
        (b'{"code":123456789012345678901234567890}', None),
        ("grün".encode(), {"answer": "grün"}),
        (b"[" * 900 + b"]" * 900, {"answer": "[" * 900 + "]" * 900}),
        (b"\xff\x00", {"answer_base64": "/wA="}),
    ],
)
def test_a_brief_has_the_answer_as_json_text_or_base64(
    answer: bytes | None, fields: dict[str, Any] | None
) -> None:
    brief = brief_of("office", "doors", msgspec.structs.replace(ENTRY, answer=answer), "node")
    value = decode_event(brief).value
    known = {"command": 7, "device": "d0", "state": "acknowledged", "trace_id": "t-1", "rollout": None}
    if fields is None:
        assert value["answer"]["code"] == pytest.approx(123456789012345678901234567890)
    else:
        assert value == known | fields


def test_a_superseded_command_has_the_outcome_duplicated() -> None:
    reason = "superseded by a newer command"
    entry = msgspec.structs.replace(ENTRY, state=CommandState.SUPERSEDED, reason=reason)
    outcome = decode_event(brief_of("office", "doors", entry, "node"))
    assert (outcome.state, outcome.detail) == (task.State.DUPLICATED, "superseded by a newer command")
    assert (outcome.started_at, outcome.ended_at, outcome.epoch) == (101.5, 102.25, 5)
