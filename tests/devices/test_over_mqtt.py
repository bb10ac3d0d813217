"""A dispatcher, a real broker, and devices that lose, repeat and garble, while connections and broker die."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import text

from holdfast import App
from holdfast.cluster.lifecycle import Tasks
from holdfast.devices.dispatcher import Dispatcher
from holdfast.devices.fleet import Behaviour, Fleet
from holdfast.devices.rules.device_queue import CommandState, Patience, StoredCommand
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.services.mqtt.address import parse
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.system.clock import SystemClock
from simulator.proxies.tcp import TcpFaults
from simulator.servers import MosquittoServer
from simulator.servers.server import until
from tests.cluster.fakes import make_host

DEVICES = [f"door-{number}" for number in range(20)]
EACH = 10
LIMIT_S = 120.0
ODD = Behaviour(
    latency_s=0.005, spread=0.5, loss=0.03, answer_loss=0.03, duplicate=0.1, garbage=0.03, foreign=0.03,
    late=0.03, late_s=1.0, crash=0.01, crash_s=0.5, heartbeat_s=0.5,
)  # fmt: skip


class Played:
    """A dispatcher in this process, and what its devices and its business saw."""

    def __init__(self, folder: Path, broker: str, shards: int, version: str) -> None:
        self.outbox = App("office").outbox(
            "faces",
            shards=shards,
            patience=Patience(retry_s=0.4, retry_max_s=0.8, max_tries=1000, probe_s=0.5),
            presence=PresenceRules(offline_after_s=2.0),
        )
        self.clock = SystemClock()
        self.store = SqlOutbox(f"sqlite:///{folder / 'outbox.db'}", self.clock)
        self.done: dict[str, list[bytes]] = {device: [] for device in DEVICES}
        self.crashes: list[BaseException] = []
        self._address = parse(
            f"{broker}?version={version}&keepalive_s=1&hears={'own' if shards > 1 else 'all'}"
        )
        self._tasks = Tasks(self.crashes.append)
        self.dispatcher = Dispatcher(
            self.outbox,
            self.store,
            lambda identity, still_ours: MqttDevices(
                self._address, identity, self.clock, still_ours=still_ours
            ),
            make_host(self.clock, self._tasks, log=structlog.get_logger()),
            on_lost=lambda number: self.crashes.append(AssertionError(f"lost shard {number}")),
        )
        self.outbox.on_result(self._result)

    def work(self, device: str, command: str, payload: bytes) -> bytes:
        """What a device does: it notes each thing that it did."""
        self.done[device].append(payload.partition(b'"step":')[2].rstrip(b"}"))
        return b'{"messageId":"%s"}' % command.encode()

    async def begin(self) -> None:
        await self.store.prepare("faces", self.outbox.spec.shards)
        for step in range(EACH):
            await self.store.add(
                self.outbox.new({"device": device, "command": {"step": step}} for device in DEVICES)
            )
        for number, epoch in (await self.store.epochs("faces")).items():
            await self.dispatcher.served.own(number, await self.store.open("faces", number, epoch, "me"))
        self._tasks.spawn(self.dispatcher.run())

    async def end(self) -> None:
        for number in list(self.dispatcher.shards):
            await self.dispatcher.served.disown(number)
        await self._tasks.close()
        await self.store.close()

    async def commands(self) -> Sequence[StoredCommand]:
        found: list[StoredCommand] = []
        while page := await self.store.commands("faces", after=found[-1].id if found else 0, limit=1000):
            found += page
        return found

    async def closed(self, share: float) -> None:
        """Wait until so much of all is closed."""

        async def enough() -> bool:
            return self.dispatcher.counts.closed >= share * EACH * len(DEVICES)

        await until(enough, f"{share:.0%} of the commands are closed", LIMIT_S)

    def _result(self, db: Any, command: StoredCommand) -> None:
        db.execute(text("CREATE TABLE IF NOT EXISTS reported (command INTEGER)"))
        db.execute(text("INSERT INTO reported VALUES (:command)"), {"command": command.id})

    async def reported(self) -> Counter[int]:
        """How often each command was reported to the business."""
        with self.store.engine.connect() as connection:
            return Counter(connection.execute(text("SELECT command FROM reported")).scalars())


@pytest.mark.slow
@pytest.mark.parametrize("version, shards", [("5", 4), ("3.1.1", 1)])
async def test_every_command_is_done_in_order_whatever_breaks(
    tmp_path: Path, version: str, shards: int
) -> None:
    async with MosquittoServer() as broker, TcpFaults(broker.port) as faults:
        played = Played(tmp_path, f"mqtt://127.0.0.1:{faults.port}", shards, version)
        fleet = Fleet(
            parse(f"{broker.url}?version={version}"),
            DEVICES,
            played.clock,
            behaviour=ODD,
            seed="1",
            work=played.work,
        )
        async with fleet:
            await played.begin()
            await played.closed(0.2)
            faults.cut()
            await played.closed(0.4)
            faults.freeze()
            await until(lambda: disconnected(played), "the frozen connections are given up", LIMIT_S)
            faults.thaw()
            await played.closed(0.6)
            await broker.restart()
            await played.closed(1.0)
        commands, reported = await played.commands(), await played.reported()
        await played.end()
    assert played.crashes == []
    assert {command.state for command in commands} == {CommandState.ACKNOWLEDGED}
    assert reported == {command.id: 1 for command in commands}
    for device, steps in played.done.items():
        assert [int(step) for step in dict.fromkeys(steps)] == list(range(EACH)), device
        assert steps == sorted(steps, key=int), f"{device}: nothing old after something new"


async def disconnected(played: Played) -> bool:
    return not any(shard.connected for shard in played.dispatcher.shards.values())
