"""Nodes that run tasks as real processes, a producer, and what must be true in the end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from holdfast.config.settings import Config
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.rules.tasks.task import State
from holdfast.tasks.api import PATH
from holdfast.tasks.names import event_queue, task_queue
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import Outcome
from holdfast.wiring.services import Services
from tests.nodes.cluster import Process, lives, until
from tests.tasks.plain import plain

APP = "hurt"
HERE = Path(__file__).parent
TYPES = ("deed", "tried", "long", "text")


class Fleet:
    """Services, nodes, what was sent, and the outcomes that came back."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.place = place
        values: dict[str, Any] = {
            "url": f"sqlite:///{place}/holdfast.db",
            "durability": "normal",
            "ttl_s": 20.0,  # long enough for a busy machine; evidence needs no waiting
            "lock_timeout_s": 0.5,
            "task_slots": 2,
            "drain_timeout_s": 30.0,
        } | settings
        self._environment = {f"HOLDFAST_{name.upper()}": str(value) for name, value in values.items()}
        self.services = Services(Config(**values))
        self.store = self.services.task_store(APP)
        self.producer = make_producer(self.services, APP)
        self.nodes: dict[str, Process] = {}
        self.sent: list[str] = []
        self.outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._started: list[Process] = []
        self._reader: asyncio.Task[None] | None = None

    def queue(self, task_type: str) -> Queue:
        """The queue of a type."""
        return self.services.queue(task_queue(APP, task_type))

    # --- nodes

    async def start(self, *names: str) -> None:
        """Start nodes, and return when all run. From the first on outcomes are read: it may be the one that
        makes the queues."""
        for name in names:
            self.spawn(name)
        for name in names:
            await self.nodes[name].until_said("node runs")
        self._reader = self._reader or asyncio.create_task(self._read())

    def spawn(self, name: str) -> Process:
        """Start a node, and don't wait for it."""
        command = ("node", "hurt_app:app", "--name", name)
        node = self.nodes[name] = Process(name, self.place, command, self._environment, path=HERE)
        self._started.append(node)
        return node

    async def close(self) -> None:
        """Kill what still runs. No process of a node may outlive it."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        family = [child for node in self._started for child in node.family()]
        for node in self._started:
            node.child.kill()
            await node.ended()
        await self.services.close()
        await until(lambda: not any(map(lives, family)), "no process outlives its node")

    # --- tasks and outcomes

    async def send(self, task_type: str, *bodies: Any, **options: Any) -> list[str]:
        """Send tasks; returns their traces."""
        orders = [Order(task_type=task_type, body=body, **options) for body in bodies]
        task_ids = await self.producer.send(orders)
        self.sent += task_ids
        return task_ids

    async def send_followed(self, count: int) -> list[str]:
        """Send so many tasks with one that follows each, and as many in a batch with one that follows all;
        returns the traces of what follows."""
        last = [f"after-{number}" for number in range(count)]
        for task_id in last:
            then = Order(task_type="text", body=task_id, task_id=task_id, tries=5)
            await self.send("deed", {"do": "this"}, then=then, tries=5)
        orders = [Order(task_type="deed", body={"do": "that"}, tries=5) for _ in range(count)]
        then = Order(task_type="text", body="all", task_id="after-all", tries=5)
        await self.producer.send_batch(orders, then=then, task_id="together")
        self.sent += [*last, "after-all", *(f"together-{place}" for place in range(count))]
        return [*last, "after-all"]

    async def give(self, name: str, task_type: str, body: Any) -> str:
        """Have a node run a task; returns its trace."""
        address = (await self.nodes[name].until_said("joined"))["address"]
        asked = {"task_type": task_type, "body": body}
        async with ClientSession() as session, session.post(f"{address}{PATH}", json=asked) as response:
            assert response.status == 202
            task_id: str = (await response.json())["trace_id"]
        self.sent.append(task_id)
        return task_id

    async def send_raw(self, task_type: str, *bodies: bytes) -> None:
        """Put messages into a queue as a foreign program does."""
        await self.queue(task_type).send([Outgoing(body) for body in bodies])

    async def until_ended(self, task_ids: Sequence[str]) -> list[Outcome]:
        """Wait for the outcomes of tasks."""
        await until(lambda: all(self.outcomes[task_id] for task_id in task_ids), f"the ends of {task_ids}")
        return [self.outcomes[task_id][0] for task_id in task_ids]

    async def until_running(self, task_id: str) -> None:
        """Wait until an attempt of a task runs."""

        async def runs() -> bool:
            task = await self.producer.status(task_id)
            return task is not None and task.state is State.RUNNING

        await until(runs, f"{task_id} runs")

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(Unavailable, OutcomeUnknown):  # the test may have seen to that
                async for brief in self.producer.briefs():
                    self.outcomes[brief.outcome.task_id].append(brief.outcome)
                    brief.ack()
            await asyncio.sleep(0.05)

    async def letters(self, task_type: str) -> list[DeadLetter]:
        """The dead letters of a type."""
        return await self.queue(task_type).dead_letters(1000)

    # --- what must be true in the end

    async def check(self) -> None:
        """Each task has one outcome, however often told, and its status says the same; what did not succeed
        and was not cancelled lies with the dead letters, and nothing else does; no queue holds anything."""
        await self.until_ended(self.sent)
        await until(self._is_over, "all queues are empty")
        letters = await asyncio.gather(*map(self.letters, TYPES))
        dead = {letter.key for letter in itertools.chain(*letters)}
        for task_id in self.sent:
            final = {
                (o.state, o.epoch, o.detail)
                for o in self.outcomes[task_id]
                if o.state is not State.DUPLICATED
            }
            assert len(final) == 1, f"{task_id}: {final}"
            task = await self.producer.status(task_id)
            assert task is not None
            assert (task.state, task.epoch, task.briefed) == (*next(iter(final))[:2], True)
            failed = task.state is not State.SUCCEEDED and not task.detail.startswith("cancelled")
            assert (task_id in dead) == failed, task
        for node in self.nodes.values():
            assert not node.said("node crashed")

    async def _is_over(self) -> bool:
        names = [*(task_queue(APP, name) for name in TYPES), event_queue(APP)]
        depths = await asyncio.gather(*(self.services.queue(name).depth() for name in names))
        return all(depth.ready == depth.in_flight == depth.delayed == 0 for depth in depths)


async def poison(fleet: Fleet) -> None:
    """Send what nobody can read, or run: each is set aside with its reason, and its producer hears of it
    where the envelope could be read."""
    other = plain().TaskMessage()
    other.Envelop.App, other.Envelop.TraceID, other.Envelop.TaskType = "hurt", "unknown", "no.such.type"
    wrong = plain().TaskMessage()
    wrong.Envelop.App, wrong.Envelop.TraceID, wrong.Envelop.TaskType = "hurt", "wrong", "deed"
    wrong.Body.Pack(plain().Order(customer="acme"))
    (good,) = await fleet.send("deed", {})
    await fleet.send_raw(
        "deed",
        b"!!! no base64",
        base64.b64encode(b"no protobuf"),
        b"{ no json",
        b" ",
        base64.b64encode(other.SerializeToString()),
        base64.b64encode(wrong.SerializeToString()),
    )
    await fleet.until_ended([good, "unknown", "wrong"])
    assert {fleet.outcomes[task_id][0].state for task_id in ("unknown", "wrong")} == {State.FAILED}

    async def all_aside() -> bool:
        return len(await fleet.letters("deed")) == 6

    await until(all_aside, "six dead letters")
    reasons = " | ".join(letter.reason for letter in await fleet.letters("deed"))
    for said in ("neither a TaskMessage", "begins as JSON", "empty", "no.such.type", "plain.Order"):
        assert said in reasons
    await fleet.check()
