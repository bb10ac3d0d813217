"""Who sends to a stream that no node runs is warned of it, and the message is sent all the same."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast import AsyncClient, Client
from holdfast.config.settings import Config
from holdfast.errors import Unavailable
from holdfast.ports.coordinator import Coordinator, Load, Member
from holdfast.streams import declared
from holdfast.streams.declared import Undeclared, run_by_nodes
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log

PATIENCE_S = 30.0
WARNING = "no node runs the stream"


async def join(coordinator: Coordinator, *streams: str) -> None:
    node = Member("m", "node-a", "http://127.0.0.1:1", Load(0, 1, 0, queues=streams))
    await coordinator.join(node, 60.0)


async def sent(services: Services, stream: str) -> int:
    return (await services.queue(stream).depth()).ready


async def join_at(url: str, *streams: str) -> None:
    async with Services(Config(url=url)) as services:
        await join(services.coordinator(), *streams)


def looks_under_way() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "holdfast-look"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, a look ends before its client does."""
    monkeypatch.setattr(declared, "CLOSE_S", PATIENCE_S)
    monkeypatch.setattr(declared, "LOOK_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


@pytest.mark.usefixtures("patient")
async def test_a_client_warns_once_of_each_stream_that_no_node_runs(url: str) -> None:
    await join_at(url, "frames", "alerts")
    with capture_logs() as logged:
        async with AsyncClient("meters", url=url) as client:
            await asyncio.gather(*(client.stream("frms").send({"key": "a"}) for _ in range(3)))
            await client.stream("frames").send({"key": "a"})
            await client.stream("frms").send({"key": "b"})
            await client.stream("alrts").send({"key": "b"})
        async with Services(Config(url=url)) as services:
            assert [await sent(services, name) for name in ("frms", "frames", "alrts")] == [4, 1, 1]
    assert [(line["event"], line["stream"], line["log_level"]) for line in logged] == [
        (WARNING, "frms", "warning"),
        (WARNING, "alrts", "warning"),
    ]
    assert (logged[0]["app"], logged[0]["run"]) == ("meters", ["alerts", "frames"])


@pytest.mark.usefixtures("patient")
async def test_a_short_program_is_warned_before_it_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await join_at(url, "frames")
    closing, close = threading.Event(), Undeclared.close

    async def slow(coordinator: Coordinator) -> list[str]:
        await asyncio.to_thread(closing.wait, PATIENCE_S)
        return await run_by_nodes(coordinator)

    async def told(undeclared: Undeclared) -> None:
        closing.set()
        await close(undeclared)

    def program() -> None:
        with Client("meters", url=url) as client:
            client.stream("frms").send({"key": "a"})

    monkeypatch.setattr("holdfast.client.async_client.run_by_nodes", slow)
    monkeypatch.setattr(Undeclared, "close", told)
    with capture_logs() as logged:
        await asyncio.to_thread(program)
    closing.set()
    assert [(line["event"], line["stream"]) for line in logged] == [(WARNING, "frms")]


@pytest.mark.usefixtures("patient")
async def test_a_client_that_was_not_told_where_nodes_are_looks_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    await join_at(f"sqlite:///{tmp_path}/holdfast.db", "others")
    with capture_logs() as logged:
        async with AsyncClient("meters", queue_url=f"sqlite:///{tmp_path}/queue.db") as client:
            await client.stream("frames").send({"key": "a"})
    assert logged == []


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("empty", [False, True])
async def test_a_look_for_nodes_makes_no_database_and_no_tables(tmp_path: Path, empty: bool) -> None:
    place = tmp_path / "nodes"
    if empty:
        place.mkdir()
        (place / "holdfast.db").touch()
    with capture_logs() as logged:
        async with AsyncClient(
            "meters", url=f"sqlite:///{place}/holdfast.db", queue_url=f"sqlite:///{tmp_path}/queue.db"
        ) as client:
            await client.stream("frames").send({"key": "a"})
    assert [*place.rglob("*")] == ([place / "holdfast.db"] if empty else [])
    if empty:
        assert (place / "holdfast.db").stat().st_size == 0
    else:
        assert not place.exists()
    assert logged == []


@pytest.mark.usefixtures("patient")
async def test_a_look_leaves_the_tables_of_an_earlier_version_as_they_are(url: str, tmp_path: Path) -> None:
    await join_at(url, "frames")
    with sqlite3.connect(tmp_path / "holdfast.db") as connection:
        connection.execute("PRAGMA user_version = 1")
    with capture_logs() as logged:
        async with AsyncClient("meters", url=url, queue_url=f"sqlite:///{tmp_path}/queue.db") as client:
            await client.stream("frms").send({"key": "a"})
    with sqlite3.connect(tmp_path / "holdfast.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert logged == []


class Silent:
    """A server that takes connections and says nothing, until it is to close them."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.close = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected.set()
        await self.close.wait()
        writer.close()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, int]]:
    server = Silent()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        yield server, listening.sockets[0].getsockname()[1]
        server.close.set()


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
async def test_a_coordinator_that_does_not_answer_holds_up_neither_a_send_nor_the_end(
    url: str, silent: tuple[Silent, int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "LOOK_TIMEOUT_S", PATIENCE_S)
    server, port = silent
    nodes = (
        f"{scheme}://user@127.0.0.1:{port}/shop" if scheme == "postgresql" else f"redis://127.0.0.1:{port}"
    )
    with capture_logs() as logged:
        client = AsyncClient("meters", url=url, coordinator_url=nodes)
        await client.stream("frms").send({"key": "a"})
        await server.connected.wait()
        await client.stream("frms").send({"key": "b"})
        await client.stream("other").send({"key": "b"})
        (looking,) = looks_under_way()
        await client.close()
        assert looking.is_alive(), "it still waits for its answer, and nobody for it"
        server.close.set()
        await asyncio.to_thread(looking.join)
    assert logged == []


class Told:
    """What nodes run; the first looks fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = [*failures]
        self.looks = 0

    async def look(self) -> list[str]:
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)
        return ["frames"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("failure", [Unavailable("away"), TimeoutError(), OSError("gone"), ValueError("bug")])
async def test_a_look_that_fails_is_not_made_again_and_says_nothing(failure: Exception) -> None:
    log, told = Log(), Told(failure)
    undeclared = Undeclared(told.look, log)
    undeclared.look_for("frms")
    for looking in looks_under_way():
        await asyncio.to_thread(looking.join)
    for stream in ("frms", "other", "frms"):
        undeclared.look_for(stream)
    await undeclared.close()
    assert told.looks == 2
    assert [(level, event) for level, event, _ in log.entries] == [("warning", WARNING)]


async def test_a_look_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "CLOSE_S", PATIENCE_S)
    monkeypatch.setattr(declared, "LOOK_TIMEOUT_S", 0.01)
    ended = threading.Event()

    async def look() -> list[str]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    undeclared = Undeclared(look, Log())
    undeclared.look_for("frms")
    assert await asyncio.to_thread(ended.wait, PATIENCE_S)
    await undeclared.close()


async def test_looks_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "CLOSE_S", PATIENCE_S)
    log, begun, go_on, looks = Log(), threading.Event(), threading.Event(), []

    async def look() -> list[str]:
        looks.append(threading.current_thread())
        begun.set()
        go_on.wait(PATIENCE_S)
        return ["frames"]

    undeclared = Undeclared(look, log)
    undeclared.look_for("first")
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    for stream in ("second", "third", "frames"):
        undeclared.look_for(stream)
    go_on.set()
    await undeclared.close()
    assert len(looks) == 2, "one for all that came meanwhile"
    assert log.events("warning") == [WARNING] * 3
