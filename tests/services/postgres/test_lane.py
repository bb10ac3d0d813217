"""Lanes: which calls share a transaction, and what their callers learn when something breaks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count

import psycopg
import pytest

from holdfast.common.retry import Backoff
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    InvalidMessage,
    OperationRefused,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.services.postgres import database as database_module
from holdfast.services.postgres import lane as module
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import BATCH_MAX, Connect, Connection, PostgresLane
from simulator.proxies import TcpFaults
from simulator.servers import PostgresqlServer
from simulator.servers.server import until
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 30.0
HASTY_S = 0.5
"""A timeout that is to pass within the test."""


@pytest.fixture
def places(postgresql_server: PostgresqlServer) -> PostgresqlServer:
    """The server, with a table of numbers."""
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.written (number integer)")
    return postgresql_server


def written(server: PostgresqlServer) -> list[int]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        return [
            number for (number,) in connection.execute("SELECT number FROM public.written ORDER BY number")
        ]


class Writer:
    """An operation that writes numbers, and notes which came together."""

    def __init__(self) -> None:
        self.together: list[list[int]] = []

    async def __call__(self, connection: Connection, numbers: Sequence[int]) -> list[int | HoldfastError]:
        self.together.append(list(numbers))
        await connection.execute("INSERT INTO public.written SELECT unnest(%s::integer[])", (list(numbers),))
        return list(numbers)


async def test_calls_that_come_together_share_a_transaction(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane, write = make_database(places.url).lane("state"), Writer()
    numbers = list(range(BATCH_MAX + 20))
    assert await asyncio.gather(*(lane.write_many(write, number) for number in numbers)) == numbers
    assert [len(some) for some in write.together] == [BATCH_MAX, 20]
    assert written(places) == numbers
    with psycopg.connect(places.url, autocommit=True) as connection:
        query = "SELECT count(DISTINCT xmin::text) FROM public.written"
        assert connection.execute(query).fetchone() == (2,)


async def test_statements_of_their_own_are_shared_too(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane, write = make_database(places.url).lane("state"), Writer()
    await asyncio.gather(*(lane.run_once(write, number, writes=True) for number in range(9)))
    assert write.together == [list(range(9))]


async def test_operations_of_several_kinds_share_no_transaction(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane, one, other = make_database(places.url).lane("state"), Writer(), Writer()
    await asyncio.gather(*(lane.write_many(w, n) for n, w in enumerate((one, other, one, other))))
    assert one.together == [[0, 2]]
    assert other.together == [[1, 3]]
    with psycopg.connect(places.url, autocommit=True) as connection:
        query = "SELECT count(DISTINCT xmin::text) FROM public.written"
        assert connection.execute(query).fetchone() == (2,)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "fail, error",
    [
        ("SELECT 1 / 0", OperationRefused),  # refused by the server
        ("SELECT %s::text", OperationRefused),  # refused by the driver: the character NUL
        ("", ValueError),  # a fault of the operation's
        (None, InvalidMessage),
    ],
)
async def test_a_call_that_fails_fails_alone(
    places: PostgresqlServer,
    make_database: MakeDatabase,
    fail: str | None,
    error: type[Exception],
    alone: bool,
) -> None:
    lane = make_database(places.url).lane("state")

    async def write(connection: Connection, numbers: Sequence[int]) -> list[int | HoldfastError]:
        if 3 in numbers:
            if fail is None:
                raise InvalidMessage("three", "field")
            if not fail:
                raise ValueError("three")
            await connection.execute(fail.encode(), ("\0",) if "%s" in fail else None)
        await connection.execute("INSERT INTO public.written SELECT unnest(%s::integer[])", (list(numbers),))
        return list(numbers)

    def call(number: int) -> "asyncio.Future[int]":
        asked = lane.run_once(write, number, writes=True) if alone else lane.write_many(write, number)
        return asyncio.ensure_future(asked)

    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*(call(number) for number in range(6)), return_exceptions=True)
    assert isinstance(results.pop(3), error)
    assert results == written(places) == [0, 1, 2, 4, 5]


async def test_an_item_that_is_refused_takes_nothing_with_it(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane = make_database(places.url).lane("state")

    async def write(connection: Connection, numbers: Sequence[int]) -> list[int | HoldfastError]:
        await connection.execute("INSERT INTO public.written SELECT unnest(%s::integer[])", (list(numbers),))
        return [InvalidMessage("odd", "") if number % 2 else number for number in numbers]

    results = await asyncio.gather(*(lane.write_many(write, n) for n in range(4)), return_exceptions=True)
    assert [isinstance(result, InvalidMessage) for result in results] == [False, True, False, True]
    assert written(places) == [0, 1, 2, 3], "what refuses an item writes nothing of it by itself"


async def test_who_is_overtaken_is_run_again(places: PostgresqlServer, make_database: MakeDatabase) -> None:
    lane, tries = make_database(places.url).lane("state"), count()

    async def write(connection: Connection, numbers: Sequence[int]) -> list[int | HoldfastError]:
        if next(tries) < 2:
            await connection.execute("DO $$ BEGIN RAISE unique_violation; END $$")
        await connection.execute("INSERT INTO public.written SELECT unnest(%s::integer[])", (list(numbers),))
        return list(numbers)

    assert await lane.write_many(write, 1) == 1
    assert written(places) == [1]
    assert next(tries) == 3


async def test_one_that_is_always_overtaken_is_told_to_try_again(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    async def fail(connection: Connection) -> None:
        await connection.execute("DO $$ BEGIN RAISE deadlock_detected; END $$")

    with pytest.raises(Unavailable, match="in the way"):
        await make_database(places.url).lane("state").write(fail)


async def test_a_call_that_was_given_up_is_not_made(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane, write = make_database(places.url).lane("state"), Writer()
    calls = [asyncio.ensure_future(lane.write_many(write, number)) for number in range(3)]
    await asyncio.sleep(0)  # all were asked for
    calls[1].cancel()
    assert [await calls[0], await calls[2]] == [0, 2]
    assert written(places) == [0, 2]


async def test_after_its_end_it_serves_nobody(places: PostgresqlServer, make_database: MakeDatabase) -> None:
    lane, write = make_database(places.url).lane("state"), Writer()
    last = asyncio.ensure_future(lane.write_many(write, 1))
    await asyncio.sleep(0)
    await lane.close()
    assert await last == 1
    with pytest.raises(Unavailable, match="closed"):
        await lane.write_many(write, 2)


# --- no connection


def lane_by(connect: Connect) -> PostgresLane:
    return PostgresLane("a database", connect, lambda: None, end_stopped=b"")


async def test_calls_are_answered_where_no_thread_can_be_started_to_connect() -> None:
    async def connect() -> Connection:
        raise RuntimeError("can't start new thread")

    lane, write = lane_by(connect), Writer()
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):  # the lane serves on
            calls = (lane.write_many(write, 1), lane.write_many(write, 2), lane.write_many(Writer(), 3))
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(error) for error in errors] == [Unavailable] * 3
            assert "can't start new thread" in str(errors[0])


async def test_calls_are_answered_where_the_task_that_serves_them_ends() -> None:
    ends = asyncio.Event()

    async def connect() -> Connection:
        await ends.wait()
        raise asyncio.CancelledError

    lane, write = lane_by(connect), Writer()
    under_way, behind = (asyncio.ensure_future(lane.write_many(each, 1)) for each in (write, Writer()))
    await asyncio.sleep(0)
    ends.set()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(OutcomeUnknown):
            await under_way
        with pytest.raises(Unavailable):
            await behind


async def test_a_host_that_can_t_be_one_is_a_mistake_in_the_url(make_database: MakeDatabase) -> None:
    database = make_database("postgresql://me:secret@db..example/x")
    async with asyncio.timeout(PATIENCE_S):
        for call in (database.lane("state").write_many(Writer(), 1), database.schema_steps()):
            with pytest.raises(ConfigError, match=r"db\.\.example.* no host can have this name") as refused:
                await call
            assert "secret" not in str(refused.value)


# --- faults of the connection


@pytest.fixture
async def wire(places: PostgresqlServer) -> AsyncIterator[TcpFaults]:
    async with TcpFaults(places.port) as faults:
        yield faults


def through(wire: TcpFaults, server: PostgresqlServer) -> str:
    return server.url.replace(server.address, f"{wire.host}:{wire.port}")


FAULTS: dict[str, Callable[[TcpFaults], object]] = {
    "cut": lambda wire: wire.cut(),
    "cut after the request": lambda wire: wire.cut_after(1),
    "cut before the answer": lambda wire: wire.lose_replies(),
}


class Phases:
    """An operation in three round trips, the last with the commit. ``fault`` comes with one of these."""

    def __init__(self, fault: Callable[[], object] | None = None, at: int = 0) -> None:
        self._faults = {at: fault} if fault else {}

    async def __call__(self, connection: Connection, numbers: Sequence[int]) -> list[int | HoldfastError]:
        insert = "INSERT INTO public.written SELECT unnest(%s::integer[]) RETURNING number"
        self._strike(1)
        await (await connection.execute("SELECT count(*) FROM public.written")).fetchone()
        self._strike(2)
        await (await connection.execute(insert, (list(numbers),))).fetchall()
        self._strike(3)
        await connection.execute("SELECT 1")
        return list(numbers)

    def _strike(self, phase: int) -> None:
        if fault := self._faults.pop(phase, None):
            fault()


@pytest.mark.slow
@pytest.mark.parametrize("phase", [1, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
async def test_wherever_a_transaction_is_cut_its_caller_learns_whether_it_may_have_had_an_effect(
    places: PostgresqlServer, make_database: MakeDatabase, wire: TcpFaults, fault: str, phase: int
) -> None:
    lane = make_database(through(wire, places)).lane("state")
    await lane.write_many(Phases(), 0)
    broken = Phases(lambda: FAULTS[fault](wire), phase)
    with pytest.raises((OutcomeUnknown, Unavailable)) as refused:
        await asyncio.wait_for(lane.write_many(broken, 1), PATIENCE_S)
    assert await lane.write_many(Phases(), 2) == 2
    is_unknown = isinstance(refused.value, OutcomeUnknown)
    may_be_early = fault == "cut" and phase == 3  # it may be seen before the commit is sent
    assert is_unknown is (phase == 3) or may_be_early
    if not is_unknown:
        assert written(places) == [0, 2]
    elif fault == "cut before the answer":
        assert written(places) == [0, 1, 2]


async def test_a_connection_cut_while_idle_costs_one_call_which_had_no_effect(
    places: PostgresqlServer, make_database: MakeDatabase, wire: TcpFaults
) -> None:
    lane = make_database(through(wire, places)).lane("state")
    await lane.write_many(Phases(), 0)
    wire.cut()
    with pytest.raises(Unavailable):
        await lane.write_many(Phases(), 1)
    assert await lane.write_many(Phases(), 2) == 2
    assert written(places) == [0, 2]


async def test_a_statement_of_its_own_that_writes_may_have_had_its_effect_where_its_answer_is_lost(
    places: PostgresqlServer, make_database: MakeDatabase, wire: TcpFaults
) -> None:
    lane, write = make_database(through(wire, places)).lane("state"), Writer()
    await lane.run_once(write, 0, writes=True)
    wire.lose_replies()
    with pytest.raises(OutcomeUnknown):
        await lane.run_once(write, 1, writes=True)
    assert await lane.run_once(write, 2, writes=True) == 2
    assert written(places) == [0, 1, 2]


async def test_a_lost_answer_to_a_read_is_no_question(
    places: PostgresqlServer, make_database: MakeDatabase, wire: TcpFaults
) -> None:
    lane = make_database(through(wire, places)).lane("state")

    async def count_(connection: Connection) -> int:
        [number] = await (await connection.execute("SELECT count(*) FROM public.written")).fetchone() or (-1,)
        return int(number)

    assert await lane.read(count_) == 0
    wire.lose_replies()
    with pytest.raises(Unavailable):
        await lane.read(count_)
    assert await lane.read(count_) == 0


@pytest.mark.slow
async def test_a_server_that_stands_still_is_given_up(
    places: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", Backoff(first_s=0.0))
    lane = make_database(places.url, HASTY_S).lane("state")
    await lane.write_many(Phases(), 0)
    for phase, error in ((1, Unavailable), (3, OutcomeUnknown)):
        try:
            with pytest.raises(error):
                await asyncio.wait_for(lane.write_many(Phases(places.pause, phase), 1), PATIENCE_S)
        finally:
            places.resume()
        assert await lane.write_many(Phases(), 2) == 2


@pytest.fixture
def database(places: PostgresqlServer, make_database: MakeDatabase) -> PostgresDatabase:
    return make_database(places.url)


@pytest.fixture
def slow_lane(database: PostgresDatabase) -> PostgresLane:
    """A lane that gives each call up at once."""
    lane = database.lane("state")
    lane.timeout_s = 0.05
    return lane


async def sleep_on(connection: Connection) -> None:
    """Asks for what the server goes on with after its caller has gone."""
    await connection.execute("SELECT pg_sleep(60)")


async def test_each_call_that_takes_too_long_doubles_the_pause_before_the_lane_connects_again(
    slow_lane: PostgresLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, connections = 0.0, list[Connection]()

    async def sleep_on_noted(connection: Connection) -> None:
        connections.append(connection)
        await sleep_on(connection)

    monkeypatch.setattr(module, "loop_time", lambda: now)
    monkeypatch.setattr(module, "PAUSES", Backoff(first_s=1.0, max_s=3.0, floor=1.0))
    for tries, pause_s in enumerate((1.0, 2.0, 3.0, 3.0), 1):
        with pytest.raises(Unavailable):
            await slow_lane.read(sleep_on_noted)
        now += 0.9 * pause_s
        for _ in range(2):
            with pytest.raises(Unavailable, match="none is made"):
                await slow_lane.read(sleep_on_noted)
        assert len(connections) == len({*map(id, connections)}) == tries
        now += 0.2 * pause_s


async def test_a_lane_whose_calls_take_too_long_keeps_no_other_lane_from_connecting(
    database: PostgresDatabase, slow_lane: PostgresLane
) -> None:
    with pytest.raises(Unavailable):
        await slow_lane.read(sleep_on)
    with pytest.raises(Unavailable, match="none is made"):
        await slow_lane.read(_nothing)
    await database.lane("membership").read(_nothing)


async def test_a_pause_is_short_again_after_a_connection_that_stood_for_long(
    slow_lane: PostgresLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "loop_time", lambda: now)
    for pause_s in (1.0, 2.0):
        with pytest.raises(Unavailable):
            await slow_lane.read(sleep_on)
        now += pause_s

    async def stand_for_long(connection: Connection) -> None:
        nonlocal now
        now += 100.0
        await sleep_on(connection)

    with pytest.raises(Unavailable):
        await slow_lane.read(stand_for_long)
    with pytest.raises(Unavailable, match=r"1\.0 s more"):
        await slow_lane.read(_nothing)


async def test_a_statement_of_its_own_sees_what_is_committed_whatever_isolation_is_the_default(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    async def shown(connection: Connection) -> str:
        [level] = await (await connection.execute("SHOW transaction_isolation")).fetchone() or ("",)
        return str(level)

    url = places.url + "?options=-c%20default_transaction_isolation%3Dserializable"
    assert await make_database(url).lane("state").read(shown) == "read committed"


@pytest.mark.parametrize("setting", ["client_connection_check_interval", "one_that_the_server_lacks"])
async def test_the_server_looks_whether_its_client_is_still_there_if_it_can(
    places: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    asked = database_module.LOOK_FOR_CLIENT.replace("client_connection_check_interval", setting)
    monkeypatch.setattr(database_module, "LOOK_FOR_CLIENT", asked)

    async def shown(connection: Connection) -> str:
        rows = await connection.execute("SHOW client_connection_check_interval")
        [interval] = await rows.fetchone() or ("",)
        return str(interval)

    observer = "5s" if setting == "client_connection_check_interval" else "0"
    assert await make_database(places.url).lane("state").read(shown) == observer


@pytest.mark.slow
async def test_a_server_that_stands_still_while_it_is_connected_to_is_given_up(
    places: PostgresqlServer, make_database: MakeDatabase, wire: TcpFaults
) -> None:
    lane = make_database(through(wire, places) + "?connect_timeout=2").lane("state")
    wire.freeze()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(lane.write_many(Phases(), 1), PATIENCE_S)
    wire.thaw()
    assert await lane.write_many(Phases(), 2) == 2


@pytest.mark.slow
async def test_a_server_that_is_away_is_unavailable_until_it_is_back(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane = make_database(places.url).lane("state")
    await lane.write_many(Phases(), 0)
    places.kill()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await lane.write_many(Phases(), 1)
    await places.start()
    assert await lane.write_many(Phases(), 2) == 2
    assert written(places) == [0, 2]


@pytest.mark.slow
async def test_who_waits_for_a_lock_too_long_had_no_effect(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    lane, write = make_database(places.url, HASTY_S).lane("state"), Writer()
    await lane.write_many(write, 0)
    with psycopg.connect(places.url) as other:
        other.execute("LOCK TABLE public.written")
        with pytest.raises(Unavailable, match="locked"):
            await lane.write_many(write, 1)
    assert await lane.write_many(write, 2) == 2
    assert written(places) == [0, 2]


async def test_the_locks_of_a_process_that_stands_still_are_freed(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """The one that waits gets the lock in its first try: it waits for less than what bounds its call."""
    one = make_database(places.url, 10 * PATIENCE_S, lock_timeout_s=0.2).lane("state")
    other = make_database(places.url, PATIENCE_S).lane("state")
    locked, resume = asyncio.Event(), asyncio.Event()

    async def stand_still(connection: Connection) -> None:
        await connection.execute("LOCK TABLE public.written")
        await (await connection.execute("SELECT 1")).fetchone()
        locked.set()
        await resume.wait()
        await (await connection.execute("SELECT 1")).fetchone()

    still = asyncio.ensure_future(one.write(stand_still))
    await locked.wait()

    try:
        assert await other.write_many(Writer(), 1) == 1
    finally:
        resume.set()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await still


@pytest.mark.slow
async def test_the_locks_of_a_process_that_stands_still_amid_a_request_are_freed(
    places: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """The server waits for the rest of the request, and counts no idle time."""
    one = make_database(places.url, 10 * PATIENCE_S, lock_timeout_s=0.2).lane("state")
    other = make_database(places.url, PATIENCE_S, lock_timeout_s=0.2).lane("state")
    resume = asyncio.Event()

    async def lock(connection: Connection) -> None:
        await connection.execute("LOCK TABLE holdfast.checkpoints")

    async def stand_still(connection: Connection) -> None:
        await lock(connection)
        await resume.wait()

    async def is_locked() -> bool:
        with psycopg.connect(places.url) as connection:
            found = connection.execute(
                "SELECT FROM pg_locks WHERE relation = 'holdfast.checkpoints'::regclass AND granted"
                " AND mode = 'AccessExclusiveLock'"
            )
            return found.fetchone() is not None

    await one.read(_nothing)
    still = asyncio.ensure_future(one.write(stand_still))
    await until(is_locked, "the table is locked", PATIENCE_S)
    try:
        await asyncio.wait_for(other.write(lock), PATIENCE_S)
    finally:
        resume.set()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await still


async def _nothing(connection: Connection) -> None:
    await connection.execute("SELECT 1")
