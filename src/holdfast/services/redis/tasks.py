"""The task store in Redis. A script implements the rules of tasks, each request in one step.

A task is a hash, and lies in the shard of its trace. All requests of a call that go to one shard are one
script; a call is one round trip to all its shards. Only ``due`` takes a second where it finds something.

A new epoch isn't the next number, but one that was never issued: Redis may lose the last attempts in a
restart or fail-over, and these must stay fenced.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.common.record import reading
from holdfast.errors import Fenced, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import (
    EFFECTS_KEEP_S,
    LOSABLE,
    Answer,
    AttemptBeat,
    BriefSent,
    CancelTask,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    MessageSent,
    QueueTask,
    ResendEffects,
    ResetTask,
    RestoreTask,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
    TaskChange,
)
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.lane import Word
from holdfast.services.redis.replicas import ConfirmedConnection
from holdfast.services.redis.shards import StateShards, answers_of

BATCH_MAX = 100
"""Requests in one script, so that it doesn't block the server for long."""

CHANCE = 1 << 20
"""Range of the random step to the next epoch where the server's clock is behind the last one."""

EXPIRE_BATCH = 100

NOW = Script.load("now", "shard")
CHANGE, FIND, COUNTS, EXPIRE, SOONEST, DUE = (
    Script.load(name, "shard", "tasks")
    for name in ("task_change", "task_find", "task_counts", "task_expire", "task_soonest", "task_due")
)

_TEXTS = ("type", "group", "member", "node", "note", "detail", "cancel", "members", "earlier")
_COUNTS = ("epoch", "attempts", "pauses")
_TIMES = ("until", "queued_at", "started_at", "ended_at", "send_at")

Row = Sequence[Word]
Answers = list[Answer]


