"""What a killed or a stopped dispatcher leaves behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text

from holdfast.adapters.sqlalchemy.outbox import SqlOutbox
from holdfast.adapters.system.clock import SystemClock
from holdfast.core.device_queue import Entry, State
from holdfast.core.device_turn import Heard, Turn
from holdfast.core.dialect import PlainDialect
from holdfast.devices.outbox import Outbox
from holdfast.errors import ConfigError, Unavailable
from holdfast.testing.servers import PostgresqlServer

FULL_DISK = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END';
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON holdfast_outbox_command EXECUTE FUNCTION full_disk();
"""
COMMANDS = 300
DEVICES = 20
LIMIT_S = 90.0
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    server: PostgresqlServer = request.getfixturevalue("postgresql_server")
    return server.url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


def turner(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.adapters.sqlalchemy.turner", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def test_each_result_is_applied_once_whenever_it_is_killed(url: str, engine: Engine) -> None:
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE applied (command BIGINT PRIMARY KEY, times INTEGER)"))
    outbox = Outbox("doors", dialect=PlainDialect())
    await store.add(outbox.new({"device": f"d{n % DEVICES}", "command": b""} for n in range(COMMANDS)))
    done = 0
    async with asyncio.timeout(LIMIT_S):
        while done < COMMANDS:
            process = turner(url)
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            begun = done
            while done < min(begun + COMMANDS // 4, COMMANDS):
                done = (await store.counts("doors")).get(State.ACKNOWLEDGED, 0)
            end(process)
    assert await store.counts("doors") == {State.ACKNOWLEDGED: COMMANDS}
    with engine.connect() as connection:
        applied = connection.execute(text("SELECT count(*), min(times), max(times) FROM applied")).one()
    assert tuple(applied) == (COMMANDS, 1, 1)
    await store.close()


async def test_one_that_is_stopped_can_be_replaced_and_changes_nothing_afterwards(
    postgresql_server: PostgresqlServer,
) -> None:
    url = postgresql_server.url
    store = SqlOutbox(url, SystemClock(), busy_timeout_s=2.0)
    await store.prepare("doors", 1)
    process = turner(url)
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    os.kill(process.pid, signal.SIGSTOP)
    async with asyncio.timeout(LIMIT_S):
        while True:  # it may have been stopped in a transaction, whose end the server waits for
            try:
                epoch = await store.open("doors", 0, (await store.epochs("doors"))[0], "me")
                break
            except Unavailable:
                continue
    os.kill(process.pid, signal.SIGCONT)
    await asyncio.to_thread(process.wait, LIMIT_S)
    end(process)
    assert await store.epochs("doors") == {0: epoch}
    await store.close()


async def test_a_server_that_dies_is_unavailable_and_comes_back(
    postgresql_server: PostgresqlServer,
) -> None:
    store = SqlOutbox(postgresql_server.url, SystemClock())
    await store.prepare("doors", 1)
    epoch = await store.open("doors", 0, 0, "me")
    turn = Turn(outbox="doors", grants={0: epoch}, sendable=[0], now=0.0)
    await store.turn(turn)
    await store.arrived("doors", 0.01)
    postgresql_server.kill()
    with pytest.raises(Unavailable):
        await store.turn(turn)
    await postgresql_server.start()
    await store.add(Outbox("doors", dialect=PlainDialect()).new([{"device": "d1", "command": b""}]))
    [sending] = (await store.turn(msgspec.structs.replace(turn, sweep=True))).sendings
    answered = msgspec.structs.replace(turn, heard=[Heard("d1", sending.correlation)])

    def die_first(db: Any, entry: Entry) -> None:
        postgresql_server.kill()
        db.execute(text("SELECT 1"))

    with pytest.raises(Unavailable, match="on_result"):
        await store.turn(answered, die_first)
    await postgresql_server.start()
    assert len((await store.turn(answered, lambda db, entry: None)).closed) == 1
    await store.close()


async def test_a_server_that_is_gone_without_a_word_is_given_up(postgresql_server: PostgresqlServer) -> None:
    for said, patience_ms in (("", "15000"), ("?tcp_user_timeout=7", "7")):
        store = SqlOutbox(f"{postgresql_server.url}{said}", SystemClock())
        with store._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            settings = driver.info.get_parameters()
        assert (settings["tcp_user_timeout"], settings["keepalives_idle"]) == (patience_ms, "5")
        await store.close()


async def test_a_full_disk_of_the_server_is_unavailable(postgresql_server: PostgresqlServer) -> None:
    """By a trigger that raises what PostgreSQL does then: to fill a real disk takes long."""
    store, outbox = SqlOutbox(postgresql_server.url, SystemClock()), Outbox("doors")
    await store.prepare("doors", 1)
    turn = Turn(outbox="doors", grants={0: await store.open("doors", 0, 0, "me")}, sendable=[0], now=0.0)
    await store.add(outbox.new([{"device": "d1", "command": {}}]))
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(FULL_DISK)
        with pytest.raises(Unavailable, match="disk_full"):
            await store.add(outbox.new([{"device": "d1", "command": {}}]))
        with pytest.raises(Unavailable):
            await store.turn(turn)
        with pytest.raises(Unavailable, match="disk_full"):
            await store.turn(turn)
        connection.execute("DROP FUNCTION full_disk CASCADE")
    [sending] = (await store.turn(turn)).sendings
    assert sending.correlation.tries == 1
    assert len(await store.commands("doors")) == 1
    await store.close()


async def test_a_full_disk_is_unavailable(tmp_path: Path) -> None:
    store = SqlOutbox(f"sqlite:///{tmp_path}/app.db", SystemClock())
    await store.prepare("doors", 1)
    engine = store._engine
    with engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        connection.rollback()
        big = Outbox("doors", dialect=PlainDialect()).new([{"device": "d1", "command": b"x" * 100_000}])
    with pytest.raises(Unavailable, match="full"):
        await store.add(big)
    assert await store.commands("doors") == []
    await store.close()


@pytest.mark.parametrize("url", ["mysql://h/d", "sqlite://", "sqlite:///:memory:", "nothing"])
def test_databases_that_can_t_be_used_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        SqlOutbox(url, SystemClock())
