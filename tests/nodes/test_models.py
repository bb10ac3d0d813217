"""Models on real nodes: each is loaded once a slot, and before a stream is moved to it."""

import asyncio
import json
import os
from typing import Any

import pytest

from tests.nodes.cluster import Cluster, Process, _get, until
from tests.nodes.conftest import MakeCluster

KEYS = [f"k{i}" for i in range(6)]


async def let_load(node: Process) -> None:
    """Return once a load has begun, and been let go on."""
    await asyncio.to_thread((node.place / "weights").write_text, "bytes")


def loads(node: Process) -> int:
    """How many loads a node has begun."""
    path = node.place / "loads"
    return len(path.read_text().split()) if path.exists() else 0


async def models(address: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await asyncio.to_thread(_get, f"{address}/v1/models"))["models"]
    return found


async def address_of(node: Process) -> str:
    address: str = (await node.until_said("joined"))["address"]
    return address


async def started(cluster: Cluster, name: str) -> Process:
    """A node whose loads read from a FIFO: each goes on when the test writes there."""
    (cluster.place / f"node-{name}").mkdir()
    os.mkfifo(cluster.place / f"node-{name}" / "weights")
    await cluster.start(name)
    return cluster.nodes[name]


@pytest.mark.slow
async def test_a_model_is_loaded_once_however_many_streams_ask(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(app="seeing", move_timeout_s=1.0)
    a = await started(cluster, "a")
    for key in KEYS:
        await cluster.send(key, count=5)
    await let_load(a)
    await cluster.until(lambda: all(len(cluster.results[key]) == 5 for key in KEYS))
    assert loads(a) == 1
    shown = {"name": "weights", "memory_mb": 10, "slots": 1, "loading": 0, "streams": len(KEYS), "error": ""}
    assert await models(await address_of(a)) == [shown]
    assert await a.metric("holdfast_model_memory_mb") == 10

    b = await started(cluster, "b")
    a.child.terminate()
    await until(lambda: loads(b), "b loads the model")
    assert (await models(await address_of(b)))[0] == shown | {"slots": 0, "loading": 1, "streams": 0}
    assert len(await cluster.claims("a")) == len(KEYS), "no stream goes before the model is there"
    for key in KEYS:
        await cluster.send(key, count=5)
    await cluster.until(lambda: all(len(cluster.results[key]) == 10 for key in KEYS))
    assert not await cluster.claims("b"), "a goes on meanwhile"
    await let_load(b)
    assert await a.ended() == 0
    assert loads(b) == 1
    await cluster.check(alive=["b"])


@pytest.mark.nightly
async def test_a_gateway_tells_who_has_which_models(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(app="seeing")
    a = await started(cluster, "a")
    gateway = await cluster.gateway()
    assert await models(gateway) == []
    await cluster.send("k")
    await let_load(a)
    await cluster.until_count("k", 1)

    async def has_route() -> bool:
        return await models(gateway) == [{"name": "weights", "nodes": ["a"]}]

    await until(has_route, "the gateway knows")
