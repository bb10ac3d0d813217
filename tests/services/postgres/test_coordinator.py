"""The coordinator in PostgreSQL: its promises, and what is its own."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast.errors import MembershipLost, Unavailable
from holdfast.ports.coordinator import Change, Coordinator, Load, Member
from holdfast.services.postgres import coordinator as module
from holdfast.services.postgres.coordinator import PostgresCoordinator
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import CoordinatorConformance
from simulator.servers import PostgresqlServer
from simulator.servers.server import until
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 30.0
LONG_S = 600.0
HASTY_S = 0.5
NODES = 200
PLACES = 10
STATEMENT = re.compile("LOG:  (?:execute|statement)")
A, B = Member("a", "node a", "http://127.0.0.1:1"), Member("b", "node b", "http://127.0.0.1:2")

CLAIM = "SELECT holdfast.coordinate('{claim}', %s::text[], '{0}', '{x}', %s::text[], '{0}', '{x}')"


def coordinator_at(
    make_database: MakeDatabase, server: PostgresqlServer, timeout_s: float = 10.0
) -> PostgresCoordinator:
    return PostgresCoordinator(make_database(server.url, timeout_s), SystemClock())


def ask(server: PostgresqlServer, query: str) -> Any:
    """The first column of the first row."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        rows = connection.execute(query.encode())
        return row[0] if rows.description and (row := rows.fetchone()) else None


