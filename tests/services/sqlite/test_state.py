"""Commits that come together are decided as the ledger decides them one by one."""

import asyncio
import contextlib
import itertools
import random
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.common.acts import RefusedEffect
from holdfast.common.message import Span
from holdfast.errors import Fenced
from holdfast.ports.state import StateStore
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result, RunLog
from holdfast.services.sqlite import schema
from holdfast.services.sqlite import state as module
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.services.sqlite.state import SqliteState
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.oracle import StateMachine
from holdfast.testing.conformance.state import TIMERS, effect, next_commit


@pytest.fixture
def state(database: Database, clock: SystemClock) -> SqliteState:
    return SqliteState(database, clock)


def a_commit(dice: random.Random, key: str, standing: Checkpoint) -> Commit:
    """A commit that mostly is next, and else has something wrong or unusual about it."""
    number = standing.number + dice.choice([1] * 8 + [0, 2])
    identities = tuple(f"{number}.{i}" for i in range(dice.randrange(4)))
    pending = [effect.id for effect in standing.effects if dice.random() < 0.5]
    return Commit(
        key,
        standing.epoch + dice.choice([0] * 9 + [-1]),
        number,
        standing.commit_id if dice.random() < 0.1 else f"{number}/{dice.randrange(1000)}",
        dice.choice([None, RunLog(10**19, 1, 10**38, (Span(3, 4),))]),
        past=dice.choice([(), (RunLog(0, 0, 9),)]),
        identities=identities,
        window=dice.choice([5] * 9 + [0, 3, 8]),
        state=dice.choice([None, None, b"", bytes([number % 256]) * 10]),
        state_version=dice.randrange(3),
        clear_state=dice.random() < 0.2,
        results=tuple(Result(f"{number}:{i}", b"r%d" % i) for i in range(dice.randrange(3))),
        starting=dice.choice(["", "head", "other"]),
        parked=dice.choice(["", "", "broken"]),
        done=dice.randrange(3),
        skipped=dice.randrange(2),
        effects=tuple(effect(number, place) for place in range(dice.choice([0, 0, 1, 3]))),
        dropped=(*pending[::2], "unknown") if dice.random() < 0.7 else (),
        refused=tuple(RefusedEffect(id_, "no such target") for id_ in pending[1::2]),
        timers=dice.choice([None, None, (), TIMERS[:1], TIMERS]),
        due=dice.choice([0.0, 0.0, 5.5, number + 0.25]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_commits_in_batches_do_the_same_as_one_by_one(
    state: SqliteState, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIM_EVERY", 4)
    dice = random.Random(seed)
    keys = [f"s/{i}" for i in range(6)]
    model = {key: await state.open(key, 0, "m") for key in keys}
    published: dict[str, list[Result]] = {key: [] for key in keys}
    for _ in range(60):
        batch = [a_commit(dice, key, model[key]) for key in dice.choices(keys, k=dice.choice([1, 3, 20]))]
        batch += dice.sample(batch, k=len(batch) // 4)
        answers = await asyncio.gather(*(state.commit(c) for c in batch), return_exceptions=True)
        assert [decide(model, published, c) for c in batch] == [type(a) for a in answers]
        heads = [
            (
                key,
                model.get(key, Checkpoint(key)).epoch - dice.choice([0, 0, 0, 1]),
                dice.choice(["head", "other", "third"]),
            )
            for key in dice.choices([*keys, "s/nothing"], k=dice.choice([1, 5]))
        ]
        openings = await asyncio.gather(*(state.start(*head) for head in heads), return_exceptions=True)
        assert [begin(model, *head) for head in heads] == [
            type(answer) if isinstance(answer, BaseException) else answer for answer in openings
        ]
    logged = await state.results(0, 100_000)
    for key in keys:
        model[key] = ledger.open_(model[key], key, model[key].epoch, "n")
        peeked = await state.peek(key)
        assert peeked is not None
        assert (peeked.effects, peeked.timers, peeked.due) == (
            model[key].effects,
            model[key].timers,
            model[key].due,
        )
        opened = await state.open(key, model[key].epoch - 1, "n")
        assert without_time(opened) == without_time(model[key])
        assert [r.result for r in logged if r.key == key] == published[key]


def decide(model: dict[str, Checkpoint], published: dict[str, list[Result]], commit: Commit) -> type:
    """What the ledger says; its answer's type."""
    try:
        after = ledger.commit(model[commit.key], commit, 0.0)
    except Fenced as error:
        return type(error)
    if after is not None:
        model[commit.key] = after
        published[commit.key] += commit.results
    return type(None)


def begin(model: dict[str, Checkpoint], key: str, epoch: int, head: str) -> object:
    """What the ledger says of a head: its openings, or an answer's type."""
    try:
        model[key] = after = ledger.start(model.get(key), key, epoch, head)
    except Fenced as error:
        return type(error)
    return after.started.openings if after.started else 0


def without_time(checkpoint: Checkpoint) -> Sequence[object]:
    return [getattr(checkpoint, f) for f in checkpoint.__struct_fields__ if f != "at"]


@pytest.mark.slow
def test_it_decides_as_the_ledger_does(tmp_path: Path) -> None:
    numbers = itertools.count()

    class SqliteMachine(StateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.databases: list[Database] = []

        async def make(self) -> StateStore:
            self.path = tmp_path / f"{next(numbers)}.db"
            return self.begin_on_file()

        async def reopen(self, store: StateStore) -> StateStore:
            await self.databases.pop().close()
            return self.begin_on_file()

        def begin_on_file(self) -> StateStore:
            clock = SystemClock()
            self.databases.append(Database.open(self.path, clock, durability="normal"))
            return SqliteState(self.databases[-1], clock)

        def teardown(self) -> None:
            for database in self.databases:
                self._run(database.close())
            super().teardown()

    run_state_machine_as_test(
        SqliteMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )


async def test_identities_out_of_the_window_take_no_room(
    state: SqliteState, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIM_EVERY", 10)
    await state.open("s/k", 0, "m")
    for number in range(1, 101):
        await state.commit(
            Commit("s/k", 1, number, f"{number}", None, identities=(f"{number}a", f"{number}b"), window=6)
        )
    [rows] = await database.read(lambda c: c.execute("SELECT count(*) FROM recents").fetchone())
    assert rows <= 3 + 10
    assert (await state.open("s/k", 1, "m")).recent == ("98a", "98b", "99a", "99b", "100a", "100b")


async def test_expiry_in_small_batches_drops_all_that_is_old(
    state: SqliteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXPIRE_BATCH", 3)
    for i in range(8):
        epoch = (await state.open(f"s/{i}", 0, "m")).epoch
        await state.commit(Commit(f"s/{i}", epoch, 1, "c", None, results=(Result("0:1", b"r"),), state=b"s"))
    assert await state.expire(1e12, 1e12) == (8, 8)
    assert await state.expire(1e12, 1e12) == (0, 0)


async def test_a_key_that_a_restore_did_not_bring_back_has_a_higher_epoch_than_it_ever_had(
    state: SqliteState,
) -> None:
    await state.restore_results([], above=1_000)
    assert (await state.open("s/gone", 0, "member")).epoch > 1_000


async def test_changes_find_their_rows_by_an_index(state: SqliteState, database: Database) -> None:
    for sql, width in ((module.JUDGED, 2), (module.WRITE, 16), (module.START, 5)):
        row = f"({','.join('?' * width)})"
        query = "EXPLAIN QUERY PLAN " + sql.replace("{rows}", ",".join([row] * 64))
        parameters = [None] * (64 * width + query.count("?") - 64 * width)
        plan = await database.write(
            lambda t, query=query, parameters=parameters: t.execute(query, parameters).fetchall()  # type: ignore[misc]
        )
        steps = [step[3] for step in plan]
        assert any("=?)" in step for step in steps)
        assert not any(step.startswith(("SCAN checkpoints", "SCAN s")) for step in steps), steps


async def test_a_checkpoint_that_is_used_while_idle_ones_are_looked_for_stays(
    database: Database, state: SqliteState, clock: SystemClock
) -> None:
    await state.open("s/k", 0, "m")
    await state.commit(Commit("s/k", 1, 1, "1", RunLog(0, 0, 1)))
    standing = await state.peek("s/k")
    assert standing is not None
    idle_before = standing.at + 1e-6
    read = database.read

    async def use_meanwhile(*arguments: Any, **options: Any) -> Any:
        found = await read(*arguments, **options)
        await state.commit(Commit("s/k", 1, 2, "2", RunLog(0, 0, 2), state=b"new"))
        return found

    database.read = use_meanwhile  # type: ignore[method-assign]
    expired = await state.expire(0.0, idle_before)
    database.read = read  # type: ignore[method-assign]
    after = await state.peek("s/k")
    assert expired == (0, 0)
    assert after is not None
    assert after.state == b"new"


# --- streams that act


async def acting(state: SqliteState, key: str = "s/k", **content: Any) -> Checkpoint:
    """Open a new stream that has an effect, timers, and a time at which it is due; return its checkpoint."""
    opened = await state.open(key, 0, "m")
    await state.commit(
        next_commit(opened, **{"effects": (effect(1, 0),), "timers": TIMERS, "due": 9.0} | content)
    )
    standing = await state.peek(key)
    assert standing is not None
    return standing


@contextlib.contextmanager
def statements(connection: sqlite3.Connection) -> Iterator[list[str]]:
    """Note the statements that a connection runs."""
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    yield seen
    connection.set_trace_callback(None)


async def test_a_stream_that_doesn_t_act_takes_no_statement_more(
    state: SqliteState, database: Database
) -> None:
    await acting(state, "s/other")
    with statements(database.write_connection) as written, statements(database.read_connection) as read:
        opened = await state.open("s/k", 0, "m")
        assert len(written) == 2 + 3, (
            "whether it is known, which epochs were given, the new row; in a transaction"
        )
        opened = await state.open("s/k", opened.epoch, "m")
        written.clear()
        opened = await state.open("s/k", opened.epoch, "m")
        assert len(written) == 2 + 3, "the checkpoint, its identities, and the new epoch"
        written.clear()
        await state.commit(next_commit(opened, state=b"s", results=(Result("0:1", b"r"),)))
        assert len(written) == 2 + 3, "which commits are unusual, the checkpoint, the result"
        await state.peek("s/k")
        assert len(read) == 1
    assert not [each for each in written + read if "effects" in each]


async def test_to_ask_what_is_due_writes_nothing_if_nothing_is(
    state: SqliteState, database: Database
) -> None:
    await acting(state, due=300.0)
    with statements(database.write_connection) as written, statements(database.read_connection) as read:
        assert await state.due(300.0, 10, 5.0) == []
    assert (len(written), len(read)) == (0, 1)


async def test_due_keys_and_effects_are_found_by_an_index(database: Database) -> None:
    def steps(sql: str, *parameters: Any) -> list[str]:
        plan = database.write_connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        return [step[3] for step in plan if "CONSTANT" not in step[3]]

    [due, key] = steps(module.DUE, 5.0, 10)
    assert due.startswith("SEARCH a USING")
    assert "acting_due (due>? AND due<?)" in due
    assert key == "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)"
    dropping = steps(module.DROP_EFFECTS.replace("{rows}", "(?,?)"), "s/k", "id")
    for plan in (dropping, steps(module.REFUSE_EFFECT, "why", "s/k", "id")):
        [found] = [step for step in plan if "(checkpoint=? AND id=?)" in step]
        assert found.startswith(("SEARCH effects", "SEARCH e "))
        assert not [step for step in plan if step.startswith(("SCAN effects", "SCAN e ", "SCAN s "))], plan


async def test_what_acts_no_more_leaves_no_row(state: SqliteState, database: Database) -> None:
    standing = await acting(state)
    await state.commit(next_commit(standing, dropped=(standing.effects[0].id,), timers=()))
    count = "SELECT (SELECT count(*) FROM acting) + (SELECT count(*) FROM effects)"
    [rows] = await database.read(lambda c: c.execute(count).fetchone())
    assert rows == 0


async def test_a_peek_sees_checkpoint_and_effects_of_one_moment(
    state: SqliteState, database: Database
) -> None:
    standing = await acting(state)
    other = sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)

    def commit_meanwhile(statement: str) -> None:
        if "FROM effects" in statement:
            other.executescript("BEGIN; UPDATE checkpoints SET number = 2; DELETE FROM effects; COMMIT")

    database.read_connection.set_trace_callback(commit_meanwhile)
    assert await state.peek("s/k") == standing
    database.read_connection.set_trace_callback(None)
    other.close()
    after = await state.peek("s/k")
    assert after is not None
    assert (after.number, after.effects) == (2, ())


async def test_an_older_process_can_t_expire_what_acts(state: SqliteState, database: Database) -> None:
    """It may have the file open while a newer process brings the schema up to date."""
    standing = await acting(state)
    await state.open("s/idle", 0, "m")

    def expire_as_before(transaction: Transaction, key: str) -> None:
        transaction.execute("DELETE FROM checkpoints WHERE key = ?", (key,))
        transaction.execute("INSERT INTO checkpoints (key, epoch, member) VALUES (?, 1, '')", (key,))

    await database.write(partial(expire_as_before, key="s/idle"))
    with pytest.raises(sqlite3.IntegrityError, match="must not expire"):
        await database.write(partial(expire_as_before, key="s/k"))
    assert await state.peek("s/k") == standing


async def test_a_key_that_acts_while_idle_ones_are_looked_for_stays(
    database: Database, state: SqliteState
) -> None:
    opened = await state.open("s/k", 0, "m")
    await state.commit(next_commit(opened))
    standing = await state.peek("s/k")
    assert standing is not None
    read = database.read

    async def act_meanwhile(*arguments: Any, **options: Any) -> Any:
        found = await read(*arguments, **options)
        await state.commit(next_commit(standing, timers=TIMERS))
        return found

    database.read = act_meanwhile  # type: ignore[method-assign]
    assert await state.expire(0.0, 1e11) == (0, 0)
    database.read = read  # type: ignore[method-assign]
    after = await state.peek("s/k")
    assert after is not None
    assert after.timers == TIMERS


async def test_a_database_from_before_there_were_effects_is_opened(
    path: Path, clock: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = schema.migrations()[:3]
    with monkeypatch.context() as older:
        older.setattr(schema, "migrations", lambda: before)
        database = Database.open(path, clock)
        await database.write(
            lambda t: t.execute(
                "INSERT INTO checkpoints (key, epoch, member, number) VALUES ('s/k', 3, 'm', 7)"
            )
        )
        await database.close()
    database = Database.open(path, clock)
    state = SqliteState(database, clock)
    standing = await state.peek("s/k")
    assert standing == Checkpoint("s/k", 3, 7, member="m")
    await state.commit(next_commit(standing, effects=(effect(8, 0),), due=5.0))
    assert (await state.open("s/k", 3, "m")).effects == (effect(8, 0),)
    assert await state.due(6.0, 10, 5.0) == ["s/k"]
    await database.close()
