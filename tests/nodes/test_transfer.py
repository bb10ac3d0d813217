"""A pilot on SQLite that is stopped in mid-work, brought to other services, and goes on there."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast import Client
from holdfast.config.settings import Config
from holdfast.ports.state import Logged
from holdfast.rules.tasks.task import State
from holdfast.tasks.outcome import Outcome
from holdfast.wiring.services import Services
from simulator.servers import PostgresqlServer, RedisServer
from tests.nodes.cluster import PATIENCE_S, Process, until
from tests.nodes.pilot_app import app, numbered
from tests.serving import served

KEYS = [f"k{n}" for n in range(4)]
COUNT = 120
GAP = 60
"""The message of each key of ``steps`` that comes only after the move."""

FAILS = 7
TTL_S = 2.0


class Hooks:
    """A web server that takes effects only once it is open; its URL is known before."""

    def __init__(self) -> None:
        self.is_open = False
        self.asked = 0
        self.came: Counter[str] = Counter()

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        if not self.is_open:
            raise web.HTTPServiceUnavailable
        self.came[(await request.json())["of"]] += 1
        return web.Response()


@pytest.fixture
async def hooks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hooks]:
    made = Hooks()
    async with served(web.post("/hook", made.take)) as url:
        monkeypatch.setenv("PILOT_HOOK", f"{url}/hook")
        yield made


DIES_AMID = """
import dataclasses, os, signal
from holdfast.__main__ import main
from holdfast.transfer import parts

copy = parts.copy

async def dies_amid_results(part, note):
    async def write(records):
        await part.write(records)
        os.kill(os.getpid(), signal.SIGKILL)

    return await copy(dataclasses.replace(part, write=write) if part.name == "results" else part, note)

