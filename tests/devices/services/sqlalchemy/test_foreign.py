"""Commands that programs in other languages add in plain SQL, and rows that they spoil."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from holdfast.devices.briefs import brief_of
from holdfast.devices.conformance.outbox_bench import OUTBOX, Driver, answer
from holdfast.devices.ports.outbox import WriterSettings
from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer

SHARDS, LANES = 7, 3
DEVICES = ["d1", "2042253", "A.b:c-d_e", "x" * 128, *(f"door-{n}" for n in range(20))]

POSTGRESQL = "SELECT holdfast_outbox_add({})"
SQLITE = "INSERT INTO holdfast_outbox_add ({}) VALUES ({})"
HEAD = (
    "INSERT INTO holdfast_outbox_head (outbox, device, lane, shard, phase, command, due)"
    " SELECT outbox, {}, lane, shard, {} FROM holdfast_outbox_command WHERE device = 'd1'"
)


sqlite_only = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For rows of wrong types, which PostgreSQL refuses."""


@pytest.fixture
def postgresql_server(emptied_postgresql: PostgresqlServer) -> PostgresqlServer:
    return emptied_postgresql  # these tests spoil rows, and no tables


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlOutbox]:
    store = SqlOutbox(url, SystemClock())
    await store.prepare(OUTBOX, SHARDS, WriterSettings(lanes=LANES, expires_in_s=60.0, max_body=100))
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
    driver = await owner_of_all(store)
    result = await driver.take_turn()
    assert [entry.state for entry in result.closed] == [CommandState.SUPERSEDED]
    [sending] = result.sendings
    assert sending.body == b'{"n": 2}'
    assert len((await driver.take_turn(answers=[answer(sending)])).closed) == 1


