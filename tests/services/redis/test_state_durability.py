"""What a server's settings put at risk."""

from collections.abc import AsyncIterator

import pytest

from holdfast.config.settings import Config
from holdfast.ports.meter import Meter
from holdfast.ports.state import Risk
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.durability import check, judge
from holdfast.wiring.services import Services
from simulator.servers import RedisCluster, RedisSentinel, RedisServer

SOUND = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory": "100000000",
    "maxmemory-policy": "noeviction",
    "min-replicas-to-write": "1",
}
INFO = {"redis_version": "7.0.15", "role": "master", "connected_slaves": "1"}


def test_a_sound_server_has_no_risk() -> None:
    assert judge("h:1", SOUND, INFO) == []
    assert judge("h:1", SOUND | {"appendfsync": "always"}, INFO | {"redis_version": "6.2.0"}) == []


@pytest.mark.parametrize(
    "settings,verdict,text",
    [
        ({"appendonly": "no"}, "failed", "every checkpoint"),
        ({"appendonly": "no", "save": "3600 1"}, "warning", "snapshots"),
        ({"appendfsync": "no"}, "warning", "half a minute"),
        ({"maxmemory-policy": "allkeys-lru"}, "failed", "drops checkpoints"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "0"}, "warning", "no maxmemory"),
        ({"maxmemory-policy": "volatile-ttl"}, "warning", "forgets nodes"),
        ({"min-replicas-to-write": "0"}, "warning", "fail-over"),
    ],
)
def test_a_setting_that_may_lose_writes_is_named_with_its_fix(
    settings: dict[str, str], verdict: str, text: str
) -> None:
    [risk] = judge("h:1", SOUND | settings, INFO)
    assert (risk.server, risk.verdict) == ("h:1", verdict)
    assert text in risk.text
    assert risk.fix


@pytest.mark.parametrize(
    "info,verdict,text",
    [
        ({"redis_version": "6.0.16"}, "failed", "6.0.16"),
        ({"redis_version": ""}, "failed", "unknown version"),
        ({"role": "slave"}, "failed", "replica"),
        ({"connected_slaves": "0"}, "warning", "no replica"),
    ],
)
def test_a_server_that_may_lose_or_refuse_writes_is_a_risk(
    info: dict[str, str], verdict: str, text: str
) -> None:
    [risk] = judge("", SOUND, INFO | info)
    assert risk.verdict == verdict
    assert text in risk.text


async def risks(url: str) -> list[Risk]:
    connection = RedisConnection(parse(url), Meter())
    try:
        return await check(connection)
    finally:
        await connection.close()


async def test_risks_are_read_from_a_real_server(redis_server: RedisServer) -> None:
    async with Services(Config(state_url=redis_server.url)) as services:
        found = await services.risks()
    assert [(setting, risk.server, risk.verdict) for setting, risk in found] == [
        ("state_url", "", "failed"),
        ("state_url", "", "warning"),
    ]


async def test_risks_are_read_from_the_master(redis_sentinel: RedisSentinel) -> None:
    assert any("min-replicas-to-write" in risk.text for risk in await risks(redis_sentinel.url))


async def test_every_master_of_a_cluster_is_asked(redis_cluster: RedisCluster) -> None:
    text = {risk.server for risk in await risks(redis_cluster.url)}
    assert text == {server.address for server in await redis_cluster.masters()}


@pytest.fixture
async def guarded() -> AsyncIterator[RedisServer]:
    async with RedisServer(users=["user ann on >secret ~* &* +@all -config"]) as server:
        yield server


async def test_settings_may_be_out_of_sight(guarded: RedisServer) -> None:
    [risk] = await risks(guarded.url_as("ann", "secret"))
    assert "can't be read" in risk.text
    assert "CONFIG GET" in risk.fix
    assert "secret" not in risk.text
