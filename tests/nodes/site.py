"""What streams that act have sent: a receiver of webhooks, and a check of all that came."""

import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from aiohttp import web

from holdfast.ports.queue import Depth
from holdfast.rules.tasks.task import State
from holdfast.tasks.names import task_queue
from tests.nodes.acting_app import SITES, WINDOW
from tests.nodes.cluster import STREAM, Cluster, until

REFUSE_EACH = 25
"""The receiver of webhooks doesn't take each such request, and breaks the connection of each that follows on
one, which it has taken."""

NOTE_HAND_OVERS = """
CREATE TABLE handed_over (number INTEGER PRIMARY KEY, queue TEXT, body BLOB);
CREATE TRIGGER note_hand_overs AFTER INSERT ON bodies BEGIN
    INSERT INTO handed_over (queue, body)
    SELECT queues.name, NEW.body FROM messages JOIN queues ON queues.id = messages.queue
    WHERE messages.id = NEW.message;
END;
"""
"""Every message that was ever sent to a queue: after a failure, the queue itself no longer has the order."""


class Receiver:
    """A web server that takes effects, not always at the first try; and what came, in order."""

    def __init__(self) -> None:
        self.came: list[tuple[str, dict[str, Any]]] = []
        self.refused = 0
        self.broken = 0
        self._asked = 0

    async def take(self, request: web.Request) -> web.Response:
        self._asked += 1
        if self._asked % REFUSE_EACH == 0:
            self.refused += 1
            raise web.HTTPServiceUnavailable
        self.came.append((request.headers["webhook-id"], await request.json()))
        if self._asked % REFUSE_EACH == 1 and request.transport is not None:
            self.broken += 1
            request.transport.abort()
        return web.Response()


