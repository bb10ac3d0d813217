"""Faults in front of a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from simulator.proxies import TcpFaults
from simulator.servers import RedisServer

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def faults(redis_server: RedisServer) -> AsyncIterator[TcpFaults]:
    async with TcpFaults(redis_server.port) as proxy:
        yield proxy


async def connect(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(connection: Connection, command: str) -> str:
    """The first line of an answer."""
    reader, writer = connection
    writer.write(f"{command}\r\n".encode())
    line = await reader.readline()
    if not line:
        raise ConnectionResetError
    return line.decode().strip()


async def number(redis: RedisServer, name: str = "number") -> str:
    """A number that the tests count up, asked past the proxy."""
    reader, writer = connection = await connect(redis.port)
    try:
        await ask(connection, f"GET {name}")
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()


async def test_bytes_pass_through_the_proxy_and_are_counted(faults: TcpFaults) -> None:
    connection = await connect(faults.port)
    assert await ask(connection, "PING") == "+PONG"
    assert (faults.accepted, faults.connections) == (1, 1)
    assert (faults.bytes_in, faults.bytes_out) == (len("PING\r\n"), len("+PONG\r\n"))
    big = "x" * 5_000_000
    connection[1].write(f"*2\r\n$4\r\nECHO\r\n${len(big)}\r\n{big}\r\n".encode())
    await connection[0].readline()
    assert (await connection[0].readexactly(len(big))).decode() == big
    connection[1].close()


@pytest.mark.slow
async def test_both_ways_take_their_time_but_share_it(faults: TcpFaults) -> None:
    loop = asyncio.get_running_loop()
    faults.delay_s = 0.2
    reader, writer = await connect(faults.port)
    asked_at = loop.time()
    for _ in range(20):
        writer.write(b"PING\r\n")
        await asyncio.sleep(0)
    for _ in range(20):
        assert await reader.readline() == b"+PONG\r\n"
    assert 0.4 <= loop.time() - asked_at < 4.0
    writer.close()


async def test_nothing_passes_while_frozen_and_all_afterwards(faults: TcpFaults) -> None:
    old = await connect(faults.port)
    assert await ask(old, "PING") == "+PONG"
    faults.freeze()
    new = await connect(faults.port)
    waiting = [asyncio.create_task(ask(connection, "PING")) for connection in (old, new)]
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    assert not done
    faults.thaw()
    assert await asyncio.gather(*waiting) == ["+PONG", "+PONG"]
    for _, writer in (old, new):
        writer.close()


async def test_connections_are_cut_and_new_ones_stand(faults: TcpFaults) -> None:
    connections = [await connect(faults.port) for _ in range(3)]
    for connection in connections:
        await ask(connection, "PING")
    assert faults.cut() == 3
    for connection in connections:
        with pytest.raises(ConnectionResetError):
            await ask(connection, "PING")
    again = await connect(faults.port)
    assert await ask(again, "PING") == "+PONG"
    again[1].close()


async def test_connections_are_cut_once_so_much_went_over_them_which_the_server_gets(
    faults: TcpFaults, redis_server: RedisServer
) -> None:
    known = 0
    for size, done in ((16, 2), (19, 2), (8, 1)):
        connection = await connect(faults.port)
        record = faults.record()
        faults.cut_after(size)
        connection[1].write(b"INCR n\r\n" * 3)
        with pytest.raises(ConnectionResetError):
            await connection[0].readuntil(b"never")
        assert record == (b"INCR n\r\n" * 3)[:size]
        known += done
        while (count := int(await number(redis_server, "n"))) != known:
            assert count < known


async def test_an_outage_cuts_and_refuses_connections_until_it_ends(faults: TcpFaults) -> None:
    connection = await connect(faults.port)
    await ask(connection, "PING")
    faults.refuse()
    with pytest.raises(ConnectionResetError):
        await ask(connection, "PING")
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await connect(faults.port)
    await faults.accept()
    again = await connect(faults.port)
    assert await ask(again, "PING") == "+PONG"
    again[1].close()


async def test_an_answer_is_lost_after_its_effect(faults: TcpFaults, redis_server: RedisServer) -> None:
    connection = await connect(faults.port)
    assert await ask(connection, "SET number 1") == "+OK"
    faults.lose_replies()
    with pytest.raises(ConnectionResetError):
        await ask(connection, "INCR number")
    assert await number(redis_server) == "2"
    again = await connect(faults.port)
    assert await ask(again, "INCR number") == ":3"
    again[1].close()


async def test_a_server_that_is_away_resets() -> None:
    async with TcpFaults(9) as faults:
        with pytest.raises(ConnectionResetError):
            await ask(await connect(faults.port), "PING")


async def test_a_client_that_hangs_up_is_seen_by_the_server() -> None:
    seen = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b"all"
        writer.write(b"bye\n")
        writer.close()
        seen.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with TcpFaults(server.sockets[0].getsockname()[1]) as faults:
        reader, writer = await connect(faults.port)
        writer.write(b"all")
        writer.write_eof()
        await asyncio.wait_for(seen.wait(), 10)
        assert await reader.read() == b"bye\n"
        writer.close()
    server.close()
