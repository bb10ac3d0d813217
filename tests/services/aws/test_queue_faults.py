"""The queue on SQS while everything goes wrong at once: nothing is lost, nothing is deleted without a call,
the order of groups stands, and no error escapes that the port doesn't know."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.queue import DeadLetter, Delivery, Outgoing
from holdfast.services.aws.client import AwsClient
from holdfast.services.aws.queue import SqsQueue
from holdfast.services.aws.sqs import Sqs
from simulator.proxies import CallFault, Rule, SqsFaults
from tests.services.aws.conftest import REGION, QuickClock

T = TypeVar("T")

MESSAGES = 120
EACH = 5
CONSUMERS = 4
VISIBILITY_S = 1.0

ACTS = ("delete", "extend", "back", "forget")
WEIGHTS = (5, 4, 2, 1)

RULES = [
    Rule(fault=CallFault.RESET, probability=0.05),
    Rule(fault=CallFault.LOSE_REPLY, probability=0.05),
    Rule(fault=CallFault.CUT, probability=0.05),
    Rule(fault=CallFault.ERROR, probability=0.05),
    Rule(fault=CallFault.ERROR_DONE, probability=0.05),
    Rule(fault=CallFault.THROTTLE, probability=0.05),
    Rule(fault=CallFault.THROTTLE, probability=0.05, status=503),
    Rule(fault=CallFault.SLOW, probability=0.05, delay_s=0.05),
    Rule(fault=CallFault.DUPLICATE, probability=0.2, share=0.3),
    Rule(fault=CallFault.REORDER, probability=0.3),
    Rule(fault=CallFault.NOT_IN_FLIGHT, probability=0.1, share=0.3),
    Rule(fault=CallFault.FAIL_ENTRIES, probability=0.1, share=0.3),
    Rule(fault=CallFault.FAIL_ENTRIES, operation="DeleteMessageBatch", probability=0.1, sender_fault=True),
    Rule(fault=CallFault.FAIL_ENTRIES_DONE, probability=0.1, share=0.3),
]


class RefusingClock(QuickClock):
    """Sleeps are over at once; with the first of them all is refused, where it is to be."""

    faults: SqsFaults | None = None

    async def sleep(self, seconds: float) -> None:
        if self.faults is not None:
            self.faults.plan.rules = [Rule(fault=CallFault.THROTTLE)]
        await super().sleep(seconds)


@pytest.fixture
def unhandled() -> Iterator[list[dict[str, Any]]]:
    """Errors that no code caught."""
    seen: list[dict[str, Any]] = []
    yield seen
    gc.collect()
    assert seen == []


@pytest.fixture
async def faults(server: str) -> AsyncIterator[SqsFaults]:
    async with SqsFaults(server, seed=11) as proxy:
        yield proxy


@pytest.fixture
def clock() -> RefusingClock:
    return RefusingClock()


@pytest.fixture
async def queue(
    faults: SqsFaults, queue_name: str, unhandled: list[dict[str, Any]], clock: RefusingClock
) -> AsyncIterator[SqsQueue]:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    client = AwsClient("sqs", clock, region=REGION, endpoint=faults.endpoint)
    made = SqsQueue(Sqs(client), queue_name, clock, poll_max_s=1.0)
    await made.depth()  # the URLs are known
    yield made
    await made.close()
    await client.close()


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """Do it until it is known to be done. Raises what the port doesn't know."""
    while True:
        try:
            return await act()
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(0)


class Consumers:
    """Several that receive, and delete, give back, extend or forget what they get. ``settled`` are the
    bodies of messages that were to be deleted, ``seen`` counts deliveries."""

    def __init__(self, queue: SqsQueue, total: int, seed: int) -> None:
        self.queue = queue
        self.total = total
        self.dice = random.Random(seed)
        self.settled: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.ahead: list[bytes] = []  # came before what is in front of them in their group was settled

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CONSUMERS):
                group.create_task(self._consume(f"node-{number}"))

    async def _consume(self, name: str) -> None:
        while len(self.settled) < self.total:
            try:
                # One of a group: a holder of several must end them from the last one on.
                most = 1 if self.queue.fifo else 10
                deliveries = await self.queue.receive(most, 1.0, VISIBILITY_S, name)
            except (Unavailable, OutcomeUnknown):
                continue
            await self._handle(deliveries)

    async def _handle(self, deliveries: list[Delivery]) -> None:
        self.seen.update(delivery.body for delivery in deliveries)
        self.ahead += [d.body for d in deliveries if self._is_ahead(d.body)]
        acts = defaultdict(list)
        for delivery in deliveries:
            known = delivery.body in self.settled
            act = "delete" if known else self.dice.choices(ACTS, WEIGHTS)[0]
            acts[act].append(delivery)
        stale = set(await insist(lambda: self.queue.extend(_receipts(acts["extend"]), VISIBILITY_S)))
        await insist(lambda: self.queue.give_back(_receipts(acts["back"]), 0))
        done = acts["delete"] + [d for d in acts["extend"] if d.receipt not in stale]
        self.settled |= {delivery.body for delivery in done}
        await insist(lambda: self.queue.delete(_receipts(done)))

    def _is_ahead(self, body: bytes) -> bool:
        key, _, number = body.partition(b":")
        return int(number) > 0 and b"%b:%d" % (key, int(number) - 1) not in self.settled