async def test_a_dispatcher_is_woken_by_them(store: SqlOutbox, engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite wakes nobody in another process; a dispatcher looks every two seconds")
    await store.wait_for_arrival(OUTBOX, 0.01)
    waiting = asyncio.ensure_future(store.wait_for_arrival(OUTBOX, 3600))
    await asyncio.sleep(0)
    await asyncio.to_thread(add, engine, device="d1")
    await asyncio.wait_for(waiting, 30)


async def test_a_command_from_a_foreign_writer_keeps_all_its_fields(store: SqlOutbox, engine: Engine) -> None:
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
async def test_an_invalid_command_in_sql_is_refused(
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


async def test_a_spoilt_command_is_named_and_stops_no_other(store: SqlOutbox, engine: Engine) -> None:
    add(engine, device="d1", dedupe_key="spoilt")
    add(engine, device="d2")
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE holdfast_outbox_command SET state = 'gone' WHERE dedupe_key = 'spoilt'")
        )
    with pytest.raises(InvalidMessage, match="'gone'"):
        await store.command(1)
    driver = await owner_of_all(store)
    assert [sending.device for sending in await driver.send()] == ["d2"]


@sqlite_only
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
async def test_a_value_of_a_wrong_type_in_sqlite_is_refused(
    store: SqlOutbox, engine: Engine, fields: dict[str, Any]
) -> None:

    [name] = fields
    with pytest.raises(DBAPIError, match=rf"holdfast: .*{name}.* must be"):
        add(engine, device="d1", **fields)
    assert await store.commands(OUTBOX) == []


@sqlite_only
@pytest.mark.parametrize(
    "spoilt",
    [
        "supersede_key = x'ff'",
        "priority = 'abc'",
        "body = 'text'",
        "traceparent = x'ff'",
        "trace_id = x'ff', tries = 9223372036854775807",
        "rollout = 'abc'",
        "expires_at = x'00'",
        "shard = 999",
    ],
)
async def test_a_spoilt_command_of_sqlite_fails_alone(store: SqlOutbox, engine: Engine, spoilt: str) -> None:
    add(engine, device="d1", supersede_key="k")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE holdfast_outbox_command SET {spoilt}"))
    add(engine, device="d1", supersede_key="other", body="next")
    add(engine, device="d2", supersede_key="k")
    driver = await owner_of_all(store)
    result = await driver.take_turn(brief=True)
    assert sorted((sending.device, sending.body) for sending in result.sendings) == [
        ("d1", b"next"),
        ("d2", b'{"open": true}'),
    ]
    [closed] = result.closed
    assert (closed.id, closed.state) == (1, CommandState.FAILED)
    assert "its row" in closed.reason
    for ended in await store.pending_briefs(OUTBOX, range(SHARDS), 10):
        assert brief_of("app", OUTBOX, ended, "node")
    assert [entry.id for entry in await store.commands(OUTBOX, state=CommandState.FAILED)] == [1]


@sqlite_only
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
    add(engine, device="d1", supersede_key="k")
    add(engine, device="d2", supersede_key="k")
    with engine.begin() as connection:
        connection.execute(text(spoil))
    driver = await owner_of_all(store)
    sendings = await driver.send()
    assert "d2" in {sending.device for sending in sendings}
    known = [each.device for shard in range(SHARDS) for each in await store.known_devices(OUTBOX, shard)]
    assert {*known} <= {"d1", "d2"}


@pytest.mark.parametrize("state", ["gone", "acknowledged"])
async def test_a_held_command_closed_by_another_program_stops_no_other(
    store: SqlOutbox, engine: Engine, state: str
) -> None:
    add(engine, device="d1")
    add(engine, device="d2")
    with engine.begin() as connection:
        connection.execute(text(HEAD.format("device", "'held', id, 1")))
        connection.execute(text(f"UPDATE holdfast_outbox_command SET state = '{state}' WHERE device = 'd1'"))
    driver = await owner_of_all(store)
    assert [sending.device for sending in await driver.send()] == ["d2"]


@sqlite_only
@pytest.mark.nightly
@pytest.mark.parametrize(
    "spoil",
    [
        "SET below = 'abc'",
        "SET command = x'00'",
        "SET device = x'ff'",
        "SET supersede_key = x'ff'",
    ],
)
async def test_a_spoilt_cancellation_of_sqlite_is_named_and_dropped(
    store: SqlOutbox, engine: Engine, spoil: str
) -> None:
    add(engine, device="d1")
    add(engine, device="d2")
    assert await store.cancel_all(OUTBOX, device="d1") == 1
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE holdfast_outbox_cancel {spoil}"))
    assert await store.cancel_all(OUTBOX, device="d2") == 1
    driver = await owner_of_all(store)
    with capture_logs() as lines:
        result = await driver.take_turn()
        await driver.take_turn()
    assert [entry.device for entry in result.closed] == ["d2"]
    assert [sending.device for sending in result.sendings] == ["d1"]
    [line] = lines
    assert (line["table"], line["row"][:3]) == ("holdfast_outbox_cancel", "1, ")


@pytest.mark.parametrize("late", [False, True], ids=["out", "done"])
async def test_a_device_that_another_number_of_shards_has_left_elsewhere_goes_on(
    store: SqlOutbox, engine: Engine, late: bool
) -> None:
    add(engine, device="d1", body="first", supersede_key="k")
    driver = await owner_of_all(store)
    [sending] = (await driver.take_turn()).sendings
    if late:
        await driver.take_turn(answers=[answer(sending)])
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE holdfast_outbox_head SET shard = {(sending.shard + 1) % SHARDS}"))
    add(engine, device="d1", body="second", supersede_key="k")
    driver.now = sending.due
    sent = [*(await driver.take_turn()).sendings, *(await driver.take_turn()).sendings]
    assert [(each.body, each.shard) for each in sent] == [(b"second" if late else b"first", sending.shard)]
    assert await store.in_flight(OUTBOX, [sending.shard]) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    "spoil", ["epoch = 'abc'", "epoch = x'00'", "epoch = 99999999999", "epoch = -1", "shard = 999"]
)
async def test_a_spoilt_shard_is_named_and_the_others_are_served(
    store: SqlOutbox, engine: Engine, spoil: str
) -> None:
    if engine.dialect.name != "sqlite" and ("'" in spoil):
        pytest.skip("PostgreSQL's columns have types")
    lost = zlib.crc32(b"d1") % SHARDS
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE holdfast_outbox_shard SET {spoil} WHERE shard = {lost}"))
    for device in DEVICES:
        add(engine, device=device)
    with capture_logs() as lines:
        await store.prepare(OUTBOX, SHARDS)
        driver = await owner_of_all(store)
    assert sorted(driver.grants) == sorted({*range(SHARDS)} - {lost})
    assert [line["table"] for line in lines] == ["holdfast_outbox_shard"]
    served = {device for device in DEVICES if zlib.crc32(device.encode()) % SHARDS != lost}
    assert {sending.device for sending in await driver.send()} == served != {*DEVICES}
    assert {status.device for status in await store.devices(OUTBOX)} == served


