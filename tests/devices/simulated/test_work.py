"""An outbox as a node's work: what it keeps, and what it remembers of devices."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cluster.host import Host
from holdfast.devices import work as module
from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.services.memory.device import MemoryDevices
from holdfast.devices.work import DeviceWork
from holdfast.ports.coordinator import Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from simulator.loop import SimClock
from tests.cluster.fakes import make_host
from tests.devices.simulated.conftest import Site

KEEP_S = 100.0


def host_of(site: Site) -> Host:
    return make_host(site.clock, site.tasks, log=site.log, name="node")


def worked(site: Site, host: Host | None = None) -> DeviceWork:
    host = host or host_of(site)
    return DeviceWork(
        host, site.outbox, site.store, lambda identity, still_ours: MemoryDevices(site.broker, identity)
    )


@pytest.mark.parametrize("archive", [False, True])
async def test_old_commands_are_deleted_a_few_at_a_time(
    site: Site, archive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXPIRE_BATCH", 2)
    await site.start(1, keep_s=KEEP_S, archive=archive)
    work = worked(site)
    old = [await site.add("d0") for _ in range(5)]
    await site.until(old[-1], CommandState.ACKNOWLEDGED)
    await work.maintain()
    assert len(await site.store.commands("doors")) == 5
    await site.clock.sleep(KEEP_S)
    fresh = await site.add("d0")
    await site.until(fresh, CommandState.ACKNOWLEDGED)
    calls: list[bool] = []
    delete_closed = site.store.delete_closed

    async def counted(*arguments: Any, **options: Any) -> int:
        calls.append(options["archive"])
        return await delete_closed(*arguments, **options)

    site.store.delete_closed = counted  # type: ignore[method-assign]
    await work.maintain()
    assert calls == [archive] * 4, "two, two, one, and none"
    assert [entry.id for entry in await site.store.commands("doors")] == [fresh]
    assert [*site.store.tables.archive] == (old if archive else [])


async def test_a_new_owner_watches_the_devices_of_its_shard(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[str] = []
    monkeypatch.setattr(MemoryDevices, "watch", lambda _, devices: watched.extend(devices))
    await site.start(2)
    assert watched == []
    for device in ("d0", "d1"):
        await site.run(device)
    await site.dispatcher.served.disown(0)
    await site.own()
    assert sorted(watched) == ["d0", "d1"]


async def test_a_node_whose_clock_is_ahead_drops_nothing_that_closed_lately(site: Site) -> None:
    await site.start(1, keep_s=KEEP_S)
    host = host_of(site)
    work = worked(site, host)
    await site.run("d0")
    clock = SimClock(Random(1), "ahead")
    clock.set_by_s = 2 * KEEP_S
    host.clock = clock
    await work.maintain()
    assert len(await site.store.commands("doors")) == 1


async def test_a_node_whose_broker_takes_no_connection_says_so_with_its_load(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start(shards=1)
    await site.dispatcher.served.disown(0)
    work, never = worked(site), asyncio.Event()

    async def refuse(devices: MemoryDevices) -> None:
        await never.wait()

    epoch = (await site.store.epochs("doors"))[0]
    await work.dispatcher.served.own(0, await site.store.open("doors", 0, epoch, "node"))
    await site.clock.sleep(1.0)
    assert work.load().troubles == ()
    monkeypatch.setattr(site.broker, "connect", refuse)
    site.broker.cut(site.outbox.spec.identity(0))
    await site.clock.sleep(1.0)
    (trouble,) = work.load().troubles
    assert trouble.startswith("1 of the 1 shards of the outbox 'doors' here have no connection")
    await work.dispatcher.served.disown(0)
    assert work.load().troubles == ()


async def test_a_shard_that_the_store_cant_read_keeps_a_node_from_no_other(site: Site) -> None:
    await site.start(shards=4)
    for shard in range(4):
        await site.dispatcher.served.disown(shard)
    del site.store.tables.shards["doors", 1]
    coordinator, me = MemoryCoordinator(site.clock), Member("me", "me", "sim://me", load=Load())
    await coordinator.join(me, 3600.0)
    host = host_of(site)
    work = worked(site, host)
    host.coordinator = coordinator
    host.draining = False
    host.membership = SimpleNamespace(id="me", alive=True, view={"me": me})  # type: ignore[assignment]
    site.tasks.spawn(work.shards.run())
    await site.clock.sleep(5.0)
    assert sorted(work.dispatcher.shards) == [0, 2, 3]
    assert site.log.events("warning") == []
    assert [claim.key for claim in await coordinator.claims("me")] == [
        site.outbox.spec.key(number) for number in (0, 2, 3)
    ]
