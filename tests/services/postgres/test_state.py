"""The state store in PostgreSQL: its promises, and what is its own."""

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.common.acts import RefusedEffect
from holdfast.errors import Fenced, OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.meter import Meter
from holdfast.ports.state import StateStore
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result, Timer
from holdfast.services.postgres import changes as module
from holdfast.services.postgres import results as log
from holdfast.services.postgres import state as store
from holdfast.services.postgres.address import parse
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection, PostgresLane
from holdfast.services.postgres.state import PostgresState
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import StateConformance, StateTransferConformance
from holdfast.testing.conformance.oracle import StateMachine
from holdfast.testing.conformance.state import TIMERS, effect, next_commit
from simulator.servers import PostgresqlServer
from simulator.servers.server import until
from tests.services.postgres.conftest import MakeDatabase

Query = Callable[..., Awaitable[list[Any]]]

KEY = "s/k"
PATIENCE_S = 30.0


def state_at(make_database: MakeDatabase, server: PostgresqlServer) -> PostgresState:
    return PostgresState(make_database(server.url), SystemClock(), max_state_bytes=2 << 20)


class TestOnOneServer(StateConformance, StateTransferConformance):
    @pytest.fixture
    def state(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> StateStore:
        return state_at(make_database, postgresql_server)

    @pytest.fixture
    def other_state(
        self, postgresql_server: PostgresqlServer, state: StateStore, make_database: MakeDatabase
    ) -> StateStore:
        return state_at(make_database, postgresql_server)


@pytest.mark.nightly
def test_it_decides_as_the_ledger_does(kept_postgresql: PostgresqlServer) -> None:
    numbers = itertools.count()

    class PostgresMachine(StateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.databases: list[PostgresDatabase] = []

        async def make(self) -> StateStore:
            self.url = f"{kept_postgresql.url}?schema=machine_{next(numbers)}"
            return self.begin_at_url()

        async def reopen(self, store: StateStore) -> StateStore:
            await self.databases.pop().close()
            return self.begin_at_url()

        def begin_at_url(self) -> StateStore:
            self.databases.append(PostgresDatabase(parse(self.url), SystemClock(), Meter()))
            return PostgresState(self.databases[-1], SystemClock())

        def teardown(self) -> None:
            for database in self.databases:
                self._run(database.close())
            super().teardown()

    asyncio.run(kept_postgresql.heal())
    run_state_machine_as_test(
        PostgresMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )


class Pauses(SystemClock):
    """A clock that sets an event at each pause."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.begun.set()
        await super().sleep(seconds)


class Writer(SystemClock):
    """The clock of a store that writes under a number of its own: two that have the same one wait for each
    other."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def new_id(self) -> str:
        return self._name


@pytest.fixture
def state(postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> PostgresState:
    return state_at(make_database, postgresql_server)


@pytest.fixture
def other(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, state: PostgresState
) -> PostgresState:
    return state_at(make_database, postgresql_server)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def reader(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, other: PostgresState, pauses: Pauses
) -> PostgresState:
    return PostgresState(make_database(postgresql_server.url), pauses)


@pytest.fixture
async def sql(state: PostgresState, postgresql_server: PostgresqlServer) -> AsyncIterator[Query]:
    """Runs a statement, past the store; returns its rows."""
    await state.now(KEY)  # the tables are made
    async with await psycopg.AsyncConnection.connect(postgresql_server.url, autocommit=True) as connection:

        async def run(query: str, *parameters: Any) -> list[Any]:
            rows = await connection.execute(query.encode(), parameters or None)
            return await rows.fetchall() if rows.description else []

        yield run


async def standing(state: PostgresState, key: str = KEY) -> Checkpoint:
    checkpoint = await state.peek(key)
    assert checkpoint is not None
    return checkpoint


async def committed(state: PostgresState, key: str = KEY, **changes: Any) -> Checkpoint:
    """Open a new stream and commit once."""
    await state.commit(next_commit(await state.open(key, 0, "member-a"), **changes))
    return await standing(state, key)


async def found_empty(state: PostgresState) -> None:
    """It finds its connection cut first, and then that its tables are gone."""

    async def answers() -> bool:
        with contextlib.suppress(Unavailable):
            return await state.peek(KEY) is None
        return False

    await until(answers, "the tables are created again", timeout_s=PATIENCE_S)


# --- servers that lose writes


@pytest.mark.nightly
async def test_a_server_that_lost_the_last_openings_accepts_nothing_of_them(
    state: PostgresState, sql: Query
) -> None:
    """As a standby does that is promoted before it has heard of them."""
    first = await state.open(KEY, 0, "member-a")
    await sql("CREATE TABLE standby AS SELECT * FROM holdfast.checkpoints")
    lost = await state.open(KEY, first.epoch, "member-b")
    await sql("DELETE FROM holdfast.checkpoints")
    await sql("INSERT INTO holdfast.checkpoints SELECT * FROM standby")
    opened = await state.open(KEY, first.epoch, "member-c")
    assert opened.epoch != lost.epoch
    with pytest.raises(Fenced):
        await state.commit(next_commit(lost, state=b"zombie"))
    await state.commit(next_commit(opened, state=b"right"))


@pytest.mark.nightly
async def test_streams_share_no_effects_where_the_server_counts_keys_anew(
    state: PostgresState, sql: Query
) -> None:
    """As after a switch by logical replication, which copies no sequences."""
    await committed(state, effects=(effect(1, 0),))
    await sql("ALTER TABLE holdfast.keys ALTER COLUMN id RESTART")
    await committed(state, "s/other", effects=(effect(1, 1),))
    for key, place in ((KEY, 0), ("s/other", 1)):
        assert (await standing(state, key)).effects == (effect(1, place),)


async def test_an_emptied_server_accepts_nothing_of_openings_it_forgot(
    state: PostgresState, postgresql_server: PostgresqlServer
) -> None:
    zombie = await state.open(KEY, 0, "member-a")
    await postgresql_server.reset()
    await found_empty(state)
    with pytest.raises(Fenced) as refusal:
        await state.commit(next_commit(zombie))
    assert refusal.value.epoch == 0
    opened = await state.open(KEY, 0, "member-b")
    assert opened.epoch > zombie.epoch
    with pytest.raises(Fenced):  # its number is the next one, and its id free
        await state.commit(next_commit(zombie, state=b"zombie"))


async def test_epochs_differ_on_servers_whose_clocks_are_behind(state: PostgresState, sql: Query) -> None:
    epochs, ahead = set(), 4 * 10**15
    for number in range(5):
        await state.open(f"s/{number}", 0, "member")
        await sql("UPDATE holdfast.checkpoints SET epoch = %s", ahead)
        epochs.add((await state.open(f"s/{number}", ahead, "member")).epoch)
    assert len(epochs) == 5
    assert min(epochs) > ahead


@pytest.mark.nightly
async def test_a_reader_goes_on_after_results_were_lost(
    state: PostgresState, postgresql_server: PostgresqlServer
) -> None:
    await committed(state, results=(Result("0:1", b"lost"), Result("0:2", b"lost")))
    last = (await state.results(0, 10))[-1]
    await postgresql_server.reset()
    await found_empty(state)
    await committed(state, results=(Result("0:1", b"new"),))
    [logged] = await state.results(last.cursor, 10)
    assert logged.result.body == b"new"


async def test_cursors_go_on_where_the_clock_is_behind_and_the_last_results_have_expired(
    state: PostgresState, sql: Query
) -> None:
    await committed(state, results=(Result("0:1", b"1"),))
    await sql("UPDATE holdfast.results SET cursor = cursor + 10^15::bigint")
    [first] = await state.results(0, 10)
    await state.commit(next_commit(await standing(state), results=(Result("0:2", b"2"),)))
    [second] = await state.results(first.cursor, 10)
    assert await state.expire(1e11, 0.0) == (2, 0)
    await state.commit(next_commit(await standing(state), results=(Result("0:3", b"3"),)))
    [third] = await state.results(second.cursor, 10)
    assert third.result.body == b"3"


# --- results


async def test_a_reader_misses_no_commit_that_comes_late(
    reader: PostgresState,
    pauses: Pauses,
    postgresql_server: PostgresqlServer,
    make_database: MakeDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit has its cursors and isn't committed yet, when another one comes and a reader reads."""
    patient = make_database(postgresql_server.url, timeout_s=3 * PATIENCE_S, lock_timeout_s=2 * PATIENCE_S)
    state = PostgresState(patient, Writer("a"))  # the server ends a transaction that stands still longer
    other = PostgresState(make_database(postgresql_server.url), Writer("b"))
    opened = {key: await state.open(key, 0, "member") for key in ("s/late", "s/other")}
    logged, go_on = asyncio.Event(), asyncio.Event()
    apply = state.changes.apply

    async def stand_still(connection: Connection, calls: Sequence[module.StateCall]) -> Sequence[Any]:
        answers = await apply(connection, calls)
        await (await connection.execute("SELECT 1")).fetchone()  # the server has done all before
        logged.set()
        await go_on.wait()
        return answers

    monkeypatch.setattr(state.changes, "apply", stand_still)
    late = asyncio.create_task(state.commit(next_commit(opened["s/late"], results=(Result("0:1", b"late"),))))
    try:
        await asyncio.wait_for(logged.wait(), PATIENCE_S)
        await asyncio.wait_for(
            other.commit(next_commit(opened["s/other"], results=(Result("0:1", b"other"),))), PATIENCE_S
        )
        reading = asyncio.create_task(reader.results(0, 10))
        seen = asyncio.create_task(pauses.begun.wait())
        await asyncio.wait([reading, seen], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        go_on.set()  # whatever failed: who stands still would be waited for without end
    await asyncio.wait_for(late, PATIENCE_S)
    read = await asyncio.wait_for(reading, PATIENCE_S)
    read += await reader.results(read[-1].cursor, 10)
    assert [found.result.body for found in read] == [b"late", b"other"]
    seen.cancel()


async def test_a_waiting_reader_hears_of_another_process_s_results(
    state: PostgresState, other: PostgresState
) -> None:
    waiting = asyncio.create_task(other.results(0, 10, wait_s=PATIENCE_S))
    await committed(state, results=(Result("0:1", b"r"),))
    [found] = await asyncio.wait_for(waiting, PATIENCE_S)
    assert found.result.body == b"r"


async def test_results_expire_in_small_batches_whoever_else_expires_them(
    state: PostgresState, other: PostgresState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "EXPIRE_BATCH", 3)
    monkeypatch.setattr(store, "EXPIRE_BATCH", 3)
    for number in range(10):
        await committed(state, f"s/{number}", results=(Result("0:1", b"r"),))
    expired = await asyncio.gather(state.expire(1e11, 1e11), other.expire(1e11, 1e11))
    assert tuple(map(sum, zip(*expired, strict=True))) == (10, 10)
    assert await state.results(0, 10) == []


# --- transactions


LARGE = b"x" * (1 << 20)


@pytest.mark.parametrize(
    "brought",
    [
        {"state": LARGE},
        {"results": (Result("0:1", LARGE),)},
        {"effects": (msgspec.structs.replace(effect(1, 0), body=LARGE),)},
    ],
    ids=["state", "results", "effects"],
)
async def test_only_so_many_large_commits_share_a_transaction_as_it_has_time_for(
    state: PostgresState, sql: Query, monkeypatch: pytest.MonkeyPatch, brought: dict[str, Any]
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.lane.BATCH_MAX", 20)
    opened = await asyncio.gather(*(state.open(f"s/{number}", 0, "m") for number in range(6)))
    written = "SELECT count(DISTINCT xmin::text) FROM holdfast.checkpoints"
    await asyncio.gather(*(state.commit(next_commit(each, **brought)) for each in opened))
    assert await sql(written) == [(3,)], "each weighs as much as nine small ones"


async def test_only_so_many_openings_share_a_transaction_as_may_read_large_states_in_its_time(
    state: PostgresState, sql: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.lane.BATCH_MAX", 66)
    await asyncio.gather(*(state.open(f"s/{number}", 0, "m") for number in range(6)))
    written = "SELECT count(DISTINCT xmin::text) FROM holdfast.checkpoints"
    assert await sql(written) == [(3,)], "each weighs as much as 33 small calls"


@pytest.mark.slow
async def test_one_bad_commit_doesn_t_fail_those_that_it_travels_with(state: PostgresState) -> None:
    keys = [f"s/{number}" for number in range(8)]
    opened = await asyncio.gather(*(state.open(key, 0, "member") for key in keys))
    commits = [next_commit(each, state=b"s") for each in opened]
    commits[0] = next_commit(opened[0], effects=(effect(1, 2**40),))  # the column is an integer
    commits[1] = next_commit(opened[1], parked="\ud800")
    commits[2] = next_commit(opened[2], id="zombie", number=7)
    commits[3] = msgspec.structs.replace(commits[3], key="s/\0")
    outcomes = await asyncio.gather(*map(state.commit, commits), return_exceptions=True)
    assert [type(each) for each in outcomes] == [
        OperationRefused, OperationRefused, Fenced, OperationRefused, *[type(None)] * 4
    ]  # fmt: skip
    assert [(await standing(state, key)).number for key in keys] == [0, 0, 0, 0, 1, 1, 1, 1]


async def test_texts_may_hold_what_the_database_s_texts_can_t(state: PostgresState) -> None:
    opened = await state.open(KEY, 0, "m\0")
    odd = msgspec.structs.replace(effect(1, 0), id="e\0", target="t\0", key="k\0", cause="c\0", refused="")
    await state.start(KEY, opened.epoch, "0:\0")
    await state.commit(
        next_commit(
            opened, id="i\0", identities=("a\0b", "a"), window=4, parked="p\0", effects=(odd,),
            results=(Result("0:\0", b"\0"),), starting="0:\0", timers=(Timer("\0", 1.0, b"\0", "\0"),),
        )
    )  # fmt: skip
    await state.commit(next_commit(await standing(state), window=4, refused=(RefusedEffect("e\0", "r\0"),)))
    found = await state.open(KEY, opened.epoch, "n\0")
    assert found.effects == (msgspec.structs.replace(odd, refused="r\0"),)
    assert found.recent == ("a\0b", "a")
    assert found.timers == (Timer("\0", 1.0, b"\0", "\0"),)
    logged = await state.result(KEY, "0:\0")
    assert logged is not None
    assert logged.result.body == b"\0"
    assert await state.peek("s/\0") is None
    assert await state.result("s/\0", "0:1") is None
    with pytest.raises(OperationRefused, match="NUL"):
        await state.open("s/\0", 0, "member")


@pytest.mark.parametrize("through", ["", "?pooled=yes"], ids=["directly", "through a pooler"])
async def test_a_transaction_sees_what_was_committed_before_it_got_its_locks(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, sql: Query, through: str
) -> None:
    """Whatever the server's settings are: or a commit would take cursors that others have passed."""
    await sql("ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'")
    try:

        async def ask(connection: Connection) -> Any:
            return await (await connection.execute("SHOW transaction_isolation")).fetchone()

        lane = make_database(postgresql_server.url + through).lane("state")
        assert await lane.write(ask) == ("read committed",)
    finally:
        await sql("ALTER DATABASE postgres RESET default_transaction_isolation")


async def test_settings_in_the_url_reach_the_server(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    url = postgresql_server.url + "?options=-c%20search_path%3Da+b%20-c%20work_mem%3D8MB"

    async def ask(connection: Connection) -> Any:
        settings = "current_setting('search_path'), current_setting('work_mem')"
        return await (await connection.execute(f"SELECT {settings}")).fetchone()

    assert await make_database(url).lane("state").read(ask) == ("a+b", "8MB")


@pytest.mark.slow
async def test_rows_that_moved_are_found_again(
    state: PostgresState, other: PostgresState, sql: Query
) -> None:
    keys = ("s/a", "s/b", "s/c")
    for key in keys:
        await committed(state, key)
    await sql("VACUUM FULL holdfast.checkpoints")
    places = state.changes.places
    places["s/a"], places["s/b"] = places["s/b"], places["s/a"]
    taken = await other.open("s/c", (await standing(other, "s/c")).epoch, "member-b")
    await other.commit(next_commit(taken, state=b"other"))
    outcomes = await asyncio.gather(
        *[state.commit(next_commit(await standing(state, key), state=b"mine")) for key in keys[:2]],
        state.commit(next_commit(msgspec.structs.replace(taken, epoch=1), state=b"zombie")),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [type(None), type(None), Fenced]
    assert [(await standing(state, key)).state for key in keys] == [b"mine", b"mine", b"other"]


async def test_the_usual_commit_finds_its_row_by_its_place(state: PostgresState, sql: Query) -> None:
    opened = await committed(state)
    await sql("SET enable_seqscan = off")
    place = state.changes.places[KEY]
    lock = module.LOCK_PLACES.replace("{schema}", "holdfast").replace("%s", f"'{{\"{place}\"}}'")
    plan = "\n".join(line for (line,) in await sql(f"EXPLAIN {lock}"))
    assert "Tid Scan on checkpoints" in plan
    write = module.WRITE_ALONE.replace("{schema}", "holdfast")
    for kind in ("tid", "bigint", "bool", "float8", "int", "bytea"):
        write = write.replace(f"%s::{kind}[]", f"'{{}}'::{kind}[]").replace(
            f"%b::{kind}[]", f"'{{}}'::{kind}[]"
        )
    plan = "\n".join(line for (line,) in await sql(f"EXPLAIN {write}"))
    assert "Tid Scan on checkpoints" in plan
    await state.commit(next_commit(opened))


@pytest.mark.nightly
async def test_a_commit_reads_no_old_versions_while_somebody_holds_them(
    state: PostgresState, postgresql_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1000 commits of one key. To walk over the old versions would be hundreds of pages at each."""
    commits = 1000
    pages: dict[str, int] = {}
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as holder:
        await state.now(KEY)
        await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await holder.execute("SELECT count(*) FROM holdfast.checkpoints")
        checkpoint = await state.open(KEY, 0, "member")
        for number in range(1, commits + 1):
            result = Result(f"0:{number}", b"r")
            await state.commit(
                Commit(
                    KEY, checkpoint.epoch, number, f"{number}", None, results=(result,), window=9,
                    identities=(f"{number}",), state=bytes(500), effects=(effect(number, 0),),
                    due=5.0 + number, dropped=(f"id-{number - 1}.0",),
                )
            )  # fmt: skip
        async with await psycopg.AsyncConnection.connect(postgresql_server.url, autocommit=True) as upkeep:
            await upkeep.execute("VACUUM ANALYZE")  # as the server does by itself: it sees that few rows live
        execute = psycopg.AsyncConnection.execute

        async def count_pages(connection: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(query, bytes) and b"holdfast." in query:
                explained = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query  # which runs it
                [(plan,)] = await (await execute(connection, explained, *arguments)).fetchall()
                read = plan[0]["Plan"]
                pages[query.decode().strip()] = read["Shared Hit Blocks"] + read["Shared Read Blocks"]
                if b"FOR UPDATE" not in query:
                    return None
            return await execute(connection, query, *arguments, **options)

        monkeypatch.setattr(psycopg.AsyncConnection, "execute", count_pages)
        await state.commit(
            Commit(
                KEY, checkpoint.epoch, commits + 1, "last", None, window=9, identities=("last",),
                results=(Result("0:last", b"r"),), effects=(effect(commits + 1, 0),), due=5.0,
                dropped=(f"id-{commits}.0",), state=bytes(500),
            )
        )  # fmt: skip
    assert len(pages) == 5, "the lock, checkpoint, effects, identities, results"
    assert max(pages.values()) < 40, pages


@pytest.mark.nightly
async def test_a_look_for_what_is_due_passes_over_no_old_versions(
    state: PostgresState, postgresql_server: PostgresqlServer
) -> None:
    """Each of 500 commits has left one behind."""
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as holder:
        past = await state.now(KEY) - 3000.0
        await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await holder.execute("SELECT count(*) FROM holdfast.checkpoints")
        checkpoint = await state.open(KEY, 0, "member")
        for number in range(1, 501):
            await state.commit(
                Commit(KEY, checkpoint.epoch, number, f"{number}", None, due=past + number, state=b"")
            )
        await state.commit(Commit(KEY, checkpoint.epoch, 501, "last", None, due=past + 9000, state=b""))
        assert await state.due(past + 3000, 10, 5.0) == []
        state.due_mark.full_at = math.inf
        pages = []
        execute = psycopg.AsyncConnection.execute

        async def count_pages(connection: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            explained = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query
            [(plan,)] = await (await execute(connection, explained, *arguments)).fetchall()
            pages.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
            return await execute(connection, query, *arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psycopg.AsyncConnection, "execute", count_pages)
            assert await state.due(past + 3001, 10, 5.0) == []
            state.due_mark.full_at = -math.inf
            assert await state.due(past + 3002, 10, 5.0) == []
    narrow, full = pages
    assert narrow < 10 < full


async def test_what_is_due_since_long_and_committed_late_is_found_by_a_look_from_the_beginning(
    state: PostgresState,
) -> None:
    present = await state.now(KEY)
    assert await state.due(present, 10, 5.0) == []
    state.due_mark.full_at = math.inf
    opened = await state.open(KEY, 0, "member")
    await state.commit(Commit(KEY, opened.epoch, 1, "a", None, due=present - 100, state=b""))
    assert await state.due(present + 1, 10, 5.0) == []
    state.due_mark.full_at = -math.inf
    assert await state.due(present + 2, 10, 5.0) == [KEY]


async def test_what_was_not_handed_out_for_there_was_too_much_comes_next(state: PostgresState) -> None:
    present = await state.now(KEY)
    for n in range(3):
        opened = await state.open(f"s/{n}", 0, "member")
        await state.commit(Commit(f"s/{n}", opened.epoch, 1, "a", None, due=present - 100 + n, state=b""))
    assert await state.due(present, 2, 500.0) == ["s/0", "s/1"]
    state.due_mark.full_at = math.inf
    assert await state.due(present + 1, 2, 500.0) == ["s/2"]


async def test_a_commit_whose_row_was_not_written_is_not_answered_as_done(
    state: PostgresState,
    postgresql_server: PostgresqlServer,
    make_database: MakeDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = await state.open(KEY, 0, "member")
    monkeypatch.setattr(module, "WRITE_ALONE", module.WRITE_ALONE.replace("s.ctid = c.place", "false"))
    failing = state_at(make_database, postgresql_server)
    with pytest.raises(OutcomeUnknown, match="1 checkpoints were to be written, not 0"):
        await failing.commit(next_commit(opened))
    await state.commit(next_commit(opened))


async def test_a_stream_that_doesn_t_act_takes_no_statement_more(
    state: PostgresState, monkeypatch: pytest.MonkeyPatch
) -> None:
    await committed(state, "s/other", effects=(effect(1, 0),))
    opened = await state.open(KEY, 0, "member")
    seen: list[bytes] = []
    execute = psycopg.AsyncConnection.execute

    async def note(connection: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(query.encode() if isinstance(query, str) else query)
        return await execute(connection, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", note)
    await state.commit(next_commit(opened, state=b"s"))
    assert [query.split()[0] for query in seen] == [b"BEGIN", b"SELECT", b"UPDATE", b"COMMIT"]
    seen.clear()
    await state.peek(KEY)
    assert await state.due(1e9, 10, 5.0) == []
    assert [query.split()[0] for query in seen] == [b"SELECT", b"SELECT"], "and no transaction"


# --- what is kept no longer than it is needed


@pytest.mark.slow
async def test_identities_out_of_the_window_take_no_room(
    state: PostgresState, sql: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIM_EVERY", 10)
    checkpoint = await state.open(KEY, 0, "m")
    for number in range(1, 101):
        commit = Commit(KEY, checkpoint.epoch, number, f"{number}", None, window=6)
        await state.commit(msgspec.structs.replace(commit, identities=(f"{number}a", f"{number}b")))
    [(rows,)] = await sql("SELECT count(*) FROM holdfast.recents")
    assert rows <= 3 + 10
    opened = await state.open(KEY, checkpoint.epoch, "m")
    assert opened.recent == ("98a", "98b", "99a", "99b", "100a", "100b")


async def test_what_acts_no_more_leaves_no_effects(state: PostgresState, sql: Query) -> None:
    before = await committed(state, effects=(effect(1, 0), effect(1, 1)), timers=TIMERS, due=5.0)
    assert await state.expire(0.0, 1e11) == (0, 0)
    await state.commit(next_commit(before, dropped=("id-1.0", "id-1.1", "unknown"), timers=()))
    assert await sql("SELECT * FROM holdfast.effects") == []
    assert await sql("SELECT pending, due FROM holdfast.checkpoints") == [(0, 0.0)]
    assert await state.expire(0.0, 1e11) == (0, 1)


@pytest.mark.parametrize(
    "content", [{"state": b"s"}, {"timers": TIMERS}, {"effects": (effect(2, 0),)}, {"due": 9.0}]
)
async def test_a_key_that_is_used_while_idle_ones_are_looked_for_stays(
    state: PostgresState, other: PostgresState, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any]
) -> None:
    idle = await committed(state)
    write = PostgresLane.write

    async def use_first(self: PostgresLane, operation: Any) -> Any:
        if isinstance(operation, partial) and operation.keywords.get("keys") == [KEY]:
            await other.commit(next_commit(idle, **content))
        return await write(self, operation)

    monkeypatch.setattr(PostgresLane, "write", use_first)
    idle_before = idle.at + 1e-6 if "state" in content else 1e11
    assert await state.expire(0.0, idle_before) == (0, 0)
    assert (await standing(state)).number == 2
