"""The outbox store in SQLite and in PostgreSQL, with transactions of connections and of sessions."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from holdfast.devices.conformance import OutboxConformance
from holdfast.devices.conformance.outbox_bench import (
    NOW,
    OUTBOX,
    Begin,
    Driver,
    answer,
    bodies,
    new,
)
from holdfast.devices.rules.device_queue import CommandState, StoredCommand
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.devices.services.sqlalchemy.records import to_command
from holdfast.devices.services.sqlalchemy.statements import COLUMNS
from holdfast.devices.services.sqlalchemy.transaction import PostgresqlTransaction
from holdfast.devices.services.sqlalchemy.writer import SqlWriter
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer


def noted(business: Engine) -> list[int]:
    """Return of which commands the business has heard."""
    with business.connect() as connection:
        return list(connection.scalars(text("SELECT command FROM heard ORDER BY command")))


class SqlConformance(OutboxConformance):
    """Two clients of one database, and the business's own engine."""

    @pytest.fixture
    async def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[SqlOutbox]:
        store = SqlOutbox(url, SystemClock())
        yield store
        await store.close()

    @pytest.fixture
    async def other_store(self, url: str) -> AsyncIterator[SqlOutbox]:
        store = SqlOutbox(url, SystemClock())
        yield store
        await store.close()

    @pytest.fixture
    def business(self, url: str) -> Iterator[Engine]:
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        yield engine
        engine.dispose()

    @pytest.fixture
    def begin(self, business: Engine) -> Begin:
        @contextmanager
        def begin() -> Iterator[SqlWriter]:
            with business.begin() as connection:
                yield SqlWriter(connection)

        return begin

    async def test_the_archive_has_all_fields_of_a_command(
        self, driver: Driver, store: SqlOutbox, business: Engine
    ) -> None:
        [number] = driver.add([new("d1", b"\x00body", trace_id="t-1", dedupe_key="k")])
        [sending] = await driver.send()
        await driver.take_turn(answers=[answer(sending, b"\xffok")])
        entry = await store.command(number)
        await store.delete_closed(OUTBOX, NOW + 1, 10, archive=True)
        with business.connect() as connection:
            [row] = connection.exec_driver_sql(f"SELECT outbox, {COLUMNS} FROM holdfast_outbox_archive")
        assert (row[0], to_command(row[1:])) == (OUTBOX, entry)
        assert await store.command(number) is None

    @pytest.mark.parametrize("swallowed", [False, True])
    async def test_a_result_that_ends_the_transaction_takes_no_turn_along(
        self,
        driver: Driver,
        store: SqlOutbox,
        business: Engine,
        swallowed: bool,
    ) -> None:
        sqlite = business.dialect.name == "sqlite"
        with business.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE heard (command INTEGER)")
            if sqlite:
                connection.exec_driver_sql("CREATE TABLE one (number INTEGER UNIQUE ON CONFLICT ROLLBACK)")
        failing = True

        def on_result(session: Session, entry: StoredCommand) -> None:
            session.execute(text("INSERT INTO heard VALUES (:command)"), {"command": entry.id})
            if failing and entry.body == b"1":
                with suppress(DBAPIError) if swallowed else nullcontext():
                    session.execute(text("INSERT INTO one VALUES (1), (1)" if sqlite else "ROLLBACK"))

        ids = driver.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        heard = [answer(sending) for sending in await driver.send()]
        driver.on_result = on_result
        try:
            assert len((await driver.take_turn(answers=heard)).closed) == 3
            assert await store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 3}
            await driver.take_turn(sweep=True)
            assert noted(business) == [ids[0], ids[2]]
            failing = False
            await driver.take_turn(sweep=True)
            assert noted(business) == ids
        finally:
            with business.begin() as connection:
                connection.exec_driver_sql("DROP TABLE heard")

    async def test_every_list_uses_an_index(self, driver: Driver, store: SqlOutbox, business: Engine) -> None:
        driver.add([new(f"d{n}") for n in range(100)])
        asked: list[tuple[str, Any]] = []
        event.listen(store.engine, "before_cursor_execute", lambda *a: asked.append((a[2], a[3])))
        await store.commands(OUTBOX, device="d1")
        await store.commands(OUTBOX, device="d1", state=CommandState.SCHEDULED)
        await store.commands(OUTBOX, state=CommandState.FAILED)
        await store.commands(OUTBOX)
        postgresql = business.dialect.name == "postgresql"
        plans = []
        with business.connect() as connection:
            if postgresql:  # of so few rows a plan says only what can be used
                for setting in ("ANALYZE", "SET enable_seqscan = off", "SET enable_sort = off"):
                    connection.exec_driver_sql(setting)
            for sql, parameters in asked:
                explain = f"EXPLAIN {sql}" if postgresql else f"EXPLAIN QUERY PLAN {sql}"
                plans.append(str(connection.exec_driver_sql(explain, parameters).all()))
        for plan, index in zip(plans, ("_device", "_device", "_failed", ""), strict=True):
            assert f"holdfast_outbox_command{index}" in plan
        assert "TEMP B-TREE" not in plans[-1], "the ids are in order already"

    async def test_a_page_of_many_devices_takes_no_more_statements_than_one_of_few(
        self, driver: Driver, store: SqlOutbox, business: Engine
    ) -> None:
        driver.add([new(f"d{n:03}") for n in range(100) for _ in range(1 + n % 3)])
        await driver.take_turn()
        asked: list[tuple[str, Any]] = []
        event.listen(store.engine, "before_cursor_execute", lambda *a: asked.append((a[2], a[3])))
        assert len(await store.devices(OUTBOX, limit=2)) == 2
        few, first = len(asked), asked[0]
        assert [each.waiting for each in await store.devices(OUTBOX)] == [1 + n % 3 for n in range(100)]
        assert len(asked) == 2 * few
        postgresql = business.dialect.name == "postgresql"
        with business.connect() as connection:
            if postgresql:  # of so few rows a plan says only what can be used
                connection.exec_driver_sql("ANALYZE")
                connection.exec_driver_sql("SET enable_seqscan = off")
            explain = "EXPLAIN" if postgresql else "EXPLAIN QUERY PLAN"
            plan = str(connection.exec_driver_sql(f"{explain} {first[0]}", first[1]).all())
        assert "holdfast_outbox_command_next" in plan


