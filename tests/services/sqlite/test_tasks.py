"""Changes that come together are decided as the rules decide them one by one."""

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from holdfast.errors import Fenced
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    AttemptBeat,
    EndAttempt,
    QueueTask,
    ResetTask,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
    TaskChange,
)
from holdfast.services.sqlite import tasks as module
from holdfast.services.sqlite.database import Database
from holdfast.services.sqlite.tasks import SqliteTasks
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.task_oracle import TaskMachine, answer_of, timeless
from holdfast.testing.conformance.tasks import wish


@pytest.fixture
def tasks(database: Database, clock: SystemClock) -> SqliteTasks:
    return SqliteTasks(database, "app", clock)


class SqliteTaskMachine(TaskMachine):
    """Each example has a database of its own, which is opened again now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory()
        self._numbers = itertools.count()
        self._databases: list[Database] = []

    async def make(self) -> TaskStore:
        self._path = Path(self._directory.name, f"{next(self._numbers)}.db")
        return self._open()

    async def reopen(self, store: TaskStore) -> TaskStore:
        await self._databases.pop().close()
        return self._open()

    def _open(self) -> TaskStore:
        self._databases.append(Database.open(self._path, SystemClock(), durability="normal"))
        return SqliteTasks(self._databases[-1], "app", SystemClock())

    def teardown(self) -> None:
        for database in self._databases:
            self._runner.run(database.close())
        super().teardown()
        self._directory.cleanup()


TestSqliteTaskMachine = SqliteTaskMachine.TestCase
TestSqliteTaskMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

TRACES = [f"t{i}" for i in range(6)]


def request(dice: random.Random, model: dict[str, Task]) -> TaskChange:
    """Return a change that is mostly possible."""
    task_id = dice.choice(TRACES)
    epoch = (model[task_id].epoch if task_id in model else 0) + dice.choice([0] * 8 + [1, -1])
    lease_s = dice.choice([3600.0, 0.0])
    changes: list[TaskChange] = [
        QueueTask(Task(task_id, "t", group="g")),
        StartAttempt(task_id, "t", dice.choice("ab"), "n", 2, lease_s),
        StartAttempt(task_id, "u", dice.choice("ab"), "n", 9, lease_s),
        AttemptBeat(task_id, epoch, lease_s, 0.5, "half"),
        ReturnAttempt(task_id, epoch, dice.random() < 0.5, "broken"),
        EndAttempt(task_id, epoch, dice.choice(sorted(rules.ENDED)), b"\0r"),
        ResetTask(task_id),
    ]
    return dice.choice(changes)


def decide(model: dict[str, Task], change: TaskChange) -> object:
    try:
        after = rules.judge(model.get(change.task_id), change, 1.0)
    except Fenced as refusal:
        return answer_of(refusal)
    if after is not None:
        model[change.task_id] = after
    return answer_of(after)


@pytest.mark.parametrize("seed", range(3))
async def test_calls_in_batches_do_the_same_as_one_by_one(tasks: SqliteTasks, seed: int) -> None:
    dice, model = random.Random(seed), dict[str, Task]()
    for _ in range(60):
        asked = [request(dice, model) for _ in range(dice.choice([1, 3, 20]))]
        answers = await asyncio.gather(*(tasks.change([change]) for change in asked))
        assert [answer_of(a) for [a] in answers] == [decide(model, change) for change in asked]
    assert [timeless(task) for task in await tasks.list(100)] == [
        timeless(model[task_id]) for task_id in sorted(model)
    ]
    assert await tasks.counts() == Counter((task.type, task.state) for task in model.values())


async def test_an_app_sees_and_changes_no_tasks_of_another(
    tasks: SqliteTasks, database: Database, clock: SystemClock
) -> None:
    other = SqliteTasks(database, "other", clock)
    await asyncio.gather(tasks.start([wish("k")]), other.start([wish("k", member="b")]))
    await tasks.end([EndAttempt("k", 1, State.SUCCEEDED)])
    found = await other.get("k")
    assert found is not None
    assert (found.member, found.state) == ("b", State.RUNNING)
    assert await other.list(10) == [found]
    assert await tasks.expire(1e12) == 1
    assert await other.counts() == {("report.publish", State.RUNNING): 1}


async def test_queries_of_tasks_look_rows_up_by_an_index(tasks: SqliteTasks, database: Database) -> None:
    await tasks.queue([Task("k", "t")])
    looks = [
        (module.STANDING.replace("{rows}", ",".join(["(?)"] * 64)), [None] * 64 + [1], "trace=?"),
        (module.GET, [1, "k"], "trace=?"),
        (module.LIST.format(filters="AND trace > ?", order=""), [1, 0.0, "", 10], "trace>?"),
        (module.LIST.format(filters="AND trace < ?", order="DESC"), [1, 0.0, "k", 10], "trace<?"),
        (module.LIST.format(filters="", order="DESC"), [1, 0.0, 10], "(app=?)"),
        *(
            (
                module.LIST.format(filters="AND state = ? AND state <> 'succeed'", order=order),
                [1, 0.0, "failed", 10],
                "tasks_open",
            )
            for order in ("", "DESC")
        ),
    ]
    for query, values, index in looks:
        plan = await database.read(
            lambda connection, query=query, values=values: connection.execute(  # type: ignore[misc]
                f"EXPLAIN QUERY PLAN {query}", values
            ).fetchall()
        )
        steps = [step[3] for step in plan]
        assert any(index in step for step in steps), steps
        assert not any(step.startswith(("SCAN tasks", "SCAN t ")) for step in steps), steps