class RedisTasks(TaskStore):
    """The tasks of one app in a Redis namespace, in as many shards as the address says.

    Times are the server's. Calls raise as a ``RedisConnection`` does, and ConfigError if the
    namespace has another number of shards. ``connection`` is closed with it. With ``wait_replicas`` in its
    address, a change that fewer replicas have is of unknown outcome."""

    def __init__(self, connection: RedisConnection, app: str, clock: Clock) -> None:
        self._connection = connection
        self._app = quote(app, safe="")
        self._clock = clock
        self._shards = StateShards(connection)
        self._confirmed = ConfirmedConnection.beside(connection)
        self._changes = StateShards(self._confirmed)

    # --- changes

    async def change(self, changes: Sequence[TaskChange]) -> Answers:
        answers: Answers = []
        for kind, some in itertools.groupby(changes, type):
            request, row_of = REQUESTS[kind]
            rows = [(change.task_id, *row_of(change)) for change in some]
            # These changes are repeated if they are lost: no replica needs to have them.
            shards = self._shards if kind in LOSABLE else self._changes
            answers += await self._request(request, rows, shards)
        return answers

    async def due(self, ahead_s: float, limit: int, lease_s: float) -> list[Task]:
        async def look(shard: int) -> list[tuple[int, int]]:
            [times] = await self._in_shard(SOONEST, shard, _micros(ahead_s), limit)
            return [(at, shard) for at in times]

        async def lease(shard: int, most: int) -> list[Task]:
            [found] = await self._in_shard(DUE, shard, _micros(ahead_s), most, _micros(lease_s))
            return [_task(reply[0].decode(), reply[1:]) for reply in found]

        # An unreachable shard must neither reduce nor delay what the others hand out.
        seen = sorted(
            each
            for some in await answers_of([look(shard) for shard in range(self._shards.count)])
            for each in some
        )
        shares = Counter(shard for _, shard in seen[:limit])
        pages = await answers_of([lease(*share) for share in shares.items()])
        return sorted(
            (task for page in pages for task in page), key=lambda task: (task.send_at, task.task_id)
        )

    # --- reading

    async def get(self, task_id: str) -> Task | None:
        name = self._shards.name(self._shards.of(task_id), "tasks", self._app, "task", task_id)
        fields = await self._connection.command(name, "HGETALL", name)
        return _task(task_id, fields) if fields else None

    async def list(
        self,
        limit: int,
        after: str = "",
        *,
        state: State | None = None,
        type: str = "",  # noqa: A002 - the port's
        since: float = 0.0,
        down: bool = False,
    ) -> list[Task]:
        states = [state.value] if state else [state.value for state in State]
        listed: list[Task] = []
        while len(listed) < limit:
            way, end = ("down", "+") if down else ("up", "-")
            begin = f"({after}" if after else end
            found = await self._everywhere(FIND, way, begin, limit, type, *states)
            task_ids = sorted({task_id.decode() for [some] in found for task_id in some}, reverse=down)[
                :limit
            ]
            if not task_ids:
                break
            after = task_ids[-1]
            for task in await asyncio.gather(*(self.get(task_id) for task_id in task_ids)):
                if (  # it may be another by now, or gone
                    task
                    and state in (None, task.state)
                    and type in ("", task.type)
                    and task.moved_at >= since
                ):
                    listed.append(task)  # noqa: PERF401 - as a comprehension it can't be read
        return listed[:limit]

    async def counts(self) -> dict[tuple[str, State], int]:
        counts: Counter[tuple[str, State]] = Counter()
        for [reply] in await self._everywhere(COUNTS, *(state.value for state in State)):
            for kind, state, count in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
                counts[kind.decode(), State(state.decode())] += count
        return dict(counts)

    async def now(self) -> float:
        [micros_now] = await self._in_shard(NOW, 0)
        return int(micros_now) / 1e6

    async def expire(self, before: float) -> int:
        dropped, shards = 0, set(range(self._shards.count))
        while shards:
            for shard in list(shards):
                looked, some = await self._in_shard(
                    EXPIRE, shard, max(0, _micros(before)), EXPIRE_BATCH, _micros(EFFECTS_KEEP_S)
                )
                dropped += some
                if looked < EXPIRE_BATCH:
                    shards.remove(shard)
        return dropped

    async def restore(self, tasks: Sequence[Task]) -> None:
        await self.change([RestoreTask(task) for task in tasks])

    async def close(self) -> None:
        if self._confirmed is not self._connection:
            await self._confirmed.close()
        await self._connection.close()

    # --- how it is done

    async def _request(self, request: str, rows: Sequence[Row], shards: StateShards) -> Answers:
        """Send changes of one kind; returns their answers in the same order."""
        places: dict[int, list[int]] = {}
        for place, (task_id, *_) in enumerate(rows):
            places.setdefault(self._shards.of(str(task_id)), []).append(place)
        answers: Answers = [None] * len(rows)

        async def change(shard: int, places: Sequence[int]) -> None:
            for begin in range(0, len(places), BATCH_MAX):
                some = places[begin : begin + BATCH_MAX]
                names = [self._shards.name(shard, "tasks", self._app)]
                words: list[Word] = [request, int(self._clock.random() * CHANCE), len(rows[0])]
                words += [word for place in some for word in rows[place]]
                _, reply = await shards.run(CHANGE, shard, names, *words)
                for place, answer in zip(some, reply, strict=True):
                    answers[place] = _answer(rows[place], answer)

        failures = [
            failure
            for failure in await asyncio.gather(
                *(change(shard, its) for shard, its in places.items()), return_exceptions=True
            )
            if failure is not None
        ]
        if failures:
            raise _worst(failures, len(failures) < len(places))
        return answers

    async def _in_shard(self, script: Script, shard: int, *words: Word) -> Sequence[Any]:
        names = [self._shards.name(shard, "tasks", self._app)]
        reply: Sequence[Any] = await self._shards.run(script, shard, names, *words)
        return reply[1:]

    async def _everywhere(self, script: Script, *words: Word) -> Sequence[Any]:
        shards = range(self._shards.count)
        reply: Sequence[Any] = await asyncio.gather(
            *(self._in_shard(script, shard, *words) for shard in shards)
        )
        return reply


