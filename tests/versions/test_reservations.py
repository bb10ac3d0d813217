"""A queue of which this version has reserved a key, beside nodes of the last release, which know no keys."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.config.settings import Config
from holdfast.ports.queue import Outgoing
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.wiring.services import Services
from simulator.servers import PostgresqlServer
from tests.versions import released

LONG_S = 60.0

RECEIVE = """
import asyncio, sys
from holdfast.config import Config
from holdfast.ports.queue import Outgoing
from holdfast.wiring import Services

async def main(url):
    async with Services(Config(url=url)) as services:
        queue = services.queue("q")
        received = sorted(await queue.receive(10, 0.2, 60, "old"), key=lambda delivery: delivery.body)
        print(*(delivery.body.decode() for delivery in received))
        await queue.give_back([delivery.receipt for delivery in received[:1]], 0)
        await queue.delete([delivery.receipt for delivery in received[1:]])
        await queue.send([Outgoing(b"sent", key="a")])

asyncio.run(main(sys.argv[1]))
"""


async def received_by_the_last_release(url: str) -> list[str]:
    """Have it receive, give the first back, delete the others, and send one; returns what it received."""
    process = await asyncio.create_subprocess_exec(
        released.python(), "-c", RECEIVE, url, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode().split()


@pytest.mark.nightly
async def test_nodes_of_the_last_release_leave_alone_what_is_kept_until_nobody_keeps_it(
    postgresql_server: PostgresqlServer,
) -> None:
    async with Services(Config(url=postgresql_server.url)) as services:
        queue = services.queue("q")
        assert isinstance(queue, PostgresQueue)
        await queue.send([Outgoing(b"a%d" % number, key="a") for number in range(3)])
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.receive(3, 0.1, LONG_S, "other") == []
        assert await received_by_the_last_release(postgresql_server.url) == []
        with psycopg.connect(postgresql_server.url) as connection:
            connection.execute("UPDATE holdfast.messages SET visible_at = 1 WHERE visible_at IS NOT NULL")
        assert await received_by_the_last_release(postgresql_server.url) == ["a0", "a1", "a2", "sent"]
        taken = await queue.take("a", "node", 3, LONG_S)
        assert taken is not None
        assert [delivery.body for delivery in taken.deliveries] == [b"a0"]
        [delivery] = await queue.receive(1, LONG_S, LONG_S, "other")
        assert delivery.body == b"sent"


@pytest.mark.nightly
async def test_nodes_of_the_last_release_use_a_file_with_reservations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hold.db'}"
    async with Services(Config(url=url)) as services:
        queue = services.queue("q")
        assert isinstance(queue, SqliteQueue)
        await queue.send([Outgoing(b"a%d" % number, key="a") for number in range(3)])
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.receive(3, 0.1, LONG_S, "other") == []
        assert await received_by_the_last_release(url) == []
        with closing(sqlite3.connect(tmp_path / "hold.db", timeout=LONG_S)) as connection, connection:
            connection.execute("UPDATE messages SET visible_at = 1 WHERE state = 2")
        assert await received_by_the_last_release(url) == ["a0", "a1", "a2", "sent"]
        taken = await queue.take("a", "node", 3, LONG_S)
        assert taken is not None
        assert [delivery.body for delivery in taken.deliveries] == [b"a0"]
        [delivery] = await queue.receive(1, LONG_S, LONG_S, "other")
        assert delivery.body == b"sent"
