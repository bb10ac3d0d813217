"""One connection for all calls: what is sent together, and what a caller learns when it breaks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio.connection import Connection

from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.services.redis.lane import BATCH_MAX, Lane, is_broken
from holdfast.services.redis.refusals import Parser, RedisRefused

PATIENCE_S = 30.0
Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Town:
    """A server that says what a test wants, and lanes to it."""

    def __init__(self) -> None:
        self.port = 0
        self.arrived = 0
        self.heard = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._lanes: list[Lane] = []
        self.connections: list[Connection] = []
        """The connections that its lanes have made."""
        self.on_connected: Callable[[], None] = lambda: None

    async def serve(self, speak: Speak) -> None:
        async def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.arrived += 1
            try:
                await speak(reader, writer)
            finally:
                writer.close()

        self._server = await asyncio.start_server(arrive, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def deafen(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.close()

    def lane(self, timeout_s: float = PATIENCE_S) -> Lane:
        async def connect() -> Connection:
            connection = Connection(
                host="127.0.0.1",
                port=self.port,
                protocol=2,
                parser_class=Parser,
                socket_timeout=None,
                socket_connect_timeout=None,
            )
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
            except Exception as error:
                raise Unavailable(str(error)) from error
            self.connections.append(connection)
            self.on_connected()
            return connection

        lane = Lane("server", connect, timeout_s)
        self._lanes.append(lane)
        return lane

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()
        if self._server is not None:
            self._server.close()


async def command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[bytes]:
    """The next command of a client, after its handshake."""
    while True:
        count = int((await reader.readline())[1:])
        words = []
        for _ in range(count):
            length = int((await reader.readline())[1:])
            words.append((await reader.readexactly(length + 2))[:-2])
        if words[0] != b"CLIENT":
            return words
        writer.write(b"+OK\r\n")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each command with its last word, or with the error that it asks for."""
    while not reader.at_eof():
        try:
            *_, last = await command(reader, writer)
        except (asyncio.IncompleteReadError, ValueError):
            return
        writer.write((b"-%b\r\n" if last.isupper() else b"+%b\r\n") % last)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town()
    yield town
    await town.close()


async def test_concurrent_calls_share_a_connection_and_each_gets_its_answer(town: Town) -> None:
    await town.serve(echo)
    lane = town.lane()
    words = [str(i) for i in range(3 * BATCH_MAX)]
    assert await asyncio.gather(*(lane.call("ECHO", word) for word in words)) == [w.encode() for w in words]
    assert town.arrived == 1


async def test_calls_of_one_moment_are_sent_before_the_first_is_answered(town: Town) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        words = [await command(reader, writer) for _ in range(10)]
        writer.writelines(b"+%b\r\n" % last for *_, last in words)

    await town.serve(speak)
    lane = town.lane()
    answers = await asyncio.gather(*(lane.call("ECHO", str(i)) for i in range(10)))
    assert answers == [str(i).encode() for i in range(10)]


