"""Commands that programs in other languages add in plain SQL, and rows that they spoil."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from holdfast.adapters.sqlalchemy.outbox import SqlOutbox
from holdfast.adapters.system.clock import SystemClock
from holdfast.core.device_queue import CommandState
from holdfast.devices.briefs import brief_of
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.ports.outbox import Adding
from holdfast.testing.conformance.outbox import OUTBOX, ManualDispatcher, answer

SHARDS, LANES = 7, 3
DEVICES = ["d1", "2042253", "A.b:c-d_e", "x" * 128, *(f"door-{n}" for n in range(20))]

POSTGRESQL = "SELECT holdfast_outbox_add({})"
SQLITE = "INSERT INTO holdfast_outbox_add ({}) VALUES ({})"
HEAD = (
    "INSERT INTO holdfast_outbox_head (outbox, device, lane, shard, phase, command, due)"
    " SELECT outbox, {}, lane, shard, {} FROM holdfast_outbox_command WHERE device = 'd1'"
)


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlOutbox]:
    store = SqlOutbox(url, SystemClock())
    await store.prepare(OUTBOX, SHARDS, Adding(lanes=LANES, expires_in_s=60.0, max_body=100))
    yield store
    await store.close()


def add(engine: Engine, **fields: Any) -> None:
    """Add a command as any client of the database could."""
    with engine.begin() as connection:
        add_with(connection, **fields)


def add_with(connection: Connection, **fields: Any) -> None:
    """The same, in a transaction."""
    fields = {"outbox": OUTBOX, "body": '{"open": true}', **fields}
    names, values = ", ".join(fields), ", ".join(f":{name}" for name in fields)
    if connection.dialect.name == "postgresql":
        sql = POSTGRESQL.format(", ".join(f"{name} => :{name}" for name in fields))
    else:
        sql = SQLITE.format(names, values)
    connection.execute(text(sql), fields)


async def test_they_go_where_those_of_python_go(store: SqlOutbox, engine: Engine) -> None:
    for device in DEVICES:
        add(engine, device=device, supersede_key=f"person {device} é")
    entries = await store.commands(OUTBOX, limit=1000)
    assert [entry.device for entry in entries] == DEVICES
    for entry in entries:
        assert entry.shard == zlib.crc32(entry.device.encode()) % SHARDS
        assert entry.lane == zlib.crc32(f"person {entry.device} é".encode()) % LANES
        assert (entry.state, entry.body, entry.trace_id) == (CommandState.SCHEDULED, b'{"open": true}', "")
        assert abs(entry.created_at - time.time()) < 60
        assert entry.expires_at == pytest.approx(entry.created_at + 60, abs=0.01)


async def test_a_dispatcher_sends_and_closes_them(store: SqlOutbox, engine: Engine) -> None:
    add(engine, device="d1", body='{"n": 1}', supersede_key="951")
    add(engine, device="d1", body='{"n": 2}', supersede_key="951")
    dispatcher = ManualDispatcher(store)
    standing = await store.epochs(OUTBOX)
    for shard, epoch in standing.items():
        dispatcher.grants[shard] = await store.open(OUTBOX, shard, epoch, "member")
    dispatcher.now = time.time()
    turned = await dispatcher.turn()
    assert [entry.state for entry in turned.closed] == [CommandState.SUPERSEDED]
    [sending] = turned.sendings
    assert sending.body == b'{"n": 2}'
    assert len((await dispatcher.turn(heard=[answer(sending)])).closed) == 1


async def test_a_dispatcher_is_woken_by_them(store: SqlOutbox, engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite wakes nobody in another process; a dispatcher looks every two seconds")
    await store.arrived(OUTBOX, 0.01)
    waiting = asyncio.ensure_future(store.arrived(OUTBOX, 3600))
    await asyncio.sleep(0)
    await asyncio.to_thread(add, engine, device="d1")
    await asyncio.wait_for(waiting, 30)


async def test_all_fields_are_kept(store: SqlOutbox, engine: Engine) -> None:
    given = {"dedupe_key": "k", "priority": 5, "delay_s": 100.0, "expires_in_s": 10.0, "trace_id": "t" * 80}
    add(engine, device="d1", body=b"\x00\xff", **given)
    add(engine, device="d1", body=b"again", dedupe_key="k")
    add(engine, device="d2", dedupe_key="k", expires_in_s=0 if engine.dialect.name == "sqlite" else None)
    first, other = await store.commands(OUTBOX)
    assert (first.body, first.dedupe_key, first.priority, first.trace_id) == (b"\x00\xff", "k", 5, "t" * 64)
    assert first.not_before == pytest.approx(first.created_at + 100, abs=0.01)
    assert first.expires_at == pytest.approx(first.created_at + 110, abs=0.01)
    assert (other.device, other.expires_at) == ("d2", None)


@pytest.mark.parametrize(
    "fields,said",
    [
        ({"outbox": "nowhere"}, "outbox"),
        ({"device": "a/b"}, "device"),
        ({"device": "+"}, "device"),
        ({"device": "-a"}, "device"),
        ({"device": "a\nb"}, "device"),
        ({"device": "a\n"}, "device"),
        ({"device": ""}, "device"),
        ({"device": "x" * 129}, "device"),
        ({"device": "é"}, "device"),
        ({"body": "x" * 101}, "max_body"),
        ({"supersede_key": ""}, "supersede_key"),
    ],
)
async def test_what_could_never_be_sent_is_refused(
    store: SqlOutbox, engine: Engine, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(DBAPIError, match=rf"holdfast: .*{said}"):
        add(engine, **{"device": "d1", **fields})
    assert await store.commands(OUTBOX) == []


async def test_a_rolled_back_transaction_adds_nothing(store: SqlOutbox, engine: Engine) -> None:
    with engine.connect() as connection:
        add_with(connection, device="d1")
        connection.rollback()
    assert await store.commands(OUTBOX) == []


async def test_what_another_program_spoilt_is_named_and_stops_nobody(
    store: SqlOutbox, engine: Engine
) -> None:
    add(engine, device="d1", dedupe_key="spoilt")
    add(engine, device="d2")
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE holdfast_outbox_command SET state = 'gone' WHERE dedupe_key = 'spoilt'")
        )
    with pytest.raises(InvalidMessage, match="'gone'"):
        await store.command(1)
    dispatcher = await owner_of_all(store)
    assert [sending.device for sending in await dispatcher.send()] == ["d2"]


@pytest.mark.parametrize(
    "fields",
    [
        {"supersede_key": b"\xff"},
        {"dedupe_key": b"k"},
        {"trace_id": b"t"},
        {"priority": "abc"},
        {"priority": b"1"},
        {"priority": 2**31},
        {"priority": 1.5},
    ],
)
async def test_what_sqlite_would_keep_though_its_type_is_wrong_is_refused(
    store: SqlOutbox, engine: Engine, fields: dict[str, Any]
) -> None:
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL's function has types")
    [name] = fields
    with pytest.raises(DBAPIError, match=rf"holdfast: .*{name}.* must be"):
        add(engine, device="d1", **fields)
    assert await store.commands(OUTBOX) == []


@pytest.mark.parametrize(
    "spoilt",
    [
        "supersede_key = x'ff'",
        "priority = 'abc'",
        "body = 'text'",
        "trace_id = x'ff', tries = 9223372036854775807",
        "job = 'abc'",
        "expires_at = x'00'",
        "shard = 999",
    ],
)
async def test_a_spoilt_command_of_sqlite_fails_alone(store: SqlOutbox, engine: Engine, spoilt: str) -> None:
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL's columns have types")
    add(engine, device="d1", supersede_key="k")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE holdfast_outbox_command SET {spoilt}"))
    add(engine, device="d1", supersede_key="other", body="next")
    add(engine, device="d2", supersede_key="k")
    dispatcher = await owner_of_all(store)
    turned = await dispatcher.turn(brief=True)
    assert sorted((sending.device, sending.body) for sending in turned.sendings) == [
        ("d1", b"next"),
        ("d2", b'{"open": true}'),
    ]
    [closed] = turned.closed
    assert (closed.id, closed.state) == (1, CommandState.FAILED)
    assert "its row" in closed.reason
    for told in await store.briefs(OUTBOX, range(SHARDS), 10):
        assert brief_of("app", OUTBOX, told, "node")
    assert [entry.id for entry in await store.commands(OUTBOX, state=CommandState.FAILED)] == [1]


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE holdfast_outbox_arrival SET supersede_key = x'ff' WHERE device = 'd1'",
        "UPDATE holdfast_outbox_arrival SET command = 'abc' WHERE device = 'd1'",
        "UPDATE holdfast_outbox_arrival SET lane = 'abc' WHERE device = 'd1'",
        "UPDATE holdfast_outbox_arrival SET device = x'ff' WHERE device = 'd1'",
        HEAD.format("device", "'gone', 'abc', x'00'"),
        HEAD.format("x'ff'", "'waiting', 0, 1"),
    ],
)
async def test_a_spoilt_row_of_sqlite_beside_a_command_stops_no_other_device(
    store: SqlOutbox, engine: Engine, spoil: str
) -> None:
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL's columns have types")
    add(engine, device="d1", supersede_key="k")
    add(engine, device="d2", supersede_key="k")
    with engine.begin() as connection:
        connection.execute(text(spoil))
    dispatcher = await owner_of_all(store)
    sendings = await dispatcher.send()
    assert "d2" in {sending.device for sending in sendings}
    known = [each.device for shard in range(SHARDS) for each in await store.known(OUTBOX, shard)]
    assert {*known} <= {"d1", "d2"}


@pytest.mark.parametrize("state", ["gone", "acknowledged"])
async def test_a_command_that_another_program_closed_while_it_was_held_stops_nobody(
    store: SqlOutbox, engine: Engine, state: str
) -> None:
    add(engine, device="d1")
    add(engine, device="d2")
    with engine.begin() as connection:
        connection.execute(text(HEAD.format("device", "'held', id, 1")))
        connection.execute(text(f"UPDATE holdfast_outbox_command SET state = '{state}' WHERE device = 'd1'"))
    dispatcher = await owner_of_all(store)
    assert [sending.device for sending in await dispatcher.send()] == ["d2"]


async def owner_of_all(store: SqlOutbox) -> ManualDispatcher:
    """A dispatcher that owns all shards, now."""
    dispatcher = ManualDispatcher(store)
    for shard, epoch in (await store.epochs(OUTBOX)).items():
        dispatcher.grants[shard] = await store.open(OUTBOX, shard, epoch, "member")
    dispatcher.now = time.time()
    return dispatcher


async def test_text_of_sqlite_that_is_none_holds_up_one_turn_at_most(
    store: SqlOutbox, engine: Engine
) -> None:
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL keeps no text that is none")
    add(engine, device="d1")
    add(engine, device="d2")
    with engine.begin() as connection:
        spoil = "UPDATE holdfast_outbox_command SET trace_id = CAST(x'ff41' AS TEXT) WHERE device = 'd1'"
        connection.execute(text(spoil))
    dispatcher = await owner_of_all(store)
    with pytest.raises(HoldfastError, match="UTF-8"):
        await dispatcher.turn()
    sendings = await dispatcher.send()
    assert sorted((sending.device, sending.trace_id) for sending in sendings) == [
        ("d1", "\ufffdA"),
        ("d2", ""),
    ]
