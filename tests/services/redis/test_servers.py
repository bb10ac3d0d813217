"""The choice of servers by Sentinels that the tests script."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.services.redis.connection import RedisConnection
from simulator.servers import RedisServer
from tests.services.redis.conftest import Connect
from tests.services.redis.test_lane import command

PATIENCE_S = 30.0


class ScriptedSentinel:
    """A Sentinel with scripted answers."""

    def __init__(self, master: RedisServer, password: str) -> None:
        self.master = master
        self.port = 0
        self.followed = asyncio.Event()
        self._password = password
        self._followers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._speak, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def switch(self, master: RedisServer) -> None:
        """Name another master, and notify subscribers."""
        self.master = master
        for writer in self._followers:
            writer.write(b"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$4\r\nmain\r\n")

    def hang_up(self) -> None:
        """Leave those who listen."""
        for writer in self._followers:
            writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        let_in = not self._password
        try:
            while True:
                name, *words = await command(reader, writer)
                if name == b"AUTH":
                    let_in = words[-1] == self._password.encode()
                    writer.write(b"+OK\r\n" if let_in else b"-ERR AUTH without any password configured\r\n")
                elif not let_in:
                    writer.write(b"-NOAUTH Authentication required.\r\n")
                elif name == b"SUBSCRIBE":
                    writer.write(b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
                    self._followers.append(writer)
                    self.followed.set()
                else:
                    port = str(self.master.port).encode()
                    writer.write(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port))
        except (asyncio.IncompleteReadError, ValueError, ConnectionError):
            writer.close()


SentinelAt = Callable[..., Awaitable[ScriptedSentinel]]


@pytest.fixture
async def sentinel_at() -> AsyncIterator[SentinelAt]:
    """Makes Sentinels that name a master."""
    made = []

    async def sentinel_at(master: RedisServer, password: str = "") -> ScriptedSentinel:
        made.append(ScriptedSentinel(master, password))
        await made[-1].start()
        return made[-1]

    yield sentinel_at
    for sentinel in made:
        await sentinel.close()


@pytest.fixture
async def other_server() -> AsyncIterator[RedisServer]:
    async with RedisServer() as server:
        yield server


def url(*sentinels: ScriptedSentinel, who: str = "") -> str:
    return f"redis+sentinel://{who}{','.join(f'127.0.0.1:{s.port}' for s in sentinels)}/main"


async def port_of(connection: RedisConnection) -> int:
    [(_, answer)] = await connection.everywhere("CONFIG", "GET", "port")
    return int(answer[1])


async def test_a_new_master_is_followed_while_the_old_one_lives(
    redis_server: RedisServer, other_server: RedisServer, sentinel_at: SentinelAt, connect: Connect
) -> None:
    sentinel, late = await sentinel_at(redis_server), await sentinel_at(redis_server)
    connection = connect(url(sentinel, late))
    assert await port_of(connection) == redis_server.port
    subscription = await connection.subscribe("k", "channel")
    hearing = asyncio.create_task(subscription.next())
    await sentinel.followed.wait()
    sentinel.switch(other_server)
    with pytest.raises(Unavailable):  # what is published at the old one is no news
        await asyncio.wait_for(hearing, PATIENCE_S)
    assert await port_of(connection) == other_server.port
    subscription = await connection.subscribe("k", "channel")
    await connection.command("k", "PUBLISH", "channel", "here")
    assert await asyncio.wait_for(subscription.next(), PATIENCE_S) == ("channel", b"here")


async def test_who_is_named_but_is_no_master_is_not_used(
    redis_server: RedisServer, sentinel_at: SentinelAt, connect: Connect
) -> None:
    replica = RedisServer()
    replica.follow(redis_server)
    async with replica:
        wrong, right = await sentinel_at(replica), await sentinel_at(redis_server)
        assert await port_of(connect(url(wrong, right))) == redis_server.port
        with pytest.raises(Unavailable, match=r"a Sentinel names it as master, but it isn.t one"):
            await port_of(connect(url(wrong)))


async def test_a_lost_sentinel_is_replaced(
    redis_server: RedisServer,
    other_server: RedisServer,
    sentinel_at: SentinelAt,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.services.redis.servers.FOLLOW_AGAIN_S", 0.01)
    lost, kept = await sentinel_at(redis_server), await sentinel_at(redis_server)
    connection = connect(url(lost, kept))
    assert await port_of(connection) == redis_server.port
    await lost.followed.wait()
    await lost.close()
    lost.hang_up()
    await asyncio.wait_for(kept.followed.wait(), PATIENCE_S)
    kept.switch(other_server)
    async with asyncio.timeout(PATIENCE_S):
        while await port_of(connection) != other_server.port:
            pass


@pytest.mark.parametrize("password", ["", "geheim"])
async def test_sentinels_get_the_password_if_they_want_it(
    password: str, sentinel_at: SentinelAt, connect: Connect
) -> None:
    async with RedisServer(password="geheim") as server, RedisServer(password="geheim") as other:
        sentinel = await sentinel_at(server, password)
        connection = connect(url(sentinel, who=":geheim@"))
        assert await port_of(connection) == server.port
        await sentinel.followed.wait()
        sentinel.switch(other)
        async with asyncio.timeout(PATIENCE_S):
            while await port_of(connection) != other.port:
                pass


async def test_a_sentinel_that_wants_a_password_that_nobody_gave(
    redis_server: RedisServer, sentinel_at: SentinelAt, connect: Connect
) -> None:
    sentinel = await sentinel_at(redis_server, "geheim")
    with pytest.raises(ConfigError, match="it wants a password"):
        await port_of(connect(url(sentinel)))
