"""Who sends to a stream that no node runs is warned of it, and the message is sent all the same."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast import AsyncClient
from holdfast.errors import Unavailable
from holdfast.ports.coordinator import Coordinator, Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.streams import declared
from holdfast.streams.declared import LOOK_S, Undeclared
from holdfast.system.clock import SystemClock
from holdfast.wiring import Services
from tests.cluster.fakes import Log

WARNING = "no node runs this stream; what is sent waits until one does"


async def join(coordinator: Coordinator, *streams: str) -> None:
    node = Member("m", "node-a", "http://127.0.0.1:1", Load(0, 1, 0, queues=streams))
    await coordinator.join(node, 60.0)


async def sent(services: Services, stream: str) -> int:
    return (await services.queue(stream).depth()).ready


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


async def test_a_client_warns_once_of_each_stream_that_no_node_runs(url: str) -> None:
    async with AsyncClient("meters", url=url) as client:
        services = await client._services()
        await join(services.coordinator(), "frames", "alerts")
        with capture_logs() as logged:
            await asyncio.gather(*(client.stream("frms").send({"key": "a"}) for _ in range(3)))
            await client.stream("frames").send({"key": "a"})
            await client.stream("frms").send({"key": "b"})
            await client.stream("alrts").send({"key": "b"})
        assert [(line["event"], line["stream"], line["log_level"]) for line in logged] == [
            (WARNING, "frms", "warning"),
            (WARNING, "alrts", "warning"),
        ]
        assert (logged[0]["app"], logged[0]["run"]) == ("meters", ["alerts", "frames"])
        assert [await sent(services, name) for name in ("frms", "frames", "alrts")] == [4, 1, 1]


async def test_a_client_that_knows_no_coordinator_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    async with AsyncClient("meters", queue_url=f"sqlite:///{tmp_path}/queue.db") as client:
        await client.stream("frames").send({"key": "a"})
        assert not (tmp_path / "holdfast.db").exists()


class Ahead(SystemClock):
    """Shows a later time than it is."""

    by_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.by_s


class Away(MemoryCoordinator):
    """Fails or hangs at first."""

    hangs = False
    looks = 0

    async def members(self) -> list[Member]:
        self.looks += 1
        if self.looks == 1:
            if self.hangs:
                await asyncio.Event().wait()
            raise Unavailable("away")
        return await super().members()


@pytest.mark.parametrize("hangs", [False, True])
async def test_while_nobody_can_tell_what_nodes_run_they_are_looked_at_seldom(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "LOOK_TIMEOUT_S", 0.01)
    clock, log = Ahead(), Log()
    coordinator = Away(clock)
    coordinator.hangs = hangs
    undeclared = Undeclared(lambda: coordinator, clock, log)
    for looks in (1, 2):  # the first is without an answer, and the second finds no node
        for stream in ("frms", "frms", "other"):
            await undeclared.look_for(stream)
        assert (coordinator.looks, log.events("warning")) == (looks, [])
        clock.by_s += LOOK_S + 1.0
    await join(coordinator, "frames")
    for stream in ("frms", "frms", "frames"):
        await undeclared.look_for(stream)
    assert coordinator.looks == 4
    assert log.events("warning") == [WARNING]