@sqlite_only
async def test_spoilt_pauses_of_sqlite_are_named_and_hold(store: SqlOutbox, engine: Engine) -> None:

    for device in ("d1", "d2", "d3"):
        add(engine, device=device)
        await store.pause(OUTBOX, device)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE holdfast_outbox_pause SET paused_at = 'yesterday' WHERE device = 'd1'")
        )
        connection.execute(text("UPDATE holdfast_outbox_pause SET device = x'ff' WHERE device = 'd2'"))
    with capture_logs() as lines:
        paused = await store.paused(OUTBOX)
    assert ({*paused}, paused["d1"]) == ({"d1", "d3"}, 0.0)
    assert min(line["row"] for line in lines) == "'d1', 'yesterday'"
    driver = await owner_of_all(store)
    assert [sending.device for sending in await driver.send()] == ["d2"]


async def test_commands_in_a_state_that_there_is_not_are_named_and_the_others_counted(
    store: SqlOutbox, engine: Engine
) -> None:
    for device in ("d1", "d2", "d3"):
        add(engine, device=device)
    with engine.begin() as connection:
        connection.execute(text("UPDATE holdfast_outbox_command SET state = 'gone' WHERE device = 'd2'"))
    with capture_logs() as lines:
        counts = await store.counts(OUTBOX)
        assert await store.counts(OUTBOX) == counts
    assert counts == {CommandState.SCHEDULED: 2}
    assert [(line["table"], line["row"]) for line in lines] == [("holdfast_outbox_command", "2, 'gone'")]


async def test_spoilt_heads_and_signs_of_life_leave_the_list_of_devices(
    store: SqlOutbox, engine: Engine
) -> None:
    for device in ("d1", "d2"):
        add(engine, device=device)
    driver = await owner_of_all(store)
    await driver.take_turn(seen={"d1": 5.0, "d2": 6.0})
    spoil = ["UPDATE holdfast_outbox_head SET phase = 'gone' WHERE device = 'd1'"]
    if engine.dialect.name == "sqlite":
        spoil.append("UPDATE holdfast_outbox_device SET seen_at = 'abc' WHERE device = 'd1'")
        spoil.append("INSERT INTO holdfast_outbox_device VALUES ('doors', x'ff', 1.0, 0)")
    with engine.begin() as connection:
        for each in spoil:
            connection.execute(text(each))
    with capture_logs() as lines:
        first, second = await store.devices(OUTBOX)
    assert (first.device, first.phases, second.seen_at) == ("d1", (), 6.0)
    assert first.seen_at == (None if engine.dialect.name == "sqlite" else 5.0)
    assert len(lines) == len(spoil)
    known = [each for shard in range(SHARDS) for each in await store.known_devices(OUTBOX, shard)]
    assert {each.device for each in known} == {"d1", "d2"}, "whoever is sent to is watched"


@pytest.mark.parametrize("spoil", ["brief SET closed_at = 5", "command SET closed_at = 5"])
async def test_a_brief_whose_time_was_spoilt_is_sent_once(
    store: SqlOutbox, engine: Engine, spoil: str
) -> None:
    add(engine, device="d1")
    driver = await owner_of_all(store)
    [sending] = await driver.send()
    await driver.take_turn(answers=[answer(sending)], brief=True)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE holdfast_outbox_{spoil}"))
    ends = await store.pending_briefs(OUTBOX, range(SHARDS), 10)
    assert len(ends) == 1
    await store.confirm_briefs(OUTBOX, ends)
    assert await store.pending_briefs(OUTBOX, range(SHARDS), 10) == []


async def owner_of_all(store: SqlOutbox) -> Driver:
    """Return a dispatcher that owns all shards, now."""
    driver = Driver(store, shards=SHARDS)
    await driver.open()
    driver.now = time.time()
    return driver


@sqlite_only
async def test_text_of_sqlite_that_is_none_holds_up_one_turn_at_most(
    store: SqlOutbox, engine: Engine
) -> None:
    add(engine, device="d1")
    add(engine, device="d2")
    with engine.begin() as connection:
        spoil = "UPDATE holdfast_outbox_command SET trace_id = CAST(x'ff41' AS TEXT) WHERE device = 'd1'"
        connection.execute(text(spoil))
    driver = await owner_of_all(store)
    with pytest.raises(HoldfastError, match="UTF-8"):
        await driver.take_turn()
    sendings = await driver.send()
    assert sorted((sending.device, sending.trace_id) for sending in sendings) == [
        ("d1", "\ufffdA"),
        ("d2", ""),
    ]
