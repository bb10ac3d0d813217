"""PostgreSQL on a full disk."""

import asyncio
import contextlib
import itertools

import pytest

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.queue import Outgoing
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.services.postgres.state import PostgresState
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

FULL_BYTES = 24 << 20
"""More than a file of the server's log has, so that it isn't this one that is full."""

LARGE = bytes(1 << 20)
A_FEW_BYTES = 8192
LONG_S = 60.0


async def send_until_refused(queue: PostgresQueue, body: bytes) -> tuple[int, HoldfastError]:
    """How many messages could be sent, and the error of the next."""
    for sent in itertools.count():
        try:
            await queue.send([Outgoing(body)])
        except HoldfastError as error:
            return sent, error
    raise AssertionError


@pytest.mark.nightly
async def test_what_a_full_disk_refuses_had_no_effect_and_goes_once_there_is_room(
    make_database: MakeDatabase,
) -> None:
    async with PostgresqlServer() as server:
        database, clock = make_database(server.url), SystemClock()
        queue = PostgresQueue(PostgresMessages(database, clock), "q", clock, max_bytes=2 << 20)
        state = PostgresState(database, clock, max_state_bytes=32 << 20)
        opened = await state.open("s/k", 0, "m")
        server.limit_files(FULL_BYTES)
        sent, refused = await send_until_refused(queue, LARGE)
        assert isinstance(refused, Unavailable)
        assert "File too large" in str(refused)  # where a full disk has "No space left on device"
        assert (await queue.depth()).ready == sent
        assert sent > 10
        commit = Commit("s/k", opened.epoch, 1, "c", None, state=LARGE * 30, results=(Result("0:0", b"r"),))
        with pytest.raises(Unavailable, match="File too large"):
            await state.commit(commit)
        assert await state.peek("s/k") == opened
        assert await state.results(0, 10) == []
        deliveries = await queue.receive(sent, LONG_S, LONG_S, "m")
        await queue.delete([delivery.receipt for delivery in deliveries])
        server.limit_files(1 << 40)
        await state.commit(commit)
        standing = await state.peek("s/k")
        assert isinstance(standing, Checkpoint)
        assert standing.state == commit.state
        await queue.send([Outgoing(LARGE)])
        assert (await queue.depth()).ready == sent - len(deliveries) + 1
        await database.close()


@pytest.mark.nightly
async def test_a_server_that_cannot_write_its_log_loses_nothing_that_was_answered(
    make_database: MakeDatabase,
) -> None:
    async with PostgresqlServer(fsync=True) as server:
        database, clock = make_database(server.url), SystemClock()
        queue = PostgresQueue(PostgresMessages(database, clock), "q", clock, max_bytes=2 << 20)
        sending = asyncio.ensure_future(send_until_refused(queue, b"x"))
        while (await queue.depth()).ready < 20:
            pass
        server.limit_files(A_FEW_BYTES)
        answered, refused = await sending
        assert isinstance(refused, Unavailable | OutcomeUnknown)
        await server.restart()
        depth = None
        while depth is None:
            with contextlib.suppress(Unavailable):  # the connection was lost with the server
                depth = await queue.depth()
        assert depth.ready in (answered, answered + 1), "one of unknown outcome may be there"
        await database.close()