class Site:
    """The streams of a test, their targets, and what came there."""

    def __init__(self, cluster: Cluster, receiver: Receiver, keys: Iterable[str]) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self.keys = list(keys)
        self.sites = cluster.services.queue("sites")
        self.notes = cluster.services.queue(task_queue("acting", "note"))
        self.tasks = cluster.services.task_store("acting")

    @property
    def arrived(self) -> list[dict[str, Any]]:
        """The results of all sites: each is an effect that was handled."""
        return [body for n in range(SITES) for body in self.cluster.bodies(f"site-{n}")]

    async def note_hand_overs(self) -> None:
        """Have the database tell, in the end, what was sent to queues in which order. On other services the
        nodes tell it."""
        if not self._file.exists():
            await self.cluster.state.peek("chain/none")  # makes the tables
            with closing(self._database()) as database:
                database.executescript(NOTE_HAND_OVERS)

    def handed_over(self) -> Iterator[dict[str, Any]]:
        """What was sent to the sites, in order, with all repeats."""
        if self._file.exists():
            lines = self._file.read_bytes().splitlines()
            effects = [json.loads(line) for line in lines if line.startswith(b"{")]
            yield from (effect for effect in effects if "site" in effect)
            return
        with closing(self._database()) as database:
            sent = database.execute("SELECT body FROM handed_over WHERE queue = 'sites' ORDER BY number")
            yield from (json.loads(body) for (body,) in sent)

    @property
    def _file(self) -> Path:
        return self.cluster.place / "handed-over"

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.cluster.place / "holdfast.db", timeout=30)

    async def until_more(self, count: int) -> None:
        """Wait until sites have handled so many more effects."""
        before = len(self.arrived)
        await self.cluster.until(lambda: len(self.arrived) >= before + count)

    async def check(self) -> None:
        """Every effect is at its target, once and in order, and nothing is left to be done."""
        await self.cluster.until_all()
        await until(self._all_rests, "no effects are pending, no timers stand")
        try:
            await until(self._is_delivered, "targets have handled all")
        except AssertionError as error:
            raise AssertionError(f"{error}: {await self._depths()}") from None
        handed_over = {effect_of(effect) for effect in self.handed_over()}
        # Results are read in the background, so the last ones may not have come here yet.
        await self.cluster.until(lambda: handed_over <= {effect_of(body) for body in self.arrived})
        self._check_sites()
        self._check_webhooks()
        await self._check_tasks()
        for queue in (self.cluster.queue, self.sites, self.notes):
            assert not await queue.dead_letters(1000)
        assert not await self.cluster.state.due(time.time() + 1e6, 1000, 1.0)

    async def _all_rests(self) -> bool:
        for key in self.keys:
            checkpoint = await self.cluster.state.peek(f"{STREAM}/{key}")
            if checkpoint is None or checkpoint.acts:
                return False
        return True

    async def _is_delivered(self) -> bool:
        return all(depth.ready == depth.in_flight == depth.delayed == 0 for depth in await self._depths())

    async def _depths(self) -> list[Depth]:
        """How much waits at the sites, and for tasks."""
        return [await self.sites.depth(), await self.notes.depth()]

    def _check_sites(self) -> None:
        numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        n: dict[str, list[int]] = defaultdict(list)
        waited: dict[str, list[int]] = defaultdict(list)
        seen: set[tuple[str, str, int]] = set()
        for effect in self.handed_over():
            source, site, number = effect_of(effect)
            if effect_of(effect) in seen:
                continue  # at least once: the owner died before it knew that the target had it
            seen.add(effect_of(effect))
            numbers[source, site].append(number)
            n[source] += [effect["n"]] if "n" in effect else []
            waited[source] += effect.get("waited", [])
        for lane, found in numbers.items():
            assert found == list(range(1, len(found) + 1)), f"{lane}: out of order"
        for key in self.keys:
            count = self.cluster.sent[key]
            assert sorted(n[key]) == list(range(count)), f"{key}: lost, or of a failed run"
            assert sorted(waited[key]) == list(range(count)), f"{key}: a timer was lost, or fired twice"
        assert {effect_of(body) for body in self.arrived} == seen
        distances = sorted(self._distances())
        print(f"{len(seen)} effects to streams, handled again after {distances} others")  # noqa: T201
        assert not [d for d in distances if d <= WINDOW], "handled twice within the identity window"

    def _distances(self) -> Iterator[int]:
        """For each effect that was handled again: how many a site had handled from then to then."""
        for n in range(SITES):
            last: dict[tuple[str, str, int], int] = {}
            for place, body in enumerate(self.cluster.bodies(f"site-{n}")):
                if (before := last.get(effect_of(body))) is not None:
                    yield place - before
                last[effect_of(body)] = place

    def _check_webhooks(self) -> None:
        effects = dict(self.receiver.came)  # by their ids, in the order in which each came first
        found: dict[str, list[int]] = defaultdict(list)
        for body in effects.values():
            found[body["source"]].append(body["n"])
        for key in self.keys:
            assert found[key] == list(range(self.cluster.sent[key])), f"{key}: lost, or out of order"
        assert all(effects[effect] == body for effect, body in self.receiver.came), "an id of two effects"
        repeats = len(self.receiver.came) - len(effects)
        print(f"{len(effects)} effects to a webhook, with {repeats} repeats")  # noqa: T201

    async def _check_tasks(self) -> None:
        expected = {(key, n) for key in self.keys for n in range(self.cluster.sent[key])}
        found: list[tuple[str, int]] = []
        attempts: Counter[int] = Counter()
        after = ""
        while page := await self.tasks.list(1000, after):
            after = page[-1].task_id
            assert not [task for task in page if task.state is not State.SUCCEEDED]
            attempts.update(task.attempts for task in page)
            found += [
                (result["source"], result["n"]) for result in (json.loads(task.result) for task in page)
            ]
        print(f"{len(found)} tasks, by their attempts: {dict(attempts)}")  # noqa: T201
        assert len(found) == len(expected), "a task is known twice, or not at all"
        assert set(found) == expected


def effect_of(body: dict[str, Any]) -> tuple[str, str, int]:
    """What no two effects to sites have in common."""
    return body["source"], body["site"], body["number"]
