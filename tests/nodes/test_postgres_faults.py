"""Nodes on one PostgreSQL whose replica takes over, and whose disk is full."""

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from holdfast.errors import Unavailable
from simulator.servers import PostgresqlServer, PostgresqlStandby
from simulator.servers.postgresql import REPLICATES
from tests.nodes.cluster import Cluster, until
from tests.nodes.conftest import MakeCluster
from tests.nodes.drills import KEYS, TTL_S, all_went_on

SYNCHRONOUS = {"synchronous_standby_names": "standby"}
A_FEW_BYTES = 8192


def ask(server: PostgresqlServer, query: str) -> Any:
    """The first column of the first row."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


@contextlib.asynccontextmanager
async def replicated(settings: dict[str, str]) -> AsyncIterator[tuple[PostgresqlServer, PostgresqlStandby]]:
    """A server and its standby, which follows."""
    async with (
        PostgresqlServer(fsync=True, settings=REPLICATES | settings) as primary,
        PostgresqlStandby(primary, fsync=True) as standby,
    ):
        state = "sync" if settings else "async"
        asked = (
            f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'"
        )
        await until(lambda: ask(primary, asked) == 1, "the standby follows")
        yield primary, standby


def url_of(*servers: PostgresqlServer) -> str:
    """Of whichever takes writes."""
    return f"postgresql://postgres@{','.join(server.address for server in servers)}/postgres"


async def all_results(cluster: Cluster) -> dict[str, list[int]]:
    """The seqs of all results that the store has now, in order, by key."""
    found, cursor = defaultdict[str, list[int]](list), 0
    while page := await cluster.state.results(cursor, 1000):
        cursor = page[-1].cursor
        for each in page:
            found[each.key.rpartition("/")[2]].append(json.loads(each.result.body)["n"])
    return found


async def told_of_standbys(cluster: Cluster) -> list[str]:
    """What doctor reports about commits that a failover may lose."""
    return [risk.text for _, risk in await cluster.services.risks() if "fail-over" in risk.text]


@pytest.mark.nightly
async def test_what_was_acknowledged_is_there_when_a_synchronous_replica_takes_over(
    make_cluster: MakeCluster,
) -> None:
    async with replicated(SYNCHRONOUS) as (primary, standby):
        cluster = make_cluster(url=url_of(primary, standby), ttl_s=TTL_S, visibility_s=6.0)
        assert await told_of_standbys(cluster) == []
        await cluster.start("a", "b")
        async with cluster.load(KEYS, 100):
            await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
            primary.kill()
            await standby.promote()
            since = time.time()
            await cluster.send_each(KEYS)
            await cluster.until(all_went_on(cluster, since))
        await cluster.check(alive=["a", "b"])
        assert await all_results(cluster) == {
            key: [body["n"] for body in cluster.bodies(key)] for key in KEYS
        }
        await cluster.close()


@pytest.mark.nightly
async def test_what_an_asynchronous_replica_had_not_heard_is_done_again_and_the_loss_is_named(
    make_cluster: MakeCluster,
) -> None:
    """Messages that the standby didn't have are sent again here, as by a producer that knows of the loss."""
    async with replicated({}) as (primary, standby):
        cluster = make_cluster(url=url_of(primary, standby), ttl_s=TTL_S, visibility_s=6.0)
        [risk] = await told_of_standbys(cluster)
        assert "its standbys are asynchronous" in risk
        await cluster.start("a", "b")
        await cluster.send_each(KEYS, 20)
        await cluster.until_all()
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{ask(primary, 'SELECT pg_current_wal_lsn()')}'"
        await until(lambda: ask(standby, replayed), "the standby has all this")
        await standby.cut_off()
        await cluster.send_each(KEYS, 20)
        await cluster.until(lambda: all(len(cluster.results[key]) == 40 for key in KEYS))
        forgotten = {key: cluster.results[key][-1] for key in KEYS}
        primary.kill()
        await standby.promote()
        assert await all_results(cluster) == {key: list(range(20)) for key in KEYS}
        for key in KEYS:
            cluster.sent[key] = 20
            del cluster.results[key][20:]
        await cluster.send_each(KEYS, 40)
        await cluster.check(alive=["a", "b"])
        assert await all_results(cluster) == {key: list(range(60)) for key in KEYS}
        for key in KEYS:
            again = cluster.results[key][20]
            assert again.cursor > forgotten[key].cursor, "a reader misses it"
            assert again.epoch >= forgotten[key].epoch
        losses = [
            event for node in cluster.nodes.values() for event in node.said("commits lost by the state store")
        ]
        assert {event["key"].rpartition("/")[2] for event in losses} == set(KEYS)
        assert {(event["commits_known"] > event["commits_found"], event["follows"]) for event in losses} == {
            (True, "the stream goes on from the older checkpoint")
        }
        await cluster.close()


@pytest.mark.nightly
async def test_nothing_is_lost_when_the_disk_of_the_log_is_full(make_cluster: MakeCluster) -> None:
    """The server ends by itself, as it can't write its log (WAL); and starts again once there is room."""
    async with PostgresqlServer(fsync=True) as server:
        cluster = make_cluster(url=server.url, ttl_s=TTL_S, visibility_s=6.0)
        await cluster.start("a", "b")
        async with cluster.load(KEYS, 100):
            await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
            server.limit_files(A_FEW_BYTES)
            await until(lambda: not server.alive, "the server has ended")
            with pytest.raises(Unavailable):
                await cluster.state.now("chain/cam-0")
            await server.restart()
            since = time.time()
            await cluster.send_each(KEYS)
            await cluster.until(all_went_on(cluster, since))
        await cluster.check(alive=["a", "b"])
        await cluster.close()
