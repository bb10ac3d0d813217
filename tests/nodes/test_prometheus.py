"""A real Prometheus reads real nodes with the rules of this project: its alerts fire on real faults."""

from __future__ import annotations

import re
import signal

from deploy.generate import RULES
from holdfast.streams.operations import pause
from simulator.servers import PrometheusServer
from tests.nodes.chaos_app import MAX_TRIES
from tests.nodes.cluster import STREAM, Cluster, until
from tests.nodes.conftest import MakeCluster

KEYS = [f"cam-{i}" for i in range(6)]
AT_ONCE = re.sub(r"for: \d+m", "for: 0m", RULES.read_text())
"""The rules, for a test that can't wait for minutes; promtool tests how long each lasts."""


async def address(cluster: Cluster, name: str) -> str:
    joined = await cluster.nodes[name].until_said("joined")
    return str(joined["address"]).partition("://")[2]


async def fired(prometheus: PrometheusServer) -> set[str]:
    return {alert["labels"]["alertname"] for alert in await prometheus.alerts() if alert["state"] == "firing"}


async def total(prometheus: PrometheusServer, expr: str) -> float:
    return sum((await prometheus.value(expr)).values())


async def test_alerts_fire_on_real_faults(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(ttl_s=60.0)
    await cluster.start("a", "b")
    targets = [await address(cluster, name) for name in ("a", "b")]
    async with PrometheusServer(targets, AT_ONCE) as prometheus:
        await cluster.send_each(KEYS)
        await cluster.until_all()

        async def knows_both() -> bool:
            return await total(prometheus, "sum_over_time(up[1m])") >= 4 and (
                await total(prometheus, "holdfast_committed_total") >= len(KEYS)
            )

        await until(knows_both, "Prometheus has read both nodes twice")
        assert await fired(prometheus) == set(), "nothing is wrong"
        assert await total(prometheus, f'holdfast_delivery_seconds_count{{stream="{STREAM}"}}') > 0
        assert await total(prometheus, f'holdfast_queue_messages{{queue="{STREAM}", state="dead"}}') == 0

        failing, parked, *others = KEYS
        await cluster.send(failing, do="fail")
        await cluster.until_all()
        letters = await cluster.letters()
        assert [letter.key for letter in letters] == [failing], f"it failed {MAX_TRIES} times"

        async def tells_dead_letters() -> bool:
            return "HoldfastDeadLettersGrow" in await fired(prometheus)

        await until(tells_dead_letters, "the alert of dead letters fires")

        await pause(cluster.state, f"{STREAM}/{parked}")
        await cluster.send(parked)

        async def tells_parked() -> bool:
            return "HoldfastStreamsParked" in await fired(prometheus)

        await until(tells_parked, "the alert of parked streams fires")

        before = await fired(prometheus)
        assert "HoldfastNodeDown" not in before
        cluster.nodes["b"].signal(signal.SIGKILL)
        await cluster.send_each(others)
        await cluster.until(lambda: all(len(cluster.results[key]) >= cluster.sent[key] for key in others))

        async def tells_lost_node() -> bool:
            return {"HoldfastNodeDown", "HoldfastNodeLost"} <= await fired(prometheus)

        await until(tells_lost_node, "the alerts of lost nodes fire")
        down = [
            alert for alert in await prometheus.alerts() if alert["labels"]["alertname"] == "HoldfastNodeDown"
        ]
        assert [alert["labels"]["instance"] for alert in down] == targets[1:]
        assert targets[1] in down[0]["annotations"]["summary"]
        stalls = await total(prometheus, f'holdfast_stall_seconds_count{{stream="{STREAM}"}}')
        assert stalls > 0, "streams of the node that was killed go on at the other"
