"""Real servers: they start, answer, bear what tests do to them, and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import boto3
import psutil
import pytest
from kazoo.client import KazooClient
from redis.exceptions import AuthenticationError

from holdfast.errors import ConfigError, Unavailable
from simulator.servers import (
    FauxqsServer,
    MotoServer,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    programs,
)


@pytest.fixture
async def durable() -> AsyncIterator[RedisServer]:
    async with RedisServer(appendonly=True) as server:
        yield server


# --- the life of a server


async def test_a_started_server_answers_on_loopback_alone_and_a_stopped_one_leaves_nothing() -> None:
    server = RedisServer()
    async with server:
        async with server.client() as redis:
            assert await redis.ping()
        listening = {c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
        pid, folder = server.pid, server.folder
    assert not server.alive
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


async def test_to_start_twice_and_stop_twice_is_the_same_as_once() -> None:
    server = RedisServer()
    await server.start()
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()


@pytest.mark.slow
async def test_a_killed_server_starts_again_at_its_port_with_what_it_kept(durable: RedisServer) -> None:
    async with durable.client() as redis:
        await redis.set("key", "value")
    durable.kill()
    assert not durable.alive
    assert not await durable.answers()
    await durable.restart()
    async with durable.client() as redis:
        assert await redis.get("key") == "value"
    await durable.restart(empty=True)
    async with durable.client() as redis:
        assert await redis.dbsize() == 0


async def test_a_paused_server_answers_again_once_it_goes_on(redis_server: RedisServer) -> None:
    async with redis_server.client() as redis:
        await redis.set("key", "value")
    redis_server.pause()
    assert psutil.Process(redis_server.pid).status() == psutil.STATUS_STOPPED
    redis_server.resume()
    async with redis_server.client() as redis:
        assert await redis.get("key") == "value"


@pytest.mark.parametrize("harm", [RedisServer.kill, RedisServer.pause], ids=["kill", "pause"])
async def test_reset_makes_it_run_and_empty(
    harm: Callable[[RedisServer], None], redis_server: RedisServer
) -> None:
    async with redis_server.client() as redis:
        await redis.set("key", "value")
    harm(redis_server)
    await redis_server.reset()
    async with redis_server.client() as redis:
        assert await redis.dbsize() == 0


async def test_a_server_that_ends_by_itself_says_why() -> None:
    server = RedisServer(settings={"no-such-setting": "1"})
    with pytest.raises(Unavailable, match="no-such-setting"):
        async with server:
            pass
    assert not server.alive


def test_a_missing_program_is_an_error_that_names_what_installs_it() -> None:
    with pytest.raises(ConfigError, match="tools/servers/install no-such-program"):
        programs.find("no-such-program")


def test_a_program_that_comes_with_another_names_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(ConfigError, match="run tools/servers/install prometheus in"):
        programs.find("promtool", folders=[])


def test_a_program_that_was_installed_in_the_checkout_is_found(tmp_path: Path) -> None:
    program = tmp_path / ".cache/servers/some-server/some-server"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    assert programs.find("some-server", folders=[tmp_path]) == program


CHILD = """
import asyncio, signal
from simulator.servers import (RedisServer, FauxqsServer)

async def main():
    redis, sqs = RedisServer(), FauxqsServer()
    await asyncio.gather(redis.start(), sqs.start())
    print(redis.pid, sqs.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds servers; the first line it writes are their ids."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process with the id is a helper's")
