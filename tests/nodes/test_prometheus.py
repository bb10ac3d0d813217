"""A real Prometheus reads real nodes with the rules of this project: its alerts fire on real faults.

Ages at which an alert begins are cut to a second, and for how long it must last to nothing: promtool tests
those times.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from sqlalchemy import create_engine
from yarl import URL

from deploy.alerts import ALERTS
from deploy.generate import RULES
from holdfast.common.progress import chunks
from holdfast.ports.queue import Outgoing
from holdfast.streams.operations import pause
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from simulator.servers import MosquittoServer, PostgresqlServer, PrometheusServer, RedisServer
from tests.nodes.acting_app import MAX_TRIES
from tests.nodes.alerts_app import gates
from tests.nodes.cluster import PATIENCE_S, STREAM, Cluster, until
from tests.nodes.conftest import MakeCluster

KEYS = [f"cam-{i}" for i in range(6)]

OF_NODES = ("NodeDown", "NodeLost", "StreamsParked", "DeadLettersGrow", "FailoverSlow")
OF_WORK = (
    "StreamWaitsLong",
    "QueueAges",
    "QueueGrows",
    "ModelDoesNotLoad",
    "EffectsStuck",
    "TasksFail",
    "SlotsDie",
    "GapsSkipped",
)
OF_REDIS = ("StoreMayForget", "StoreForgot", "QueueUnknown", "NodeCutOff")
OF_DATABASES = ("HorizonHeld", "DeadRows", "CommitsSlow", "OutboxStuck", "OutboxOffline")

TTL_S = 3.0
MANY = 2000
"""So many that more wait in their queue, beside those that a node holds, than may without an alert."""

DEAD_ROWS = 120_000
HOLD_S = 2.5
"""For how long a commit waits for a lock here: longer than one may take without an alert."""

BLOCKED = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def hurried(rules: str) -> str:
    """The rules, for a test that can't wait for minutes."""
    rules = re.sub(r"for: \d+m", "for: 0m", rules)
    rules = re.sub(r"(_seconds(?:{[^}]*})?\)) > (?:300|900)\b", r"\1 > 1", rules)
    return rules.replace("holdfast_outbox_turns_total[10m]", "holdfast_outbox_turns_total[5s]")


class Watch:
    """A cluster's nodes ``names``, read by a Prometheus."""

    def __init__(self, prometheus: PrometheusServer, nodes: int) -> None:
        self.prometheus = prometheus
        self._nodes = nodes

    async def total(self, expr: str) -> float:
        return sum((await self.prometheus.value(expr)).values())

    async def fired(self) -> set[str]:
        firing = [alert for alert in await self.prometheus.alerts() if alert["state"] == "firing"]
        return {alert["labels"]["alertname"].removeprefix("Holdfast") for alert in firing}

    async def until_read(self) -> None:
        """Wait until what grows from now on is seen to have grown."""

        async def read() -> bool:
            return await self.total("sum_over_time(up[5m])") >= 2 * self._nodes

        await until(read, "Prometheus has read each node twice")

    async def until_fired(self, *names: str) -> None:
        """Wait until these alerts have fired, in any order."""
        left = {*names}

        async def all_have() -> bool:
            left.difference_update(await self.fired())
            return not left

        try:
            await until(all_have, f"the alerts {names} fire")
        except AssertionError:
            raise AssertionError(f"never fired: {left}; firing: {await self.fired()}") from None


async def address(cluster: Cluster, name: str) -> str:
    event = await cluster.nodes[name].until_said("metrics page served")
    return URL(event["url"]).authority


def test_each_alert_has_its_fault_here() -> None:
    names = [f"Holdfast{name}" for name in (*OF_NODES, *OF_WORK, *OF_REDIS, *OF_DATABASES)]
    assert sorted(names) == sorted(alert.name for alert in ALERTS)


