"""The way to Redis, on real servers."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.errors import ConfigError, HoldfastError, OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.meter import Meter
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.servers import RedisServers
from simulator.servers import RedisCluster, RedisSentinel, RedisServer
from tests.services.redis.conftest import Connect, impatient

PATIENCE_S = 30.0


def script(text: str, name: str = "test") -> Script:
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


ADD = script("return redis.call('INCRBY', KEYS[1], ARGV[1])", "add")
SPIN = script("while true do redis.call('GET', KEYS[1]) end", "spin")


async def test_a_script_is_sent_once_in_full_then_by_its_digest(
    redis_server: RedisServer, connect: Connect, meter: Meter
) -> None:
    connection = connect(redis_server.url)
    await connection.command("k", "SCRIPT", "FLUSH")
    assert [await connection.script(ADD, ["k"], 2) for _ in range(3)] == [2, 4, 6]
    assert meter.calls["redis", "add"] == 4
    await connection.command("k", "SCRIPT", "FLUSH")
    calls = (connection.script(ADD, ["k"], 1) for _ in range(100))
    assert sorted(await asyncio.gather(*calls)) == list(range(7, 107))


async def test_every_call_to_redis_is_counted(
    redis_server: RedisServer, connect: Connect, meter: Meter
) -> None:
    connection = connect(redis_server.url)
    await connection.command("k", "GET", "k")
    await connection.everywhere("DBSIZE")
    await connection.subscribe("k", "channel")
    assert meter.calls == {("redis", "GET"): 1, ("redis", "DBSIZE"): 1, ("redis", "SUBSCRIBE"): 1}


async def test_databases_of_a_server_do_not_share_keys(redis_server: RedisServer, connect: Connect) -> None:
    one, two = connect(redis_server.url + "/1"), connect(redis_server.url + "/2")
    await one.command("k", "SET", "k", "v")
    assert await two.command("k", "GET", "k") is None
    with pytest.raises(OperationRefused, match="out of range"):
        await connect(redis_server.url + "/99").command("k", "GET", "k")


async def test_many_calls_at_once_share_one_connection(redis_server: RedisServer, connect: Connect) -> None:
    connection = connect(redis_server.url)
    await asyncio.gather(*(connection.command(str(i), "SET", str(i), i) for i in range(2000)))
    [(_, clients)] = await connection.everywhere("CLIENT", "LIST", "TYPE", "normal")
    assert clients.count(b"\n") == 1


# --- what goes wrong


async def test_to_connect_reads_no_metadata_of_packages(redis_server: RedisServer, connect: Connect) -> None:
    """redis-py looks up its own version in them for each connection, which takes longer than to connect."""
    with mock.patch("importlib.metadata.version", side_effect=AssertionError) as looked_up:
        assert await connect(redis_server.url).command("k", "GET", "k") is None
    assert not looked_up.called


@pytest.mark.slow
async def test_nobody_there_means_nothing_was_sent(redis_server: RedisServer, connect: Connect) -> None:
    redis_server.kill()
    connection = connect(redis_server.url)
    with pytest.raises(Unavailable):
        await connection.script(ADD, ["k"], 1)
    with pytest.raises(Unavailable):
        await connection.subscribe("k", "channel")
    await redis_server.start()
    assert await connection.script(ADD, ["k"], 1) == 1


async def test_a_server_that_stands_still_leaves_the_outcome_unknown(
    redis_server: RedisServer, connect: Connect
) -> None:
    connection = connect(redis_server.url)
    assert await connection.script(ADD, ["k"], 1) == 1
    redis_server.pause()
    with impatient(connection), pytest.raises(OutcomeUnknown):
        await connection.script(ADD, ["k"], 1)
    redis_server.resume()
    [(_, _)] = await connect(redis_server.url).everywhere("PING")
    assert await connect(redis_server.url).command("k", "GET", "k") == b"2", "it had taken effect"
    assert await connection.script(ADD, ["k"], 1) == 3, "and was not repeated"


async def test_a_server_that_dies_meanwhile_leaves_the_outcome_unknown(
    redis_server: RedisServer, connect: Connect
) -> None:
    other = connect(redis_server.url)
    call = asyncio.create_task(connect(redis_server.url).command("k", "BLPOP", "k", 0))
    async with asyncio.timeout(PATIENCE_S):
        while b"blocked_clients:0" in (await other.everywhere("INFO", "clients"))[0][1]:
            pass
    redis_server.kill()
    with pytest.raises(OutcomeUnknown):
        await call


@pytest.mark.slow
async def test_a_restart_between_calls_costs_none(redis_server: RedisServer, connect: Connect) -> None:
    connection = connect(redis_server.url)
    assert await connection.script(ADD, ["k"], 1) == 1
    await redis_server.restart()
    assert await connection.script(ADD, ["k"], 1) == 1, "the data is gone, the script is sent again"


@pytest.mark.slow
async def test_a_busy_server_has_done_nothing(redis_server: RedisServer, connect: Connect) -> None:
    connection, spinning = connect(redis_server.url), connect(redis_server.url)
    await connection.everywhere("CONFIG", "SET", "lua-time-limit", "5")
    spin = asyncio.create_task(spinning.script(SPIN, ["k"]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Unavailable, match="script blocks"):
                await _often(connection, "GET")
    finally:
        await connection.command("k", "SCRIPT", "KILL")
        await asyncio.wait([spin])
        await connection.everywhere("CONFIG", "SET", "lua-time-limit", "5000")
    with pytest.raises(OperationRefused):
        await spin


@pytest.mark.slow
async def test_a_full_server_has_done_nothing(redis_server: RedisServer, connect: Connect) -> None:
    connection = connect(redis_server.url)
    await connection.everywhere("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Unavailable, match="raise maxmemory"):
            await connection.script(ADD, ["k"], 1)
    finally:
        await connection.everywhere("CONFIG", "SET", "maxmemory", "0")
    assert await connection.script(ADD, ["k"], 1) == 1


async def test_a_replica_is_refused_as_server(redis_server: RedisServer, connect: Connect) -> None:
    replica = RedisServer()
    replica.follow(redis_server)
    async with replica:
        with pytest.raises(Unavailable, match="replica"):
            await connect(replica.url).script(ADD, ["k"], 1)


async def test_a_name_that_is_no_host(connect: Connect) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        await connect("redis://nowhere.invalid").command("k", "GET", "k")


# --- who is let in


async def test_users_get_in_with_their_passwords_only(connect: Connect) -> None:
    users = [
        "user ann on >geheim ~{holdfast}* resetchannels &{holdfast}* +@all -@dangerous +eval +evalsha",
        "user bob on >geheim ~{holdfast}* +get",
    ]
    async with RedisServer(password="top/secret@", users=users) as server:
        default = connect(server.url_as("", "top%2Fsecret%40"))
        assert await default.script(ADD, ["k"], 1) == 1
        ann = connect(server.url_as("ann", "geheim"))
        assert await ann.script(ADD, ["{holdfast}:k"], 1) == 1
        await ann.subscribe("{holdfast}", "{holdfast}:changes")
        wrong = {
            f"redis://{server.address}": "it wants a password",
            server.url_as("ann", "falsch"): "user or password is wrong",
            server.url_as("eve", "geheim"): "user or password is wrong",
        }
        for url, text in wrong.items():
            with pytest.raises(ConfigError, match=text) as raised:
                await connect(url).script(ADD, ["{holdfast}:k"], 1)
            assert "falsch" not in str(raised.value)
            assert "geheim" not in str(raised.value)
        for user, key in (("ann", "another"), ("bob", "{holdfast}:k")):
            with pytest.raises(ConfigError, match="ACL"):
                await connect(server.url_as(user, "geheim")).script(ADD, [key], 1)
        with pytest.raises(ConfigError, match="ACL"):
            await connect(server.url_as("ann", "geheim")).subscribe("{holdfast}", "another")


async def test_a_password_for_a_server_without_one(redis_server: RedisServer, connect: Connect) -> None:
    with pytest.raises(ConfigError, match="password is wrong"):
        await connect(redis_server.url_as("", "geheim")).command("k", "GET", "k")


@pytest.mark.slow
async def test_calls_work_over_tls_and_check_certificates(connect: Connect, tmp_path: Path) -> None:
    async with RedisServer(tls=True, password="geheim") as server:
        connection = connect(server.url)
        assert await connection.script(ADD, ["k"], 1) == 1
        subscription = await connection.subscribe("k", "channel")
        await connection.command("k", "PUBLISH", "channel", "text")
        assert await subscription.next() == ("channel", b"text")
        with pytest.raises(ConfigError, match="name the authority's file with"):
            await connect(f"rediss://:geheim@{server.address}").command("k", "GET", "k")
        with pytest.raises(HoldfastError) as raised:
            await connect(f"redis://:geheim@{server.address}").command("k", "GET", "k")
        assert isinstance(raised.value, Unavailable)
        with pytest.raises(ConfigError, match="can't load the files for TLS"):
            connect(f"rediss://{server.address}?ca={tmp_path}/none.pem")
        with pytest.raises(ConfigError, match="can't load the files for TLS"):
            connect(f"rediss://{server.address}?ca={server.ca}&cert={server.ca}&key={server.ca}")


@pytest.mark.slow
async def test_tls_with_a_certificate_of_this_side(connect: Connect) -> None:
    async with RedisServer(tls=True) as server:
        await connect(server.url).everywhere("CONFIG", "SET", "tls-auth-clients", "yes")
        with pytest.raises(HoldfastError):
            await connect(server.url).command("k", "GET", "k")
        key = server.folder / "key.pem"
        shown = connect(f"{server.url}&cert={server.ca}&key={key}")
        assert await shown.command("k", "GET", "k") is None


# --- subscriptions


async def test_a_subscription_hears_all_that_is_published_after_it_began(
    redis_server: RedisServer, connect: Connect
) -> None:
    connection = connect(redis_server.url)
    subscription = await connection.subscribe("k", "a", "b")
    for i in range(100):
        await connection.command("k", "PUBLISH", "ab"[i % 2], i)
    assert [await subscription.next() for _ in range(100)] == [
        ("ab"[i % 2], str(i).encode()) for i in range(100)
    ]


async def test_who_waits_on_a_lost_subscription_is_told(redis_server: RedisServer, connect: Connect) -> None:
    connection = connect(redis_server.url)
    subscription = await connection.subscribe("k", "channel")
    redis_server.kill()
    with pytest.raises(Unavailable):
        await subscription.next()


@pytest.mark.slow
async def test_a_silent_server_ends_the_subscription(
    redis_server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.redis.subscription.QUIET_S", 0.05)
    subscription = await connect(redis_server.url, timeout_s=1.0).subscribe("k", "channel")
    hearing = asyncio.create_task(subscription.next())
    redis_server.pause()
    with pytest.raises(Unavailable):
        await hearing
    redis_server.resume()


@pytest.mark.slow
async def test_a_quiet_subscription_is_pinged_and_goes_on(
    redis_server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.redis.subscription.QUIET_S", 0.01)
    connection = connect(redis_server.url)
    subscription = await connection.subscribe("k", "channel")
    hearing = asyncio.create_task(subscription.next())

    async def pings() -> int:
        [(_, stats)] = await connection.everywhere("INFO", "commandstats")
        return int(stats.partition(b"cmdstat_ping:calls=")[2].partition(b",")[0] or 0)

    begun = await pings()
    async with asyncio.timeout(PATIENCE_S):
        while await pings() < begun + 3:
            pass
    await connection.command("k", "PUBLISH", "channel", "at last")
    assert await hearing == ("channel", b"at last")


# --- Sentinel


@pytest.mark.nightly
async def test_sentinels_lead_to_the_master(redis_sentinel: RedisSentinel, connect: Connect) -> None:
    connection = connect(redis_sentinel.url)
    assert await connection.script(ADD, ["k"], 1) == 1
    async with (await redis_sentinel.master()).client() as master:
        assert await master.get("k") == "1"


@pytest.mark.nightly
async def test_one_sentinel_that_answers_is_enough(redis_sentinel: RedisSentinel, connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]},{redis_sentinel.sentinels[2].address}"
        assert await connect(f"redis+sentinel://{hosts}/{redis_sentinel.service}").script(ADD, ["k"], 1) == 1


async def test_without_sentinels_there_is_no_master(connect: Connect) -> None:
    with pytest.raises(Unavailable):
        await connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main").command("k", "GET", "k")


@pytest.mark.nightly
async def test_what_sentinels_don_t_know_is_named(
    redis_sentinel: RedisSentinel, redis_server: RedisServer, connect: Connect
) -> None:
    hosts = redis_sentinel.url.rpartition("/")[0]
    with pytest.raises(ConfigError, match="watches no master named 'other'"):
        await connect(f"{hosts}/other").command("k", "GET", "k")
    with pytest.raises(ConfigError, match="isn't a Sentinel"):
        await connect(f"redis+sentinel://{redis_server.address}/main").command("k", "GET", "k")


# --- Cluster


@pytest.mark.nightly
async def test_a_cluster_is_one_server_to_its_users(redis_cluster: RedisCluster, connect: Connect) -> None:
    connection = connect(f"redis+cluster://{redis_cluster.nodes[0].address}")
    keys = [f"k{i}" for i in range(100)]
    assert await asyncio.gather(*(connection.script(ADD, [key], 1) for key in keys)) == [1] * 100
    sizes = await connection.everywhere("DBSIZE")
    assert sum(size for _, size in sizes) == 100
    assert all(size for _, size in sizes)
    assert {host for host, _ in sizes} == {node.address for node in redis_cluster.nodes}
    with pytest.raises(ConfigError, match="a Holdfast error"):
        await connection.script(ADD, ["a", "b"], 1)


@pytest.mark.nightly
async def test_a_subscription_is_where_the_key_is(redis_cluster: RedisCluster, connect: Connect) -> None:
    connection = connect(redis_cluster.url)
    for key in ("a", "b", "c"):
        subscription = await connection.subscribe(key, key)
        await connection.script(script("return redis.call('PUBLISH', KEYS[1], 'text')"), [key])
        assert await subscription.next() == (key, b"text")


async def test_a_key_that_moves_is_followed(redis_cluster: RedisCluster, connect: Connect) -> None:
    connection = connect(redis_cluster.url)
    assert await connection.script(ADD, ["k"], 1) == 1
    [owner] = [node for node in redis_cluster.nodes if await _ask(node, "DBSIZE")]
    taker = next(node for node in redis_cluster.nodes if node is not owner)
    async with _moving("k", owner, taker):
        assert await connection.script(ADD, ["k"], 1) == 2, "asked for where it is now"
    assert await connection.script(ADD, ["k"], 1) == 3, "moved"
    async with _moving("k", taker, owner):
        pass
    assert await connection.script(ADD, ["k"], 1) == 4


async def test_a_kind_that_the_server_is_not(
    redis_server: RedisServer, redis_cluster: RedisCluster, connect: Connect
) -> None:
    with pytest.raises(ConfigError, match="isn't a node of a Cluster: write redis://"):
        await connect(f"redis+cluster://{redis_server.address}").command("k", "GET", "k")
    single = connect(redis_cluster.nodes[0].url)
    with pytest.raises(ConfigError, match=r"is a node of a Cluster: write redis\+cluster://"):
        await asyncio.gather(*(single.command(key, "GET", key) for key in ("a", "b", "c", "d", "e")))


@pytest.mark.nightly
async def test_a_lost_node_is_unavailable_and_the_others_go_on(
    redis_cluster: RedisCluster, connect: Connect
) -> None:
    connection = connect(redis_cluster.url, 1.0)
    keys = ["a", "b", "c", "d", "e", "f"]
    for key in keys:
        await connection.script(ADD, [key], 1)
    lost = redis_cluster.nodes[2]
    lost.kill()
    outcomes = await asyncio.gather(
        *(connection.script(ADD, [key], 1) for key in keys), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {int, Unavailable}
    await redis_cluster.heal()
    assert all(await asyncio.gather(*(connection.script(ADD, [key], 1) for key in keys)))


async def _often(connection: RedisConnection, word: str) -> None:
    while True:
        await connection.command("k", word, "k")


@asynccontextmanager
async def _moving(key: str, giver: RedisServer, taker: RedisServer) -> AsyncIterator[None]:
    """Inside, the key has moved already and its slot has not; afterwards both have."""
    giver_id, taker_id = await _ask(giver, "CLUSTER", "MYID"), await _ask(taker, "CLUSTER", "MYID")
    slot = await _ask(giver, "CLUSTER", "KEYSLOT", key)
    await _ask(taker, "CLUSTER", "SETSLOT", slot, "IMPORTING", giver_id)
    await _ask(giver, "CLUSTER", "SETSLOT", slot, "MIGRATING", taker_id)
    await _ask(giver, "MIGRATE", "127.0.0.1", taker.port, key, 0, 5000)
    yield
    for node in (taker, giver):
        await _ask(node, "CLUSTER", "SETSLOT", slot, "NODE", taker_id)


async def _ask(server: RedisServer, *words: str | int) -> Any:
    async with server.client() as client:
        return await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def test_a_subscription_at_what_is_no_master_by_then_is_refused(
    redis_server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would answer, and hear nothing of what happens at the new master."""
    switches = [True]

    class Switching(RedisServers):
        """Another server becomes the master while the first connection is made."""

        def __init__(self, address: Any, meter: Any, timeout_s: float, on_new_master: Any) -> None:
            super().__init__(address, meter, timeout_s, on_new_master)
            self.switch = on_new_master

        async def open(self, host: Any) -> Any:
            found = await super().open(host)
            while switches:
                switches.pop()
                await self.switch()
            return found

    monkeypatch.setattr("holdfast.services.redis.connection.RedisServers", Switching)
    connection = connect(redis_server.url)
    with pytest.raises(Unavailable, match="another server has become the master"):
        await connection.subscribe("k", "channel")
    assert not (await connection.subscribe("k", "channel")).closed
