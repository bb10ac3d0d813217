"""``holdfast node`` as a real process."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from holdfast.common.protocol_versions import OUR_VERSIONS, ProtocolVersions
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.queue import Outgoing
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.wiring.services import Services
from simulator.servers import RedisServer
from simulator.servers.loopback import free_port
from tests.nodes.forked import Forked

APP = """
from holdfast import (App, StreamHandler)

app = App("counting")

@app.stream("count", seq="n", first_seq=0)
class Count(StreamHandler[dict]):
    def open(self, context, state):
        self.count = int(state or b"0")

    def process(self, message, context):
        self.count += 1
        return {"count": self.count}

    def snapshot(self):
        return str(self.count).encode()
"""


PATIENCE_S = 60.0


class Process:
    """A process of a node, or of another ``program``, and the events of its log. It is forked from one that
    has imported Holdfast, or started ``as_users_do``."""

    def __init__(self, *arguments: str, as_users_do: bool = False, program: str = "node") -> None:
        heard, said = Pipe(duplex=False)
        command = [program, *arguments]
        self.child: Forked | subprocess.Popen[bytes]
        with said:
            if as_users_do:
                self.child = subprocess.Popen(
                    [sys.executable, "-m", "holdfast", *command], stderr=said.fileno()
                )
            else:
                self.child = Forked("holdfast", command, said, Path.cwd(), dict(os.environ))
        self._heard = heard
        self.events: list[dict[str, Any]] = []
        self.more = threading.Condition()
        self.ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with self._heard, open(self._heard.fileno(), closefd=False) as lines:
            for line in lines:
                with self.more:
                    self.events.append(json.loads(line) if line.startswith("{") else {"event": line.strip()})
                    self.more.notify_all()
        with self.more:
            self.ended = True
            self.more.notify_all()

    def wait_for(self, event: str, number: int = 0) -> dict[str, Any]:
        """The event of that name that has so many before it."""

        def found() -> list[dict[str, Any]]:
            return [entry for entry in self.events if entry["event"] == event][number:]

        with self.more:
            assert self.more.wait_for(lambda: found() or self.ended, PATIENCE_S), self.events
        assert found(), self.events
        return found()[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; returns the exit code."""
        self.child.send_signal(number)
        return self.join()

    def join(self) -> int:
        """Wait for the end."""
        code = self.child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., Process]]:
    """Start a node of the app ``counting``."""
    (place / "counting.py").write_text(APP)
    started: list[Process] = []

    def run(*arguments: str, as_users_do: bool = False) -> Process:
        started.append(Process(*arguments, as_users_do=as_users_do))
        return started[-1]

    yield run
    for process in started:
        process.child.kill()
        process.join()


async def send(services: Services) -> None:
    await services.queue("count").send([Outgoing(b'{"key":"cam-1","n":%d}' % n) for n in range(50)])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text: bytes = answer.read()
    return text.decode()


def results(holdfast: Any) -> list[int]:
    return [line["result"]["count"] for line in holdfast("results", "--follow", "--limit", "50").lines]


@pytest.mark.slow
def test_a_node_runs_drains_and_ends(holdfast: Any, arrange: Any, start: Callable[..., Process]) -> None:
    node = start("counting:app", "--name", "a", "--slots", "1", as_users_do=True)
    joined = node.wait_for("joined")
    assert joined["node"] == "a"
    arrange(send)
    assert results(holdfast) == list(range(1, 51))
    assert get(f"{joined['address']}/readyz") == "ready\n"
    numbers = get(node.wait_for("metrics page served")["url"])
    assert "holdfast_handled_total 50.0" in numbers
    assert "holdfast_streams 1.0" in numbers
    assert "holdfast_member 1.0" in numbers
    assert holdfast("doctor", "counting:app").code == 0
    (paused,) = holdfast("streams", "pause", "count/cam-1", "--json").lines
    assert paused["told"] == "a"
    assert node.end() == 0
    node.wait_for("node ended")
    (status,) = holdfast("status", "--json").lines
    assert status["nodes"] == []
    idle = {"stream": "count", "ready": 0, "in_flight": 0, "delayed": 0, "dead": 0, "lag_s": 0, "error": ""}
    assert status["queues"] == [idle]


@pytest.mark.nightly
def test_a_node_that_could_not_call_a_living_one_says_so_and_waits_for_its_end(
    arrange: Any, start: Callable[..., Process]
) -> None:
    load = Load(version="0.9.0", speaks=ProtocolVersions(OUR_VERSIONS.newest + 1, OUR_VERSIONS.newest + 2))
    other = Member("id", "later", "http://127.0.0.1:1", load)
    arrange(lambda services: services.coordinator().join(other, 600.0))
    port = free_port()
    node = start("counting:app", "--port", str(port))
    assert "node later lives: it speaks peer protocol 2-3" in node.wait_for("cannot join")["error"]
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        get(f"http://127.0.0.1:{port}/readyz")
    assert "node later lives: it speaks peer protocol 2-3" in refused.value.read().decode()
    arrange(lambda services: services.coordinator().leave("id"))
    node.wait_for("joined")
    assert get(f"http://127.0.0.1:{port}/readyz") == "ready\n"
    assert node.end() == 0