@pytest.mark.nightly
async def test_alerts_of_nodes_fire_on_real_faults(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(ttl_s=60.0)
    await cluster.start("a", "b")
    targets = [await address(cluster, name) for name in ("a", "b")]
    async with PrometheusServer(targets, hurried(RULES.read_text())) as prometheus:
        watch = Watch(prometheus, 2)
        await cluster.send_each(KEYS)
        await cluster.until_all()
        await watch.until_read()

        async def knows_all() -> bool:
            return await watch.total("holdfast_committed_total") >= len(KEYS)

        await until(knows_all, "Prometheus knows of the commits")
        assert await watch.fired() == set(), "nothing is wrong"
        assert await watch.total(f'holdfast_delivery_seconds_count{{stream="{STREAM}"}}') > 0
        assert await watch.total(f'holdfast_queue_messages{{queue="{STREAM}", state="dead"}}') == 0

        failing, parked, *others = KEYS
        await cluster.send(failing, do="fail")
        await cluster.until_all()
        letters = await cluster.letters()
        assert [letter.key for letter in letters] == [failing], f"it failed {MAX_TRIES} times"
        await watch.until_fired("DeadLettersGrow")

        await pause(cluster.state, f"{STREAM}/{parked}")
        await cluster.send(parked)
        await watch.until_fired("StreamsParked")

        assert not {"NodeDown", "NodeLost"} & await watch.fired()
        held = {claim.key.partition("/")[2] for claim in await cluster.claims("b")} - {parked}
        cluster.nodes["b"].signal(signal.SIGKILL)
        for key in held:
            await cluster.send(key, do="hang")  # its node is busy before the first commit there
        await cluster.send_each(others)
        await cluster.until(
            lambda: all(len(cluster.results[k]) >= cluster.sent[k] - (k in held) for k in others)
        )
        await watch.until_fired("NodeDown", "NodeLost")
        alerts = await prometheus.alerts()
        down = [alert for alert in alerts if alert["labels"]["alertname"] == "HoldfastNodeDown"]
        assert [alert["labels"]["instance"] for alert in down] == targets[1:]
        assert targets[1] in down[0]["annotations"]["summary"]
        await watch.until_fired("FailoverSlow")


@pytest.mark.nightly
async def test_alerts_of_work_fire_on_real_faults(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(module="alerts_app", app="working", task_slots=1, custody_limit=100)
    await cluster.start("a")
    async with PrometheusServer([await address(cluster, "a")], hurried(RULES.read_text())) as prometheus:
        watch = Watch(prometheus, 1)
        await watch.until_read()
        await send(cluster, "skipping", [0, 2])
        await send(cluster, "holding", [1])
        await send(cluster, "telling", [0])
        await send(cluster, "seeing", range(MANY))
        for n in range(4):
            await send(cluster, "dying", [n], key=f"k-{n}")
        await make_producer(cluster.services, "working").send([Order(task_type="failing", body={})])
        await watch.until_fired(*OF_WORK)


@pytest.mark.nightly
async def test_alerts_of_redis_fire_on_real_faults(make_cluster: MakeCluster) -> None:
    async with RedisServer() as keeping, RedisServer() as carrying:
        urls = {"url": carrying.url, "state_url": keeping.url}
        cluster = make_cluster(module="alerts_app", app="working", ttl_s=TTL_S, **urls)
        await cluster.start("a")
        async with PrometheusServer([await address(cluster, "a")], hurried(RULES.read_text())) as prometheus:
            watch = Watch(prometheus, 1)
            await watch.until_fired("StoreMayForget")  # both servers keep all in memory alone
            await watch.until_read()
            await cluster.send("cam", count=5)
            await cluster.until_count("cam", 5)
            async with keeping.client() as redis:
                await redis.flushall()
            await cluster.send("cam")
            await watch.until_fired("StoreForgot")
            assert not {"QueueUnknown", "NodeCutOff"} & await watch.fired()
            carrying.kill()
            await watch.until_fired("QueueUnknown", "NodeCutOff")


@pytest.mark.nightly
async def test_alerts_of_databases_fire_on_real_faults(
    make_cluster: MakeCluster, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.url
    async with MosquittoServer() as broker:
        devices = {"outbox_url": url, "devices_url": broker.url}
        cluster = make_cluster(module="alerts_app", app="opening", url=url, **devices)
        await cluster.start("a")
        with session(url) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")  # which takes the snapshot
            await asyncio.to_thread(leave_dead_rows, url)
            target = await address(cluster, "a")
            async with PrometheusServer([target], hurried(RULES.read_text())) as prometheus:
                watch = Watch(prometheus, 1)
                await watch.until_fired("HorizonHeld", "DeadRows")
                await watch.until_read()

                with locked(url, "holdfast.results") as database:
                    await cluster.send("cam")
                    await until(lambda: waits(database), "a commit waits to write its result")
                    since = time.monotonic()
                    await until(lambda: time.monotonic() > since + HOLD_S, "it has waited for long")
                await watch.until_fired("CommitsSlow")

                listening = await asyncio.to_thread(listen, broker.port)
                await asyncio.to_thread(add_command, url)

                async def is_out() -> bool:
                    return await watch.total("holdfast_outbox_in_flight") > 0

                await until(is_out, "a command is out")
                with locked(url, "holdfast_outbox_head"):
                    await watch.until_fired("OutboxStuck")
                assert "OutboxOffline" not in await watch.fired()
                listening.loop_stop()
                broker.kill()
                await watch.until_fired("OutboxOffline")


async def send(cluster: Cluster, stream: str, numbers: Iterable[int], key: str = "k") -> None:
    """Send messages with these numbers."""
    queue = cluster.services.queue(stream)
    outgoing = [Outgoing(json.dumps({"key": key, "n": n}).encode(), key=key) for n in numbers]
    for some in chunks(outgoing, queue.max_batch):
        await queue.send(some)


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A database session that ends with its transaction."""
    connection = psycopg.connect(url, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def locked(url: str, table: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that locks a table against writes."""
    with session(url) as database:
        database.execute("BEGIN")
        database.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        yield database


def waits(database: psycopg.Connection[Any]) -> bool:
    """True if a session waits for a lock."""
    return database.execute(BLOCKED).fetchone() != (0,)


def leave_dead_rows(url: str) -> None:
    """Leave old versions of rows, as programs do that write much while a session has a snapshot."""
    with session(url) as database:
        written = "SELECT 'old-' || n, 1, '' FROM generate_series(1, %s) AS n"
        database.execute(
            f"INSERT INTO holdfast.documents (name, version, body) {written}".encode(), (DEAD_ROWS,)
        )
        database.execute("DELETE FROM holdfast.documents WHERE name LIKE 'old-%'")


def listen(port: int) -> Client:
    """Switch a device on that receives commands, and answers none."""
    subscribed = threading.Event()
    device = Client(CallbackAPIVersion.VERSION2, "gate-1", protocol=MQTTProtocolVersion.MQTTv5)
    device.on_connect = lambda client, *_: client.subscribe("dev/face/gate-1", 1)
    device.on_subscribe = lambda *_: subscribed.set()
    device.connect("127.0.0.1", port)
    device.loop_start()
    assert subscribed.wait(PATIENCE_S)
    return device


def add_command(url: str) -> None:
    """Add a command to the device."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as database:
        gates.add(database, device="gate-1", command={"open": True})
    engine.dispose()