async def test_what_is_large_goes_in_batches_of_its_own(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.services.redis.lane.BATCH_BYTES_MAX", 100)
    waiting = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading = asyncio.ensure_future(command(reader, writer))
        for _ in range(5):
            words = await reading
            reading = asyncio.ensure_future(command(reader, writer))
            await asyncio.wait([reading], timeout=0.1)
            waiting.append((len(words[-1]), reading.done()))
            writer.write(b"+OK\r\n")

    await town.serve(speak)
    lane = town.lane()
    await asyncio.gather(*(lane.call("SET", "x" * size) for size in (1, 2, 500, 3, 4)))
    assert waiting == [(1, True), (2, False), (500, False), (3, True), (4, False)]


async def test_a_refusal_is_of_one_call_only(town: Town) -> None:
    await town.serve(echo)
    lane = town.lane()
    calls = [lane.call("ECHO", word) for word in ("a", "LOADING", "NOAUTH", "b")]
    a, loading, noauth, b = await asyncio.gather(*calls, return_exceptions=True)
    assert (a, b) == (b"a", b"b")
    assert isinstance(loading, RedisRefused)
    assert isinstance(noauth, RedisRefused)
    assert (loading.code, noauth.code) == ("LOADING", "NOAUTH")
    assert town.arrived == 1, "no refusal breaks the connection"


async def test_what_was_not_sent_may_be_sent_again(town: Town) -> None:
    await town.serve(echo)
    await town.deafen()
    with pytest.raises(Unavailable):
        await town.lane().call("ECHO", "a")


async def test_a_connection_that_is_not_made_in_time_sends_nothing() -> None:
    async def connect() -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    lane = Lane("server", connect, 0.05)
    with pytest.raises(Unavailable, match="no connection within"):
        await lane.call("ECHO", "a")
    await lane.close()


async def test_an_answer_lost_with_its_connection_is_unknown(town: Town) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        *_, last = await command(reader, writer)
        if last == b"first":
            writer.write(b"+first\r\n")
            await command(reader, writer)  # and goes, without an answer
        else:
            writer.write(b"+again\r\n")

    await town.serve(speak)
    lane = town.lane()
    calls = [lane.call("ECHO", word) for word in ("first", "second", "third")]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert first == b"first"
    assert isinstance(second, OutcomeUnknown)
    assert isinstance(third, OutcomeUnknown)
    assert await lane.call("ECHO", "again") == b"again"


async def test_an_answer_that_takes_too_long_is_unknown_and_never_taken_for_another(town: Town) -> None:
    slow = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        *_, last = await command(reader, writer)
        if last == b"slow":
            await slow.wait()
        writer.write(b"+%b\r\n" % last)

    await town.serve(speak)
    lane = town.lane(0.05)
    with pytest.raises(OutcomeUnknown, match="no answer within"):
        await lane.call("ECHO", "slow")
    slow.set()
    assert await lane.call("ECHO", "quick") == b"quick"


async def test_a_connection_that_broke_while_idle_costs_no_call(town: Town) -> None:
    gone = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        *_, last = await command(reader, writer)
        writer.write(b"+%b\r\n" % last)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        gone.set()

    await town.serve(speak)
    lane = town.lane()
    for word in (b"a", b"b", b"c"):
        assert await lane.call("ECHO", word) == word
        await gone.wait()
        gone.clear()
        async with asyncio.timeout(PATIENCE_S):
            while not is_broken(town.connections[-1]):  # noqa: ASYNC110 - the loop hears of it
                await asyncio.sleep(0)
    assert town.arrived == 3


async def test_who_waits_no_more_disturbs_nobody(town: Town) -> None:
    go = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            *_, last = await command(reader, writer)
            town.heard.set()
            await go.wait()
            writer.write(b"+%b\r\n" % last)
            if last == b"last":
                return

    await town.serve(speak)
    lane = town.lane()
    sent, unsent = lane.call("ECHO", "sent"), None
    await town.heard.wait()
    unsent, last = lane.call("ECHO", "unsent"), lane.call("ECHO", "last")
    sent.cancel()
    unsent.cancel()
    go.set()
    assert await last == b"last"
    assert town.arrived == 1


async def test_who_is_led_to_the_wrong_server_leaves_it_after_the_answers(town: Town) -> None:
    await town.serve(echo)
    lane = town.lane()
    assert await lane.call("ECHO", "a") == b"a"
    calls = [lane.call("ECHO", word) for word in ("READONLY", "b")]
    lane.leave()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers[1] == b"b"
    assert await lane.call("ECHO", "c") == b"c"
    assert town.arrived == 2


async def test_asking_is_sent_right_before_its_command(town: Town) -> None:
    heard = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            heard.append(await command(reader, writer))
            writer.write(b"+%d\r\n" % len(heard))

    await town.serve(speak)
    lane = town.lane()
    first, second = lane.call("GET", "a"), lane.call("GET", "b", asking=True)
    assert (await first, await second) == (b"1", b"3")
    assert heard == [[b"GET", b"a"], [b"ASKING"], [b"GET", b"b"]]


async def test_closing_fails_what_is_under_way_and_what_comes(town: Town) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await command(reader, writer)
        town.heard.set()
        await reader.read()

    await town.serve(speak)
    lane = town.lane()
    sent = lane.call("ECHO", "sent")
    await town.heard.wait()
    unsent = lane.call("ECHO", "unsent")
    await lane.close()
    with pytest.raises(OutcomeUnknown):
        await sent
    for call in (unsent, lane.call("ECHO", "late")):
        with pytest.raises(Unavailable, match="closed"):
            await call
    await lane.close()


async def test_who_is_led_elsewhere_while_the_connection_is_made_does_not_keep_that_one(town: Town) -> None:
    await town.serve(echo)
    lane = town.lane()

    def be_led_elsewhere() -> None:
        if len(town.connections) == 1:
            lane.leave()

    town.on_connected = be_led_elsewhere
    assert await lane.call("ECHO", "a") == b"a"
    assert town.arrived == 2
    assert is_broken(town.connections[0]), "it is closed"