@pytest.mark.slow
async def test_nothing_is_lost_and_nothing_goes_that_nobody_deleted(
    queue: SqsQueue, faults: SqsFaults
) -> None:
    faults.plan.rules = RULES
    bodies = [b"k%d:%d" % (i % 7, i // 7) for i in range(MESSAGES)]
    kept = [b"kept:%d" % i for i in range(20)]
    for start in range(0, MESSAGES, 10):
        batch = [Outgoing(body) for body in bodies[start : start + 10]]
        await insist(lambda batch=batch: queue.send(batch))  # type: ignore[misc]
    consumers = Consumers(queue, len(bodies), seed=3)
    await asyncio.wait_for(consumers.run(), 100)
    assert set(consumers.seen) == consumers.settled == set(bodies)
    await insist(lambda: queue.send([Outgoing(body) for body in kept[:10]]))
    await insist(lambda: queue.send([Outgoing(body) for body in kept[10:]]))
    for _ in range(20):
        receipts = _receipts(await insist(lambda: queue.receive(10, 0.0, 1.0, "node")))
        await insist(lambda receipts=receipts: queue.extend(receipts, 1.0))  # type: ignore[misc]
        await insist(lambda receipts=receipts: queue.give_back(receipts, 0))  # type: ignore[misc]
    faults.plan.rules = []
    left: set[bytes] = set()
    async with asyncio.timeout(30):
        while not left >= set(kept):
            left |= {delivery.body for delivery in await queue.receive(10, 1.0, 60.0, "node")}
    assert {rule.fault for rule in RULES} <= {line.fault for line in faults.plan.log}


@pytest.mark.slow
@pytest.mark.parametrize("queue_name", ["fifo"], indirect=True)
async def test_groups_keep_their_order_whatever_calls_fail(queue: SqsQueue, faults: SqsFaults) -> None:
    faults.plan.rules = RULES
    keys = [f"k{i}" for i in range(8)]
    for number in range(EACH):
        batch = [Outgoing(b"%b:%d" % (key.encode(), number), key=key) for key in keys]
        await insist(lambda batch=batch: queue.send(batch))  # type: ignore[misc]
    consumers = Consumers(queue, EACH * len(keys), seed=4)
    await asyncio.wait_for(consumers.run(), 100)
    assert len(consumers.seen) == EACH * len(keys)
    assert consumers.ahead == []


@pytest.mark.slow
@pytest.mark.parametrize("queue_name", ["fifo"], indirect=True)
@pytest.mark.parametrize(
    "fault", [CallFault.FAIL_ENTRIES, CallFault.FAIL_ENTRIES_DONE, CallFault.LOSE_REPLY, CallFault.ERROR]
)
async def test_a_batch_of_one_group_keeps_its_order(
    queue: SqsQueue, faults: SqsFaults, fault: CallFault
) -> None:
    faults.plan.add(Rule(fault=fault, operation="SendMessageBatch", times=1, share=0.3))
    await queue.send([Outgoing(b"%d" % i, key="k") for i in range(10)])
    came: list[int] = []
    async with asyncio.timeout(20):
        while len(came) < 10:
            for delivery in await queue.receive(10, 1.0, 60.0, "node"):
                came.append(int(delivery.body))
                await queue.delete([delivery.receipt])
    assert came == list(range(10))


@pytest.mark.slow
async def test_letters_are_listed_and_redriven_whole(queue: SqsQueue, faults: SqsFaults) -> None:
    faults.plan.rules = RULES
    letters = [DeadLetter(f"letter-{i:02d}", b"k:%d" % i, "junk") for i in range(25)]
    for start in range(0, 25, 5):
        batch = letters[start : start + 5]
        await insist(lambda batch=batch: queue.bury(batch))  # type: ignore[misc]
    faults.plan.rules = [Rule(fault=CallFault.DUPLICATE, probability=0.5), Rule(fault=CallFault.REORDER)]
    assert [letter.id for letter in await queue.dead_letters(50)] == [letter.id for letter in letters]
    assert await queue.redrive([letter.id for letter in letters[:10]]) == 10
    faults.plan.rules = []
    consumers = Consumers(queue, 10, seed=5)
    await asyncio.wait_for(consumers.run(), 30)
    assert consumers.settled == {letter.body for letter in letters[:10]}
    assert [letter.id for letter in await queue.dead_letters(50)] == [letter.id for letter in letters[10:]]


@pytest.mark.slow
async def test_what_was_done_in_part_is_of_unknown_outcome(
    queue: SqsQueue, faults: SqsFaults, clock: RefusingClock
) -> None:
    clock.faults = faults
    faults.plan.add(Rule(fault=CallFault.FAIL_ENTRIES, share=0.5))
    with pytest.raises(OutcomeUnknown, match="of 10 were done, then"):
        await queue.send([Outgoing(b"%d" % i) for i in range(10)])


def _receipts(deliveries: list[Delivery]) -> list[str]:
    return [delivery.receipt for delivery in deliveries]