async def somebody_waits(server: PostgresqlServer) -> None:
    """For a lock."""

    async def waits() -> bool:
        return bool(ask(server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    await until(waits, "a session waits for a lock")


class TestOnOneServer(CoordinatorConformance):
    tick_s = 0.25

    @pytest.fixture
    def coordinator(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> Coordinator:
        return coordinator_at(make_database, postgresql_server)

    @pytest.fixture
    def other_coordinator(
        self, postgresql_server: PostgresqlServer, coordinator: Coordinator, make_database: MakeDatabase
    ) -> Coordinator:
        return coordinator_at(make_database, postgresql_server)


# --- the order of changes


async def test_a_change_that_is_committed_late_hides_behind_no_other(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    number, _ = await coordinator.watch(-1, 0)
    with psycopg.connect(postgresql_server.url) as late:
        late.execute(CLAIM, ([A.id], ["s/1"]))
        second = asyncio.ensure_future(coordinator_at(make_database, postgresql_server).claim("s/2", A.id))
        await somebody_waits(postgresql_server)
        assert await coordinator.watch(number, 0) == (number, [])
        late.commit()
    claim = await second
    after, changes = await coordinator.watch(number, 0)
    assert [change.claim.key for change in changes if change.claim] == ["s/1", "s/2"]
    assert after == claim.version


@pytest.mark.nightly
async def test_renewals_do_not_wait_for_changes(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    one, other = (coordinator_at(make_database, postgresql_server, HASTY_S) for _ in range(2))
    await one.join(A, LONG_S)
    with psycopg.connect(postgresql_server.url) as slow:
        slow.execute(CLAIM, ([A.id], ["s/1"]))
        with pytest.raises(Unavailable, match="locked"):
            await other.claim("s/2", A.id)
        await one.renew(Member(A.id, A.name, A.address, Load(streams=3)), LONG_S)
        assert [member.load.streams for member in await other.members()] == [3]
        assert await other.lookup("s/1") is None


async def test_a_lease_is_granted_from_when_its_row_was_locked(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    with psycopg.connect(postgresql_server.url) as slow:
        slow.execute("SELECT FROM holdfast.members FOR UPDATE")
        renewal = asyncio.ensure_future(coordinator.renew(A, LONG_S))
        await somebody_waits(postgresql_server)
        slow.execute("CREATE TEMP TABLE freed AS SELECT clock_timestamp() AS at")
        [freed_at] = slow.execute("SELECT at FROM freed").fetchone() or (None,)
        slow.commit()
    await renewal
    lasts = "SELECT expires_at - interval '600 seconds' FROM holdfast.members"
    assert ask(postgresql_server, lasts) >= freed_at


async def test_a_membership_that_has_lapsed_can_t_be_renewed_though_nobody_has_ended_it(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    await coordinator.join(B, LONG_S)
    claim = await coordinator.claim("s/k", A.id)
    ask(postgresql_server, "UPDATE holdfast.members SET expires_at = clock_timestamp() WHERE id = 'a'")
    assert await coordinator.lookup("s/k") is None
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, LONG_S)
    assert not await coordinator.release(claim)
    assert await coordinator.members() == [B]


# --- many nodes


@pytest.fixture
async def telling_server() -> AsyncIterator[PostgresqlServer]:
    """Every statement is in its log."""
    async with PostgresqlServer(settings={"log_statement": "all"}) as server:
        yield server


@pytest.mark.nightly
async def test_a_membership_of_two_hundred_costs_a_call_to_join_to_renew_and_to_end(
    telling_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    places = [coordinator_at(make_database, telling_server) for _ in range(PLACES)]
    nodes = [Member(f"n{n:03}", f"node {n}", "http://127.0.0.1:1", Load(streams=100)) for n in range(NODES)]
    number, _ = await places[0].watch(-1, 0)
    for place in places:  # the first call of each connects
        await place.members()

    async def each(call: Callable[[PostgresCoordinator, Member], Awaitable[object]]) -> int:
        """Call for all nodes, one after the other in each place; returns how many calls that was."""

        async def in_turn(at: int) -> None:
            for node in nodes[at::PLACES]:
                await call(places[at], node)

        before = len(STATEMENT.findall(telling_server.log.read_text()))
        await asyncio.gather(*(in_turn(at) for at in range(PLACES)))
        return len(STATEMENT.findall(telling_server.log.read_text())) - before

    joined = await each(lambda place, node: place.join(node, LONG_S))
    renewed = await each(lambda place, node: place.renew(node, LONG_S))
    assert [len(await place.members()) for place in places] == [NODES] * PLACES
    ended = await each(lambda place, node: place.evict(node.id))
    assert renewed < 1.5 * NODES, "a call each; who listens may look meanwhile, now and then"
    assert max(joined, ended) <= 2 * NODES + PLACES, "a call each, and at most one to notify"
    _, changes = await places[1].watch(number, 0)
    assert [change.kind for change in changes] == ["joined"] * NODES + ["left"] * NODES
    assert await places[1].members() == []


# --- a server that forgets


async def test_who_is_forgotten_learns_it_and_versions_never_come_twice(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    old = await coordinator.claim("s/k", A.id)
    number, _ = await coordinator.watch(-1, 0)
    ask(postgresql_server, "DROP SCHEMA holdfast CASCADE")
    with pytest.raises(Unavailable):
        await coordinator.renew(A, LONG_S)
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, LONG_S)
    assert await coordinator.watch(number, 0) == (-1, [])
    assert await coordinator.claims() == []
    assert await coordinator.members() == []
    again = Member("a2", A.name, A.address)
    await coordinator.join(again, LONG_S)
    new = await coordinator.claim("s/k", again.id)
    assert new.version > old.version
    assert not await coordinator.release(old)


async def test_who_saw_a_change_that_the_server_has_forgotten_starts_again(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """As after a fail-over to a standby that had not heard the last of its primary."""
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    claim = await coordinator.claim("s/1", A.id)
    number, _ = await coordinator.watch(-1, 0)
    ask(postgresql_server, f"DELETE FROM holdfast.changes WHERE number = {number}")
    ask(postgresql_server, "DELETE FROM holdfast.claims")
    ask(postgresql_server, "ALTER SEQUENCE holdfast.change_numbers RESTART")
    assert (await coordinator.watch(number, 0))[0] < number
    newer = await coordinator.claim("s/2", A.id)
    assert newer.version > claim.version
    assert await coordinator.watch(number, 0) == (-1, [])


async def test_a_member_that_can_t_be_read_hides_no_other(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    await coordinator.join(B, LONG_S)
    ask(postgresql_server, "UPDATE holdfast.members SET record = '\\xff' WHERE id = 'a'")
    number, _ = await coordinator.watch(-1, 0)
    assert await coordinator.members() == [B]
    assert await coordinator.evict(A.id)
    _, [change] = await coordinator.watch(number, 0)
    assert change == Change("left", member=Member(A.id, "", "", Load()))


# --- old versions of rows


@pytest.mark.nightly
async def test_tables_stay_small_while_somebody_holds_a_transaction_open(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM_BYTES", 100_000)
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    claim = await coordinator.claim("s/k", A.id)
    number, _ = await coordinator.watch(-1, 0)
    size = "SELECT pg_relation_size('holdfast.members')"
    with psycopg.connect(postgresql_server.url) as horizon:
        horizon.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        horizon.execute("SELECT 1")
        ask(
            postgresql_server,
            "DO $$ BEGIN FOR i IN 1 .. 3000 LOOP UPDATE holdfast.members"
            " SET expires_at = expires_at + interval '1 ms'; COMMIT; END LOOP; END $$",
        )
        assert ask(postgresql_server, size) > 100_000
        assert await coordinator.watch(number, 0) == (number, [])
        assert ask(postgresql_server, size) < 20_000
        assert await coordinator.lookup("s/k") == claim
        await coordinator.renew(A, LONG_S)
        assert await coordinator.watch(number, 0) == (number, []), "the last changes are kept"


async def test_a_dump_of_the_tables_holds_nobody_up(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM_BYTES", -1)
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    with psycopg.connect(postgresql_server.url) as dump:
        dump.execute("LOCK TABLE holdfast.members, holdfast.changes IN ACCESS SHARE MODE")
        await asyncio.wait_for(coordinator.watch(-1, 0), PATIENCE_S)
        tried_at = ask(postgresql_server, "SELECT tidied_at FROM holdfast.coordinator")
        assert tried_at.year > 2000
        await coordinator.renew(A, LONG_S)
        await coordinator.watch(-1, 0)
        assert ask(postgresql_server, "SELECT tidied_at FROM holdfast.coordinator") == tried_at


TIDY = "SELECT holdfast.tidy_coordinator()"
UNTIDY = "UPDATE holdfast.coordinator SET tidied_at = 'epoch'"


async def test_tables_that_are_made_anew_wait_for_no_standby(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """While a synchronous standby is away, a commit that waits for it would hold the tables locked."""
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    with psycopg.connect(postgresql_server.url) as tidier:
        tidier.execute(UNTIDY)
        tidier.execute(TIDY)
        assert tidier.execute("SHOW synchronous_commit").fetchone() == ("off",)


async def test_a_claim_that_is_looked_up_while_the_tables_are_made_anew_is_found(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    await coordinator.join(A, LONG_S)
    claim = await coordinator.claim("s/k", A.id)
    with psycopg.connect(postgresql_server.url) as tidier:
        tidier.execute(UNTIDY)
        tidier.execute(TIDY)
        looked = asyncio.ensure_future(coordinator.lookup("s/k"))
        await somebody_waits(postgresql_server)
        tidier.commit()
    assert await looked == claim


@pytest.mark.slow
async def test_old_changes_go_and_who_is_behind_them_starts_again(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    coordinator = coordinator_at(make_database, postgresql_server)
    begin, _ = await coordinator.watch(-1, 0)
    await coordinator.join(A, LONG_S)
    await asyncio.gather(*(coordinator.claim(f"s/{i}", A.id) for i in range(10_200)))
    ask(postgresql_server, "SELECT holdfast.tidy_coordinator()")
    assert ask(postgresql_server, "SELECT count(*) FROM holdfast.changes") == 10_000
    assert await coordinator.watch(begin, 0) == (-1, [])
    number, _ = await coordinator.watch(-1, 0)
    await coordinator.release(await coordinator.claim("s/1", A.id))
    assert len((await coordinator.watch(number, 0))[1]) == 1
