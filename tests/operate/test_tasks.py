"""What a task was sent with, where that can be read without taking it from a queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.operate.tasks import sent_body
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.rules.tasks.task import State, Task
from holdfast.services.memory.queue import MemoryQueue
from holdfast.system.clock import SystemClock
from holdfast.tasks.body import Body
from holdfast.tasks.wire import Envelope, SentTask, encode_task, with_attributes

SENT = encode_task(SentTask(Envelope(app="shop", task_id="t1", task_type="mail"), Body(b'{"to": "x"}')))


class Queue:
    """A queue with these dead letters; ``hides``: to read them is to receive them."""

    def __init__(self, *letters: DeadLetter, hides: bool = False) -> None:
        self.letters = [*letters]
        self.hides_dead_letters = hides

    async def dead_letters(self, limit: int, after: str, key: str) -> list[DeadLetter]:
        return [letter for letter in self.letters if letter.key == key][:limit]


def services(queue: Queue) -> Any:
    return cast("Any", SimpleNamespace(queue=lambda name: queue))


def letter(body: bytes) -> DeadLetter:
    return DeadLetter(id="1", body=body, reason="failed", key="t1")


@pytest.mark.parametrize("message", [SENT, with_attributes(SENT, {"id": "t1"})])
async def test_the_body_of_a_delayed_task_is_that_of_its_message(message: bytes) -> None:
    assert await sent_body(services(Queue()), "shop", Task("t1", "mail", message=message)) == b'{"to": "x"}'


async def test_the_body_of_a_failed_task_is_that_of_its_dead_letter() -> None:
    failed = Task("t1", "mail", state=State.FAILED)
    assert await sent_body(services(Queue(letter(SENT))), "shop", failed) == b'{"to": "x"}'
    assert await sent_body(services(Queue(letter(b"\xff odd"))), "shop", failed) == b"\xff odd"
    assert await sent_body(services(Queue()), "shop", failed) is None
    assert await sent_body(services(Queue(letter(SENT), hides=True)), "shop", failed) is None


async def test_of_a_task_that_waits_or_runs_nothing_is_received_to_read_it() -> None:
    for state in (State.QUEUED, State.RUNNING, State.SUCCEEDED):
        assert await sent_body(services(Queue(letter(SENT))), "shop", Task("t1", "mail", state=state)) is None


async def test_the_body_of_a_task_that_waits_or_runs_is_found_in_a_queue_that_can_be_looked_into() -> None:
    queue = MemoryQueue(SystemClock())
    for _ in range(25):
        await queue.send([Outgoing(b"other", key="o")] * queue.max_batch)
    await queue.send([Outgoing(SENT, key="t1")])
    for state in (State.QUEUED, State.RUNNING):
        waits = Task("t1", "mail", state=state)
        assert await sent_body(cast("Any", services(cast("Any", queue))), "shop", waits) == b'{"to": "x"}'
    assert await sent_body(services(cast("Any", queue)), "shop", Task("t2", "mail")) is None