parts.copy = dies_amid_results
main()
"""
"""The command, killed for sure before its end: a fast one is over before anybody else can kill it."""


class Pilot:
    """Nodes, one after another, each perhaps on other services; and a program that follows the results."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.cursor = 0
        self.followed: list[Logged] = []
        self._nodes: list[Process] = []

    def settings(self, url: str) -> dict[str, Any]:
        return {
            "url": url,
            "objects_url": f"file:{self.place}/objects",
            "durability": "normal",
            "ttl_s": TTL_S,
            "lock_timeout_s": 0.5,
            "visibility_s": 20.0,
            "slots": 1,
            "task_slots": 1,
            "slot_memory_mb": 400,
        }

    def services(self, url: str) -> Services:
        return Services(Config(**self.settings(url)))

    async def start(self, url: str, of: str = "app", **environment: str) -> Process:
        settings = {f"HOLDFAST_{name.upper()}": str(value) for name, value in self.settings(url).items()}
        name = f"n{len(self._nodes)}"
        command = ("node", f"pilot_app:{of}", "--name", name)
        node = Process(name, self.place, command, settings | environment)
        self._nodes.append(node)
        await node.until_said("node runs")
        return node

    async def kill(self, node: Process) -> None:
        """As in a power failure; the node's membership has lapsed then."""
        node.signal(signal.SIGKILL)
        await node.ended()

    async def send(self, url: str, stream: str, messages: Sequence[dict[str, Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(_send, url, stream, messages))

    async def follow(self, url: str, count: int) -> None:
        """Read results from the last cursor on, until there are so many in all."""
        async with self.services(url) as services, asyncio.timeout(PATIENCE_S):
            while len(self.followed) < count:
                limit = min(50, count - len(self.followed))
                for logged in await services.state().results(self.cursor, limit, wait_s=1.0):
                    assert logged.cursor > self.cursor
                    self.cursor = logged.cursor
                    self.followed.append(logged)

    async def transfer(
        self, source: str, target: str, *more: str, kill: bool = False
    ) -> tuple[int, str, str]:
        """Run the command; with ``kill`` it is killed once it has written some results."""
        program = ("-c", DIES_AMID) if kill else ("-m", "holdfast")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        command = ("transfer", "--from", source, "--to", target, *more)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *program, *command, cwd=self.place, env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def until_empty(self, url: str, *names: str) -> None:
        async with self.services(url) as services:

            async def empty() -> bool:
                depths = [await services.queue(name).depth() for name in names]
                return not any(depth.ready + depth.in_flight + depth.delayed for depth in depths)

            await until(empty, "all is handled")

    async def until_members_gone(self, url: str) -> None:
        async with self.services(url) as services:

            async def gone() -> bool:
                return not await services.coordinator().members()

            await until(gone, "all memberships have lapsed")

    async def close(self) -> None:
        for node in self._nodes:
            node.child.kill()
            await node.ended()


def _send(url: str, stream: str, messages: Sequence[dict[str, Any]]) -> None:
    with Client(numbered if stream == "tickets" else app, url=url) as client:
        client.stream(stream).send_many(messages)


@pytest.fixture
async def pilot(tmp_path: Path, hooks: Hooks) -> AsyncIterator[Pilot]:
    made = Pilot(tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=["postgresql", "redis", "shards"])
def target(request: pytest.FixtureRequest) -> str:
    """URL of other services, which are empty."""
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql_server")
        return server.url
    redis: RedisServer = request.getfixturevalue("redis_server")
    return redis.url + ("?shards=3" if request.param == "shards" else "")


async def work(pilot: Pilot, url: str, hooks: Hooks) -> tuple[str, str]:
    """Give the pilot all kinds of work, and kill its only node amid of it. Returns the traces of a task that
    waits and of one that has ended."""
    for key in KEYS:
        steps = [{"key": key, "n": n} for n in range(COUNT) if n != GAP]
        steps[FAILS]["do"] = "fail"
        steps[3]["do"], steps[4]["do"] = "hook", "timer"
        await pilot.send(url, "steps", steps)
    await pilot.send(url, "strict", [{"key": "s", "n": n} for n in range(6)])

    def tasks() -> tuple[str, str, str]:
        with Client(app, url=url) as client:
            ended = client.send("add", {"n": 1})
            failed = client.send("add", {"n": 1, "do": "fail"}, tries=1)
            waits = client.send("add", {"n": 5}, delay_s=12.0)
            return ended, failed, waits

    ended, _, waits = await asyncio.to_thread(tasks)
    async with pilot.services(url) as services:
        node = await pilot.start(url)
        store, state = services.task_store("pilot"), services.state()

        async def amid() -> bool:
            task, parked = await store.get(ended), await state.peek("strict/s")
            results = await state.results(0, 1000)
            return bool(
                hooks.asked
                and task is not None
                and task.state is State.SUCCEEDED
                and parked is not None
                and parked.parked
                and len(results) > 100
                and await services.queue("steps").dead_letters(1)
            )

        await until(amid, "the pilot is in mid-work")
        await pilot.kill(node)
        assert await services.filled_queues(), "work is left"
    await pilot.until_members_gone(url)
    return waits, ended


async def finish(pilot: Pilot, url: str, hooks: Hooks, waits: str, ended: str) -> None:
    """Let a node on other services finish, and check that nothing is lost, or done twice."""
    hooks.is_open = True
    await pilot.send(url, "steps", [{"key": key, "n": GAP} for key in KEYS])
    node = await pilot.start(url, PILOT_STRICT="mended")
    resumed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "streams", "resume", "strict/s", "--url", url, cwd=pilot.place,
        env={k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")},
    )  # fmt: skip
    assert await resumed.wait() == 0

    def outcomes() -> list[Outcome]:
        with Client(app, url=url) as client:
            return [client.wait(trace, PATIENCE_S) for trace in (waits, ended)]

    late, early = await asyncio.to_thread(outcomes)
    assert (late.value, early.value) == (6, 2)
    each = COUNT - 1  # one fails
    await pilot.follow(url, len(KEYS) * (2 * each + 1) + 6)
    await pilot.until_empty(url, "steps", "echoes", "strict", "pilot-add")
    await pilot.kill(node)
    async with pilot.services(url) as services:
        assert await services.state().results(pilot.cursor, 10) == [], "nothing was done twice"
    names = Counter((logged.key, logged.result.name) for logged in pilot.followed)
    assert set(names.values()) == {1}, "each message has one result"
    expected = [n for n in range(COUNT) if n != FAILS]
    for key in KEYS:
        results = [json.loads(r.result.body) for r in pilot.followed if r.key == f"steps/{key}"]
        assert [each["n"] for each in results if "n" in each] == expected
        assert [each["of"] for each in results if "woken" in each] == [4]
        total = 0
        for message in (each for each in results if "n" in each):
            total += message["n"]
            assert message["total"] == total
        echoed = [json.loads(r.result.body)["of"] for r in pilot.followed if r.key == f"echoes/{key}"]
        assert sorted(echoed) == expected
        assert hooks.came[f"{key}:3"] >= 1
    results = [json.loads(r.result.body)["n"] for r in pilot.followed if r.key == "strict/s"]
    assert results == [*range(6)]
    async with pilot.services(url) as services:
        letters = await services.queue("steps").dead_letters(100)
        assert sorted((letter.key, int(letter.seq)) for letter in letters) == [(key, FAILS) for key in KEYS]
        [failed] = await services.queue("pilot-add").dead_letters(100)
        assert "it must fail" in failed.reason + failed.detail


@pytest.mark.slow
async def test_a_pilot_goes_on_where_it_was(pilot: Pilot, hooks: Hooks, target: str) -> None:
    source = f"sqlite:///{pilot.place}/pilot.db"
    waits, ended = await work(pilot, source, hooks)
    await pilot.follow(source, 60)
    code, out, err = await pilot.transfer(source, target, "--json")
    assert code == 0, err
    parts = {part["part"]: part for part in map(json.loads, out.splitlines())}
    assert all(
        p["source"] == p["target"] and p["source_digest"] == p["target_digest"] for p in parts.values()
    )
    for name in ("checkpoints", "results", "tasks of pilot", "messages of steps", "dead letters of steps"):
        assert parts[name]["source"] > 0, name
    await pilot.follow(target, 80)
    await finish(pilot, target, hooks, waits, ended)


@pytest.mark.nightly
async def test_a_transfer_that_was_killed_is_made_again(pilot: Pilot, hooks: Hooks, target: str) -> None:
    source = f"sqlite:///{pilot.place}/pilot.db"
    waits, ended = await work(pilot, source, hooks)
    await pilot.follow(source, 60)
    code, *_ = await pilot.transfer(source, target, kill=True)
    assert code == -signal.SIGKILL
    code, out, _ = await pilot.transfer(source, target, "--check", "--json")
    assert code == 1, "it was killed before the end"
    assert any(part["difference"] for part in map(json.loads, out.splitlines()))
    for _ in range(2):
        code, out, err = await pilot.transfer(source, target, "--json")
        assert code == 0, out + err
    await finish(pilot, target, hooks, waits, ended)


@pytest.mark.nightly
async def test_what_is_transferred_there_and_back_still_finishes(
    pilot: Pilot, hooks: Hooks, target: str
) -> None:
    source, back = f"sqlite:///{pilot.place}/pilot.db", f"sqlite:///{pilot.place}/back.db"
    waits, ended = await work(pilot, source, hooks)
    assert (await pilot.transfer(source, target))[0] == 0
    code, out, err = await pilot.transfer(target, back, "--app", "pilot")
    assert code == 0, out + err
    await finish(pilot, back, hooks, waits, ended)


@pytest.mark.slow
async def test_a_cluster_that_runs_is_refused(pilot: Pilot, redis_server: RedisServer) -> None:
    source, target = f"sqlite:///{pilot.place}/pilot.db", redis_server.url
    await pilot.send(source, "echoes", [{"key": "k", "of": 0}])
    node = await pilot.start(source)
    code, _, err = await pilot.transfer(source, target)
    assert code == 1
    assert "nodes are running on the services of --from: n0" in err
    await pilot.kill(node)
    await pilot.until_members_gone(source)
    node = await pilot.start(target)
    code, _, err = await pilot.transfer(source, target)
    assert code == 1
    assert "nodes are running on the services of --to: n1" in err
    async with pilot.services(target) as services:
        assert await services.state().checkpoints() == []


@pytest.mark.nightly
async def test_numbers_of_a_queue_are_kept_where_queues_number(
    pilot: Pilot, redis_server: RedisServer, postgresql_server: PostgresqlServer
) -> None:
    """A stream that takes its seqs from the queue would pass over messages with lower numbers."""
    source, target = f"sqlite:///{pilot.place}/pilot.db", redis_server.url
    back = f"sqlite:///{pilot.place}/back.db"
    for at, url in enumerate((source, target, back)):
        node = await pilot.start(url, of="numbered")
        first = 10 * at
        await pilot.send(url, "tickets", [{"key": "k", "n": n} for n in range(first, first + 5)])
        await pilot.until_empty(url, "tickets")
        await pilot.kill(node)
        await pilot.send(url, "tickets", [{"key": "k", "n": n} for n in range(first + 5, first + 10)])
        await pilot.until_members_gone(url)
        code, _, err = await pilot.transfer(url, postgresql_server.url)
        assert code == 1
        assert "stream 'tickets': if it takes its seqs from the queue" in err
        async with pilot.services(postgresql_server.url) as services:
            assert await services.state().checkpoints() == []
        if url != back:
            code, out, err = await pilot.transfer(url, (target, back)[at])
            assert code == 0, out + err
    await pilot.start(back, of="numbered")
    await pilot.follow(back, 30)
    assert [json.loads(logged.result.body)["n"] for logged in pilot.followed] == [*range(30)]
    async with pilot.services(back) as services:
        assert await services.queue("tickets").dead_letters(10) == []
