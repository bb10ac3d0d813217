"""What tests do to nodes under load, whichever services these use: kill one, stop one, drain one."""

import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

from tests.nodes.cluster import STREAM, Cluster

KEYS = [f"cam-{i}" for i in range(8)]
FAIL_OVER_S = 20.0
"""The longest pause of a stream: shorter than any membership or visibility in these tests."""

TTL_S = 3.0
FOREVER_S = 60.0


async def owned(cluster: Cluster, name: str) -> list[str]:
    """Return the keys of a node, which must have some for a test to mean anything."""
    keys = [claim.key.removeprefix(f"{STREAM}/") for claim in await cluster.claims(name)]
    assert keys, f"{name} owns nothing"
    return keys


def all_went_on(cluster: Cluster, since: float) -> Callable[[], bool]:
    """Return a condition: every stream has a result from after that wall time."""
    return lambda: all(cluster.results[key] and cluster.results[key][-1].at > since for key in KEYS)


@contextlib.asynccontextmanager
async def under_load(cluster: Cluster, *names: str, per_key: int = 100) -> AsyncIterator[None]:
    """Start nodes, and send messages of all keys; enter once every key has results."""
    await cluster.start(*names)
    async with cluster.load(KEYS, per_key):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        yield


async def kill_one(cluster: Cluster, *others: str, per_key: int = 100) -> tuple[float, list[str]]:
    """Kill node "b" under load; its streams go on at the others. Return when, and the streams that it had."""
    async with under_load(cluster, "a", "b", *others, per_key=per_key):
        lost = await owned(cluster, "b")
        killed_at = time.time()
        cluster.nodes["b"].signal(signal.SIGKILL)
        await cluster.send_each(KEYS)
        await cluster.until(all_went_on(cluster, killed_at + 0.01))
    await cluster.check(alive=["a", *others])
    return killed_at, lost


async def stop_past_ttl(cluster: Cluster) -> None:
    """Stop node "a" before its commits until its membership has ended, then let it go on: the state store
    refuses its commits, and it joins again."""
    async with under_load(cluster, "a", "b"):
        a = cluster.nodes["a"]
        a.order("stop-before-commit")
        await cluster.send_each(KEYS)
        late = await a.stopped_before_commit()
        await cluster.until_members("b")
        await cluster.until_reopened(late)
        a.signal(signal.SIGCONT)
        await a.until_said("joined", times=2)
    await cluster.check(alive=["a", "b"])
    assert await a.metric("holdfast_fenced_total") >= 1


async def drain_one(cluster: Cluster) -> None:
    """Drain one of two nodes under load: its streams go on at the other before deliveries show again."""
    async with under_load(cluster, "a", "b"):
        await owned(cluster, "a")
        cluster.nodes["a"].signal(signal.SIGTERM)
        await cluster.send_each(KEYS)
        assert await cluster.nodes["a"].ended() == 0
    await cluster.check(alive=["b"])
    (drained,) = cluster.nodes["a"].said("drained")
    assert drained["left"] == 0
    for key in KEYS:
        times = [logged.at for logged in cluster.results[key]]
        assert max(b - a for a, b in pairwise(times)) < FAIL_OVER_S


async def hurt_service(cluster: Cluster, hurt: Callable[[], Awaitable[None]], *names: str) -> None:
    """Hurt a service of nodes under load: all streams go on."""
    async with under_load(cluster, *names):
        await hurt()
        since = time.time()
        await cluster.send_each(KEYS)  # the earlier messages may all be done
        await cluster.until(all_went_on(cluster, since))
    await cluster.check(alive=names)
