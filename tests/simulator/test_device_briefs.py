"""Devices in trouble, whose ends of commands are told as briefs: each at least once, and as it was."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.cluster.node import Work
from holdfast.devices.briefs import Briefs
from holdfast.devices.rules.device_queue import CLOSED, StoredCommand
from holdfast.devices.services.memory.outbox import MemoryOutbox
from holdfast.services.memory.queue import MemoryQueue
from holdfast.tasks.wire import decode_event
from simulator import devices, runner
from simulator.devices import OUTBOX, DevicesScenario, DeviceWorld
from simulator.faults import Faulty
from simulator.runner import WorldKind, simulate
from simulator.stage import Dying, SimNode

KIND = "devices with briefs"
SEEDS = range(12)


class BriefWorld(DeviceWorld):
    """The world of devices, and a queue of briefs."""

    def __init__(self, scenario: DevicesScenario, verbose: bool = False) -> None:
        super().__init__(scenario, verbose)
        self.briefs = MemoryQueue(self.clock)
        self.outbox.spec = msgspec.structs.replace(self.outbox.spec, briefs="briefs")

    def make_works(self, node: SimNode) -> tuple[Sequence[Work], Sequence[Dying]]:
        works, dying = super().make_works(node)
        work, host = self.works[node], node.host
        store: Any = Faulty(self.store, "state", node.line)
        queue: Any = Faulty(self.briefs, "queue", node.line)
        work.briefs = Briefs(host, "office", OUTBOX, store, queue, work.dispatcher.shards)
        work.dispatcher.on_closed = work.briefs.wake
        return works, dying

    async def finish(self) -> str:
        unfinished = await super().finish()
        for _ in range(100):
            if not self.store.tables.briefs:
                return unfinished
            await self.clock.sleep(1.0)
        return f"{unfinished}; briefs that were never told: {self.store.tables.briefs}"


def check(world: BriefWorld, unfinished: str) -> list[str]:
    """What doesn't hold, of devices and of their briefs."""
    told: dict[str, set[str]] = defaultdict(set)
    for message in world.briefs.messages.values():
        outcome = decode_event(message.body)
        told[outcome.task_id].add(outcome.value["state"])
    entries = [entry for _, entry in world.store.tables.commands.values()]
    due = {f"{OUTBOX}-{entry.id}": {entry.state.value} for entry in entries if entry.state in CLOSED}
    for number in world.ended:  # an operator retried it after an end that had been told
        before = told[f"{OUTBOX}-{number}"] & {"failed", "expired"}
        due[f"{OUTBOX}-{number}"] = due.get(f"{OUTBOX}-{number}", set()) | before
    wrong = [] if told == due else [f"briefs say {dict(told)}, not {due}"]
    return devices.check(world, unfinished) + wrong


@pytest.fixture(autouse=True)
def with_briefs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.WORLDS, KIND, WorldKind(devices.make, BriefWorld, check))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_of_every_command_is_reported(seed: int) -> None:
    assert simulate(seed, kind=KIND).wrong == []


def test_to_forget_before_it_is_told_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs = MemoryOutbox.pending_briefs

    async def forget_first(self: MemoryOutbox, *asked: Any) -> Sequence[StoredCommand]:
        closed = await briefs(self, *asked)
        await self.confirm_briefs(OUTBOX, closed)
        return closed

    monkeypatch.setattr(MemoryOutbox, "pending_briefs", forget_first)
    assert any(simulate(seed, kind=KIND).wrong for seed in SEEDS)