class TestSqliteOutbox(SqlConformance):
    @pytest.fixture
    async def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/app.db"


@pytest.mark.nightly
class TestSqliteOutboxBySessions(TestSqliteOutbox):
    @pytest.fixture
    def begin(self, business: Engine) -> Begin:
        def begin() -> AbstractContextManager[SqlWriter]:
            return by_session(business)

        return begin


class TestPostgresqlOutbox(SqlConformance):
    @pytest.fixture
    async def url(self, emptied_postgresql: PostgresqlServer) -> str:
        return emptied_postgresql.url

    async def test_a_replaced_command_that_is_committed_late_is_not_sent(self, driver: Driver) -> None:
        slow = driver.begin()
        [old] = slow.__enter__().add([new("d1", b"in", supersede_key="951")])
        driver.add([new("d1", b"out", supersede_key="951"), new("d1", b"other")])
        [sending] = await driver.send()
        assert sending.body == b"out"
        [sending] = await driver.send(answers=[answer(sending)])
        slow.__exit__(None, None, None)
        result = await driver.take_turn(answers=[answer(sending)])
        assert [(e.id, e.state) for e in result.closed[1:]] == [(old, CommandState.SUPERSEDED)]
        assert result.sendings == [], "who was taken off must not come in again"

    async def test_a_cancel_neither_waits_nor_is_waited_for(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d2", b"2")])
        open_still = driver.begin()
        assert open_still.__enter__().cancel(OUTBOX, device="d1") == 1
        first = await driver.send()
        assert bodies(first) == [b"1", b"2"], "it isn't committed yet"
        open_still.__exit__(None, None, None)
        result = await driver.take_turn(answers=[answer(each) for each in first])
        assert {entry.state for entry in result.closed} == {CommandState.ACKNOWLEDGED}

    async def test_a_round_of_sending_is_three_messages_to_postgresql(self, driver: Driver) -> None:
        driver.add([new(f"d{n}") for n in range(50)])
        driver.add([new("d0"), new("d1", not_before=NOW + 1000.0)])
        spied = mock.patch.object(
            PostgresqlTransaction, "send", autospec=True, side_effect=PostgresqlTransaction.send
        )
        with spied as sent:
            sendings = await driver.send()
        assert (len(sendings), sent.call_count) == (50, 3)
        with spied as sent:
            driver.on_result = None
            result = await driver.take_turn(answers=[answer(each) for each in sendings])
        assert (len(result.closed), len(result.sendings), sent.call_count) == (50, 1, 3)


@contextmanager
def by_session(business: Engine) -> Iterator[SqlWriter]:
    with Session(business) as session, session.begin():
        yield SqlWriter(session)