def _worst(failures: Sequence[BaseException], some_done: bool) -> BaseException:
    """Return the error of a call of which some parts failed."""
    for failure in failures:
        if not isinstance(failure, Unavailable):
            return failure
    return OutcomeUnknown(f"a part of it is done: {failures[0]}") if some_done else failures[0]


def _answer(row: Row, reply: Any) -> Answer:
    task_id = str(row[0])
    if isinstance(reply, bytes):
        stands = int(reply)
        return Fenced(f"task {task_id}: attempt {row[1]!s} is over; epoch {stands} stands", stands)
    return _task(task_id, reply) if reply else None


def _task(task_id: str, reply: Sequence[bytes]) -> Task:
    with reading(f"the record of task {task_id!r}"):
        known: dict[str, Any] = {}
        for field, value in zip(reply[::2], reply[1::2], strict=True):
            if found := _READ.get(field):  # a newer version may have written more
                name, convert = found
                known[name] = convert(value)
        return Task(task_id, **known)


def _record(task: Task) -> list[Word]:
    """Return all fields of a task in the order of ``_READ``, as its hash has them; "" for empty ones."""
    words: list[Word] = []
    for name in _CONVERT:
        value = getattr(task, name)
        if name in _TIMES:
            value = _micros(value)
        elif name == "progress":
            value = _number(value)
        words.append(int(value) if isinstance(value, bool) else value)
    return [word or "" for word in words]


def _fields(task: Task) -> dict[str, str]:
    """Return the fields of a task to be sent that are not empty, as its hash has them."""
    texts = {name: getattr(task, name) for name in _TEXTS}
    counts = {name: str(value) for name in _COUNTS if (value := getattr(task, name))}
    return {name: text for name, text in (texts | counts).items() if text}


_STATES = {state.value.encode(): state for state in State}
_CONVERT: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(_TEXTS, bytes.decode),
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(_TIMES, lambda value: int(value) / 1e6),
    "state": _STATES.__getitem__,
    "progress": float,
    **dict.fromkeys(("result", "follow_ups", "effects", "message", "stored"), bytes),
    "briefed": lambda value: value == b"1",
}
_READ = {name.encode(): (name, convert) for name, convert in _CONVERT.items()}


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _number(value: float) -> str:
    return repr(value) if value else ""


def _start_row(c: StartAttempt) -> Row:
    return c.type, c.member, c.node, c.tries, _micros(c.lease_s), c.group, c.instead_of, c.follow_ups


REQUESTS: dict[type, tuple[str, Callable[[Any], Row]]] = {
    QueueTask: ("queue", lambda c: (msgspec.json.encode(_fields(c.task)),)),
    RestoreTask: ("restore", lambda c: (_micros(c.task.moved_at), *_record(c.task))),
    DelayTask: ("delay", lambda c: (c.type, _micros(c.delay_s), c.message, c.group)),
    MessageSent: ("message_sent", lambda c: ()),
    StartAttempt: ("start", _start_row),
    AttemptBeat: ("beat", lambda c: (c.epoch, _micros(c.lease_s), _number(c.progress), c.note, c.member)),
    ReturnAttempt: ("give_back", lambda c: (c.epoch, int(c.spent), c.detail, _micros(c.pause_s))),
    EndAttempt: ("end", lambda c: (c.epoch, c.state.value, c.result, c.detail, c.effects, c.stored)),
    CountMember: ("count", lambda c: (c.size, c.place, int(c.failed), c.follow_ups)),
    BriefSent: ("briefed", lambda c: (c.epoch,)),
    EffectsLeft: ("handed_over", lambda c: (c.epoch, c.effects)),
    ResendEffects: ("resend_effects", lambda c: (c.effects, c.instead_of)),
    CancelTask: ("cancel", lambda c: (c.reason,)),
    ResetTask: ("reset", lambda c: ()),
}
"""The request of the script that makes each change, and its arguments after the trace."""
