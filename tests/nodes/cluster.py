"""Nodes as real processes, by default on one SQLite file, and all that a test may ask of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast.config.settings import Config
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Claim
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.ports.state import Logged
from holdfast.wiring.services import Services
from tests.nodes.acting_app import follow
from tests.nodes.forked import Forked

STREAM = "chain"
HERE = Path(__file__).parent
PATIENCE_S = 120.0
"""How long a test waits for what must come."""

LOOK_S = 0.02
AHEAD = 60
"""Messages of one key that a producer is ahead of the results, at most: nodes are under load for as long as
it goes on, and not drowned."""

BATCH = 10


class Process:
    """The process of a node, a gateway or what else ``module`` is, and the events in its log. ``python`` runs
    it in another environment."""

    def __init__(
        self,
        name: str,
        place: Path,
        command: Sequence[str],
        settings: dict[str, str],
        path: Path = HERE,
        module: str = "holdfast",
        python: Path | None = None,
    ) -> None:
        self.name = name
        self.place = place / f"node-{name}"
        self.place.mkdir(exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        paths = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment |= settings | {"PYTHONPATH": paths, "CHAOS_PLACE": str(self.place)}
        self._log = self.place / "log"
        self._read_to = 0
        self._events: list[dict[str, Any]] = []
        self.child: Forked | subprocess.Popen[bytes]
        if python is None:
            self.child = Forked(module, command, self._log, self.place, environment)
        else:
            with self._log.open("ab") as log:
                self.child = subprocess.Popen(
                    [python, "-m", module, *command], cwd=self.place, env=environment, stderr=log
                )
        self.process = psutil.Process(self.child.pid)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the node has logged; lines that are no JSON as ``{"event": line}``."""
        with self._log.open("rb") as log:
            log.seek(self._read_to)  # tests read it many times a second, and logs are long
            whole, end, _ = log.read().rpartition(b"\n")
        self._read_to += len(whole + end)
        for line in whole.decode().splitlines():
            self._events.append(json.loads(line) if line.startswith("{") else {"event": line})
        return self._events

    def said(self, event: str) -> list[dict[str, Any]]:
        """The logged events of that name."""
        return [entry for entry in self.events if entry["event"] == event]

    async def until_said(self, event: str, times: int = 1) -> dict[str, Any]:
        """Wait until the event was logged so often; returns the last."""
        await until(lambda: len(self.said(event)) >= times or self.child.poll() is not None, event)
        assert len(self.said(event)) >= times, self.events
        return self.said(event)[-1]

    def order(self, order: str) -> None:
        """Have the node stop itself there."""
        (self.place / order).touch()

    async def stopped(self) -> None:
        """Return when the process is stopped."""
        await until(lambda: self.process.status() == psutil.STATUS_STOPPED, f"{self.name} is stopped")

    async def stopped_before_commit(self) -> dict[str, int]:
        """Wait until the node, told to ``stop-before-commit``, is; returns the epochs of the commits that it
        was about to send, by key."""
        await self.stopped()
        epochs = json.loads((self.place / "on-their-way").read_text())
        return {key.removeprefix(f"{STREAM}/"): epoch for key, epoch in epochs.items()}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node alone."""
        self.child.send_signal(number)

    def family(self) -> list[psutil.Process]:
        """Its process and what descends from it, as far as they live."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    async def ended(self) -> int:
        """Wait for the end; returns the exit code."""
        return await asyncio.to_thread(self.child.wait, PATIENCE_S)

    async def metric(self, name: str) -> float:
        """A number of the node's metrics page."""
        page = await asyncio.to_thread(_get, (await self.until_said("metrics page served"))["url"])
        (value,) = [line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")]
        return float(value)


class Cluster:
    """Services, nodes, what was sent, and what came of it."""

    def __init__(self, place: Path, *, module: str = "chaos_app", app: str = "app", **settings: Any) -> None:
        self.place = place
        self.module, self.app = module, app
        values: dict[str, Any] = {
            "url": f"sqlite:///{place}/holdfast.db",
            "objects_url": f"file:{place}/objects",
            "durability": "normal",
            "ttl_s": 20.0,  # long enough for a busy machine; evidence needs no waiting
            "lock_timeout_s": 0.5,
            "visibility_s": 20.0,
            "slots": 1,
            "slot_memory_mb": 400,
        } | settings
        self._environment = _variables(values)
        self.services = Services(Config(**values))
        self.queue: Queue = self.services.queue(STREAM)
        self.state = self.services.state()
        self.coordinator = self.services.coordinator()
        self.nodes: dict[str, Process] = {}
        self.gateways: list[Process] = []
        self.sent: dict[str, int] = defaultdict(int)
        self._sending: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.results: dict[str, list[Logged]] = defaultdict(list)
        self._started: list[Process] = []
        self._family: dict[int, psutil.Process] = {}
        self._more = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    # --- nodes

    async def start(self, *names: str, python: Path | None = None) -> None:
        """Start nodes, and return when all have joined."""
        for name in names:
            self.spawn(name, python)
        for name in names:
            await self.nodes[name].until_said("node runs")
        self._note_family()

    def spawn(self, name: str, python: Path | None = None, **settings: Any) -> Process:
        """Start one node, perhaps in another environment or with other settings, and don't wait for it."""
        command = ("node", f"{self.module}:{self.app}", "--name", name)
        environment = self._environment | _variables(settings)
        node = self.nodes[name] = Process(name, self.place, command, environment, python=python)
        self._started.append(node)
        return node

    async def gateway(self, data_plane: str = "python", **settings: Any) -> str:
        """Start a gateway, perhaps with other settings; returns its address."""
        command = ("gateway", "--port", "0", "--data-plane", data_plane)
        name = f"gateway-{len(self.gateways)}"
        gateway = Process(name, self.place, command, self._environment | _variables(settings))
        self.gateways.append(gateway)
        self._started.append(gateway)
        address: str = (await gateway.until_said("gateway runs"))["address"]
        return address

    def _note_family(self) -> None:
        for node in self._started:
            self._family |= {process.pid: process for process in node.family()}

    async def close(self) -> None:
        """Kill what still runs. No process of a node may outlive it."""
        self._reader.cancel()
        await asyncio.wait((self._reader,))
        self._note_family()
        for node in self._started:
            node.child.kill()
            await node.ended()
        await self.services.close()
        try:
            await until(lambda: not any(map(lives, self._family.values())), "no process outlives its node")
        finally:
            for process in filter(lives, self._family.values()):
                process.kill()

    async def claims(self, name: str) -> list[Claim]:
        """What the living memberships called ``name`` claim."""
        ids = {member.id for member in await self.coordinator.members() if member.name == name}
        return [claim for claim in await self.coordinator.claims() if claim.member in ids]

    async def busiest(self) -> Process:
        """The node that owns the most streams: one that owns none proves nothing."""
        living = [node for node in self.nodes.values() if node.child.poll() is None]
        owned = {node.name: len(await self.claims(node.name)) for node in living}
        assert any(owned.values())
        return max(living, key=lambda node: owned[node.name])

    # --- messages and results

    async def send(self, key: str, do: str = "", count: int = 1) -> int:
        """Send the next messages of a key; returns the first one's seq."""
        async with self._sending[key]:  # one after another: a FIFO queue stores them in order of arrival
            first = self.sent[key]
            self.sent[key] += count
            for start in range(first, first + count, BATCH):
                bodies = [
                    json.dumps({"key": key, "n": n, "do": do}).encode()
                    for n in range(start, min(start + BATCH, first + count))
                ]
                await self._send([Outgoing(body, key=key) for body in bodies])
        return first

    async def _send(self, messages: Sequence[Outgoing]) -> None:
        """Send messages, again if the queue is away, as their seqs allow."""
        while True:
            try:
                await self.queue.send(messages)
            except (Unavailable, OutcomeUnknown):  # the test may have seen to that
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def send_each(self, keys: Iterable[str], count: int = BATCH) -> None:
        """Send the next messages of every key: what a test does now has some to happen to."""
        for key in keys:
            await self.send(key, count=count)

    @contextlib.asynccontextmanager
    async def load(self, keys: Iterable[str], per_key: int) -> AsyncIterator[None]:
        """Send messages of all keys meanwhile, never far ahead of the results; ends when all are sent."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce(keys, per_key))
            yield

    async def _produce(self, keys: Iterable[str], per_key: int) -> None:
        keys = list(keys)
        for _ in range(0, per_key, BATCH):
            await self.send_each(keys)
            await self.until(lambda: all(self.sent[k] - len(self.results[k]) <= AHEAD for k in keys))

    async def _read(self) -> None:
        cursor = 0
        while True:
            try:
                found = await self.state.results(cursor, 1000, wait_s=1.0)
            except (Unavailable, OutcomeUnknown):  # the test may have seen to that
                await asyncio.sleep(LOOK_S)
                continue
            for logged in found:
                cursor = logged.cursor
                self.results[logged.key.partition("/")[2]].append(logged)
            async with self._more:
                self._more.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for results until ``condition`` is true."""
        async with self._more:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._more.wait_for(condition)
            except TimeoutError:
                raise AssertionError(await self._story()) from None

    async def until_count(self, key: str, count: int) -> list[Any]:
        """Wait for so many results of a key; returns their bodies."""
        await self.until(lambda: len(self.results[key]) >= count)
        return self.bodies(key)

    async def until_all(self) -> None:
        """Wait until all that was sent has come to its end, whether as result or as dead letter."""
        try:
            await until(self._is_over, "all over")
        except AssertionError:
            raise AssertionError(await self._story()) from None

    async def _is_over(self) -> bool:
        depth = await self.queue.depth()
        return depth.ready == depth.in_flight == depth.delayed == 0

    def bodies(self, key: str) -> list[Any]:
        """The results of a key as the handler returned them."""
        return [json.loads(logged.result.body) for logged in self.results[key]]

    async def letters(self) -> list[DeadLetter]:
        """All dead letters."""
        return await self.queue.dead_letters(1000)

    async def until_members(self, *names: str) -> None:
        """Wait until the members are the nodes of these names."""

        async def are() -> bool:
            return sorted(member.name for member in await self.coordinator.members()) == sorted(names)

        await until(are, f"the members are {names}")

    async def until_reopened(self, epochs: dict[str, int]) -> None:
        """Wait until every key has results of an opening after the one given for it."""
        await self.until(lambda: all(self.results[key][-1].epoch > epoch for key, epoch in epochs.items()))

    # --- what must be true in the end

    async def check(self, set_aside: Iterable[tuple[str, int]] = (), alive: Iterable[str] = ()) -> None:
        """Nothing lost, each stream in order and once, no zombie's commit, dead letters exactly those of
        ``set_aside``, every stream owned by one of the nodes ``alive`` or by none."""
        aside = set(set_aside)
        await self.until_all()
        letters = await self.letters()
        assert {(letter.key, int(letter.seq)) for letter in letters} == aside, letters
        assert len(letters) == len(aside), letters
        for key, count in self.sent.items():
            expected = [n for n in range(count) if (key, n) not in aside]
            await self.check_results(key, expected)
            checkpoint = await self.state.peek(f"{STREAM}/{key}")
            assert checkpoint is not None
            assert (checkpoint.done, checkpoint.skipped) == (len(expected), count - len(expected))
            assert checkpoint.log is not None
            assert self.queue.fifo or checkpoint.log.seq == count - 1
        await self.check_alive(*alive)

    async def check_results(self, key: str, expected: list[int]) -> None:
        """The results of a stream are of these messages, once and in order, each from the state before it; no
        older opening committed after a newer one."""
        await self.until(lambda: len(self.results[key]) >= len(expected))
        assert [body["n"] for body in self.bodies(key)] == expected
        digest = ""
        for body in self.bodies(key):
            digest = follow(digest, body["n"])
            assert body["digest"] == digest, f"{key} at {body['n']}: from another state"
        epochs = [logged.epoch for logged in self.results[key]]
        assert epochs == sorted(epochs), f"{key}: an older opening committed after a newer one"

    async def check_alive(self, *alive: str) -> None:
        """The members are the nodes of these names, which never crashed; no other node owns a stream."""
        await self.until_members(*alive)
        members = {member.id: member.name for member in await self.coordinator.members()}
        for claim in await self.coordinator.claims():
            assert claim.member in members
        for name in alive:
            assert self.nodes[name].child.poll() is None
            assert not self.nodes[name].said("node crashed")

    async def _story(self) -> str:
        depth, letters = await self.queue.depth(), await self.letters()
        counts = {key: (len(self.results[key]), sent) for key, sent in self.sent.items()}
        logs = "\n".join(f"{node.name}: {entry}" for node in self._started for entry in node.events[-15:])
        return f"(results, sent): {counts}\n{depth}\n{[letter.reason for letter in letters]}\n{logs}"


def _variables(settings: dict[str, Any]) -> dict[str, str]:
    """Settings as environment variables."""
    return {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}


def lives(process: psutil.Process) -> bool:
    """True while the process runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], Any], what: str) -> None:
    """Check again and again until the condition is true, where no port notifies of it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = condition()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(LOOK_S)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text: bytes = answer.read()
    return text.decode()