@pytest.mark.nightly
def test_two_nodes_of_a_host_have_names_of_their_own(holdfast: Any, start: Callable[..., Process]) -> None:
    nodes = [start("counting:app", "--slots", "1") for _ in range(2)]
    told = [node.wait_for("joined")["node"] for node in nodes]
    (status,) = holdfast("status", "--json").lines
    assert sorted(member["name"] for member in status["nodes"]) == sorted(told)
    assert len(set(told)) == 2
    assert all(name.startswith(f"{socket.gethostname()}-") for name in told)


@pytest.mark.slow
def test_what_a_killed_node_committed_is_where_the_next_goes_on(
    holdfast: Any, arrange: Any, start: Callable[..., Process]
) -> None:
    arrange(send)
    first = start("counting:app", "--name", "a", "--slots", "1")
    assert results(holdfast) == list(range(1, 51))
    assert first.end(signal.SIGKILL) == -signal.SIGKILL

    async def more(services: Services) -> Checkpoint | None:
        await services.queue("count").send([Outgoing(b'{"key":"cam-1","n":50}')])
        return await services.state().peek("count/cam-1")

    before = arrange(more)
    start("counting:app", "--name", "b", "--slots", "1")
    (line,) = holdfast("results", "--follow", "--after", "50", "--limit", "1").lines
    assert line["result"] == {"count": 51}
    assert line["epoch"] > before.epoch


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["counting:nothing"], "did you mean 'counting:app'?"),
        (["nowhere_at_all:app"], "there is no module 'nowhere_at_all'"),
        (["counting:app", "--host", "0.0.0.0"], "needs peer_secret"),
        (["counting:app", "--slots", "0"], "slots is 0"),
        (["counting:app", "--set", "visibility_s=50"], "gap_timeout_s"),
    ],
)
def test_a_node_that_cannot_start_says_why(
    start: Callable[..., Process], arguments: list[str], said: str
) -> None:
    node = start(*arguments)
    assert node.join() == 2
    text = "\n".join(entry["event"] for entry in node.events)
    assert said in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_port_in_use_is_named(start: Callable[..., Process]) -> None:
    first = start("counting:app", "--name", "a", "--slots", "1")
    port = first.wait_for("joined")["address"].rpartition(":")[2]
    second = start("counting:app", "--name", "b", "--slots", "1", "--port", port)
    assert second.join() == 2
    assert any(f"127.0.0.1:{port} is in use" in entry["event"] for entry in second.events)


@pytest.mark.nightly
def test_a_node_that_can_not_join_ends_when_told(start: Callable[..., Process]) -> None:
    node = start("counting:app", "--slots", "1", "--set", "coordinator_url=redis://127.0.0.1:1")
    node.wait_for("cannot join")
    assert node.end() == 0
    node.wait_for("node ended before joining")


@pytest.mark.slow
async def test_a_state_store_that_lets_nobody_in_ends_the_node(start: Callable[..., Process]) -> None:
    async with RedisServer(settings={"requirepass": "geheim"}) as server:
        node = start("counting:app", "--slots", "1", "-s", f"state_url=redis://:hunter2@{server.address}")
        assert await asyncio.to_thread(node.join) == 2
    (said,) = [entry["event"] for entry in node.events]
    assert "state_url is 'redis://:***@" in said
    assert "user or password is wrong" in said
    assert "hunter2" not in said


@pytest.mark.nightly
async def test_a_state_store_that_may_forget_is_told_of_at_the_start(start: Callable[..., Process]) -> None:
    """It keeps nothing on disk, and has no replica; the same as `holdfast doctor` says."""
    async with RedisServer(settings={"appendonly": "no", "save": ""}) as server:
        node = start("counting:app", "--slots", "1", "-s", f"state_url={server.url}")
        await asyncio.to_thread(node.wait_for, "node runs")
        assert await asyncio.to_thread(node.end) == 0
    told = [entry for entry in node.events if entry["event"] == "state store may lose commits"]
    assert [entry["level"] for entry in told] == ["warning"] * len(told)
    assert any("nothing is kept on disk" in entry["risk"] for entry in told)
    assert any("no replica" in entry["risk"] for entry in told)
    assert all(entry["fix"] for entry in told)


@pytest.mark.nightly
def test_a_state_store_that_is_not_there_yet_is_waited_for_and_said(start: Callable[..., Process]) -> None:
    node = start("counting:app", "--slots", "1", "-s", "state_url=redis://127.0.0.1:1")
    node.wait_for("state store unavailable")
    node.wait_for("node runs")
    assert node.end() == 0