def test_a_killed_test_run_leaves_no_servers(child: subprocess.Popen[str]) -> None:
    assert child.stdout
    servers = [psutil.Process(int(pid)) for pid in child.stdout.readline().split()]
    assert len(servers) == 2
    os.kill(child.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(servers, timeout=30)
    assert alive == []


# --- Redis


async def test_a_password_and_users_are_asked_for() -> None:
    users = ["user ann on >secret ~ann:* &* +@read"]
    async with RedisServer(password="pw", users=users) as server:
        assert server.url == f"redis://:pw@127.0.0.1:{server.port}"
        assert server.url_as("ann", "secret") == f"redis://ann:secret@127.0.0.1:{server.port}"
        async with server.client() as redis:
            assert await redis.acl_whoami() == "default"
            assert "ann" in await redis.acl_users()
        server.password = "wrong"
        async with server.client() as redis:
            with pytest.raises(AuthenticationError):
                await redis.ping()


async def test_tls_is_spoken_with_a_certificate_that_clients_check() -> None:
    async with RedisServer(tls=True) as server:
        assert server.url == f"rediss://127.0.0.1:{server.port}?ca={server.ca}"
        async with server.client() as redis:
            assert await redis.ping()


@pytest.mark.nightly
async def test_sentinels_make_a_replica_the_master_when_it_dies(redis_sentinel: RedisSentinel) -> None:
    old = await redis_sentinel.master()
    async with old.client() as redis:
        await redis.set("key", "value")
        assert await redis.wait(2, 5000) == 2
    old.kill()
    new = await redis_sentinel.failed_over(old)
    assert new is not old
    async with new.client() as redis:
        assert await redis.get("key") == "value"
    await redis_sentinel.heal()
    assert await redis_sentinel.master() is new


async def test_every_node_of_a_redis_cluster_holds_keys(redis_cluster: RedisCluster) -> None:
    from redis.asyncio import RedisCluster as Client

    host, port = redis_cluster.nodes[0].address.split(":")
    async with Client(host=host, port=int(port)) as redis:
        for number in range(32):
            await redis.set(f"key-{number}", number)
    for node in redis_cluster.nodes:
        async with node.client() as redis:
            assert await redis.dbsize() > 0


@pytest.mark.nightly
async def test_a_cluster_is_whole_again_after_a_master_restarts(redis_cluster: RedisCluster) -> None:
    redis_cluster.nodes[0].kill()
    await redis_cluster.reset()
    assert await redis_cluster.masters() == redis_cluster.nodes


@pytest.mark.nightly
async def test_a_replica_takes_over_in_a_cluster() -> None:
    async with RedisCluster(replicas=1) as cluster:
        dead = cluster.nodes[0]
        dead.kill()
        await cluster.heal()
        assert len(await cluster.masters()) == 3


# --- AWS


def test_sqs_and_s3_work_on_moto(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sqs_and_s3(moto_server, monkeypatch)


def test_sqs_and_s3_work_on_fauxqs(fauxqs_server: FauxqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sqs_and_s3(fauxqs_server, monkeypatch)


def sqs_and_s3(server: MotoServer | FauxqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in server.environment().items():
        monkeypatch.setenv(key, value)
    sqs, s3 = boto3.client("sqs"), boto3.client("s3")
    url = sqs.create_queue(QueueName="test-servers")["QueueUrl"]
    assert url.startswith(server.endpoint)
    sqs.send_message(QueueUrl=url, MessageBody="body")
    assert [m["Body"] for m in sqs.receive_message(QueueUrl=url)["Messages"]] == ["body"]
    sqs.delete_queue(QueueUrl=url)
    s3.create_bucket(
        Bucket="test-servers",
        CreateBucketConfiguration={"LocationConstraint": server.environment()["AWS_REGION"]},
    )
    data = os.urandom(3 << 20)
    s3.put_object(Bucket="test-servers", Key="a/b", Body=data)
    assert s3.get_object(Bucket="test-servers", Key="a/b")["Body"].read() == data
    sqs.close()
    s3.close()


# --- ZooKeeper


def hosts(*servers: ZooKeeperServer) -> str:
    return ",".join(server.address for server in servers)


async def test_a_single_zookeeper_keeps_what_is_created(zookeeper_server: ZooKeeperServer) -> None:
    assert await zookeeper_server.mode() == "standalone"
    client = KazooClient(hosts(zookeeper_server))
    client.start()
    client.create("/single", b"value", ephemeral=True)
    assert client.get("/single")[0] == b"value"
    client.stop()
    client.close()


@pytest.mark.nightly
async def test_an_ensemble_goes_on_without_its_leader(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    client = KazooClient(hosts(*zookeeper_ensemble.members))
    client.start()
    (await zookeeper_ensemble.led()).kill()
    leader = await zookeeper_ensemble.led()
    assert client.retry(client.create, "/ensemble", b"value", ephemeral=True) == "/ensemble"
    client.stop()
    client.close()
    assert leader.alive
    await zookeeper_ensemble.heal()
    assert all([await member.mode() for member in zookeeper_ensemble.members])
