"""What a killed or a stopped dispatcher leaves behind."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import Engine, text

from holdfast import App
from holdfast.devices.rules.device_queue import CommandState, StoredCommand
from holdfast.devices.rules.device_turn import CommandAnswer, TurnRequest
from holdfast.devices.rules.dialect import PlainDialect
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer
from tests.devices.services.sqlalchemy import full_disk

COMMANDS = 300
DEVICES = 20
LIMIT_S = 90.0
ROOT = Path(__file__).parents[4]


def turner(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.devices.services.sqlalchemy.turner", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.slow
async def test_each_result_is_applied_once_whenever_it_is_killed(url: str, engine: Engine) -> None:
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE applied (command BIGINT PRIMARY KEY, times INTEGER)"))
    outbox = App("office").outbox("doors", dialect=PlainDialect())
    await store.add(outbox.new({"device": f"d{n % DEVICES}", "command": b""} for n in range(COMMANDS)))
    done = 0
    async with asyncio.timeout(LIMIT_S):
        while done < COMMANDS:
            process = turner(url)
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            begun = done
            while done < min(begun + COMMANDS // 4, COMMANDS):
                done = (await store.counts("doors")).get(CommandState.ACKNOWLEDGED, 0)
            end(process)
    assert await store.counts("doors") == {CommandState.ACKNOWLEDGED: COMMANDS}
    with engine.connect() as connection:
        applied = connection.execute(text("SELECT count(*), min(times), max(times) FROM applied")).one()
    assert tuple(applied) == (COMMANDS, 1, 1)
    await store.close()


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_server_that_dies_is_unavailable_and_comes_back(
    postgresql_server: PostgresqlServer,
) -> None:
    store = SqlOutbox(postgresql_server.url, SystemClock())
    await store.prepare("doors", 1)
    epoch = await store.open("doors", 0, 0, "me")
    request = TurnRequest(outbox="doors", shards=1, grants={0: epoch}, sendable=[0], now=0.0)
    await store.take_turn(request)
    await store.wait_for_arrival("doors", 0.01)
    postgresql_server.kill()
    with pytest.raises(Unavailable):
        await store.take_turn(request)
    await postgresql_server.start()
    await store.add(
        App("office").outbox("doors", dialect=PlainDialect()).new([{"device": "d1", "command": b""}])
    )
    [sending] = (await store.take_turn(msgspec.structs.replace(request, sweep=True))).sendings
    answered = msgspec.structs.replace(request, answers=[CommandAnswer("d1", sending.correlation)])

    def die_first(db: Any, entry: StoredCommand) -> None:
        postgresql_server.kill()
        db.execute(text("SELECT 1"))

    with pytest.raises(Unavailable, match="on_result"):
        await store.take_turn(answered, die_first)
    await postgresql_server.start()
    assert len((await store.take_turn(answered, lambda db, entry: None)).closed) == 1
    await store.close()


async def test_a_server_that_is_gone_without_a_word_is_given_up(postgresql_server: PostgresqlServer) -> None:
    for said, patience_ms in (("", "15000"), ("?tcp_user_timeout=7", "7")):
        store = SqlOutbox(f"{postgresql_server.url}{said}", SystemClock())
        with store.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            settings = driver.info.get_parameters()
        assert (settings["tcp_user_timeout"], settings["keepalives_idle"]) == (patience_ms, "5")
        await store.close()


async def test_a_full_disk_of_the_server_is_unavailable(postgresql_server: PostgresqlServer) -> None:
    store, outbox = SqlOutbox(postgresql_server.url, SystemClock()), App("office").outbox("doors")
    await store.prepare("doors", 1)
    request = TurnRequest(
        outbox="doors", shards=1, grants={0: await store.open("doors", 0, 0, "me")}, sendable=[0], now=0.0
    )
    await store.add(outbox.new([{"device": "d1", "command": {}}]))
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(full_disk.FULL)
        with pytest.raises(Unavailable, match="disk_full"):
            await store.add(outbox.new([{"device": "d1", "command": {}}]))
        with pytest.raises(Unavailable):
            await store.take_turn(request)
        with pytest.raises(Unavailable, match="disk_full"):
            await store.take_turn(request)
        connection.execute(full_disk.ROOM)
    [sending] = (await store.take_turn(request)).sendings
    assert sending.correlation.tries == 1
    assert len(await store.commands("doors")) == 1
    await store.close()


async def test_a_full_disk_is_unavailable_and_stores_nothing(tmp_path: Path) -> None:
    store = SqlOutbox(f"sqlite:///{tmp_path}/app.db", SystemClock())
    await store.prepare("doors", 1)
    engine = store.engine
    with engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        connection.rollback()
        big = (
            App("office")
            .outbox("doors", dialect=PlainDialect())
            .new([{"device": "d1", "command": b"x" * 100_000}])
        )
    with pytest.raises(Unavailable, match="full"):
        await store.add(big)
    assert await store.commands("doors") == []
    await store.close()


@pytest.mark.parametrize("url", ["mysql://h/d", "sqlite://", "sqlite:///:memory:", "nothing"])
def test_databases_that_can_t_be_used_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        SqlOutbox(url, SystemClock())


async def test_an_end_is_on_sqlites_disk_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the turn heard nothing, and so waits for no disk: there commands expire and are given up."""
    url, outbox = (
        f"sqlite:///{tmp_path}/app.db",
        App("office").outbox("doors", dialect=PlainDialect(), expires_in_s=5.0),
    )
    outbox.wall = lambda: 0.0
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    epoch = await store.open("doors", 0, 0, "me")
    request = TurnRequest(outbox="doors", shards=1, grants={0: epoch}, sendable=[0], now=1.0, brief=True)
    later = msgspec.structs.replace(request, now=100.0)
    synced: list[int] = []
    asked, go_on = threading.Event(), threading.Event()

    def sync(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        asked.set()
        assert go_on.wait(LIMIT_S)

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", sync)
    await store.add(outbox.new([{"device": "d1", "command": b""}]))
    assert len((await store.take_turn(request)).sendings) == 1
    assert synced == [], "what was only sent need not be"
    ending = asyncio.create_task(store.take_turn(later))
    assert await asyncio.to_thread(asked.wait, LIMIT_S)
    briefs = asyncio.create_task(store.pending_briefs("doors", [0], 10))
    done, _ = await asyncio.wait([ending, briefs], timeout=0.1)
    assert not done
    go_on.set()
    [ended] = (await ending).closed
    assert await briefs == [ended]
    assert synced == [(tmp_path / "app.db-wal").stat().st_ino]
    monkeypatch.setattr(os, "fsync", fail)
    await store.add(outbox.new([{"device": "d2", "command": b""}]))
    with pytest.raises(OutcomeUnknown, match=r"app\.db: the disk didn't confirm a commit"):
        await store.take_turn(later)
    await store.close()
    store = SqlOutbox(url, SystemClock(), durability="normal")
    await store.add(outbox.new([{"device": "d3", "command": b""}]))
    assert len((await store.take_turn(later)).closed) == 1
    await store.close()
