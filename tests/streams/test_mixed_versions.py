"""Nodes of several versions beside each other: streams that act go to those that know effects and timers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.protocol import Done, Reply, WakeUp
from holdfast.common.protocol_versions import ProtocolVersions
from holdfast.ports.coordinator import Load
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
KEYS = [f"k{number}" for number in range(8)]


def app() -> App:
    made = App("town")

    @made.stream("s", idle_timeout_s=600.0)
    class Sleeper(StreamHandler[dict[str, Any]]):
        def process(self, message: dict[str, Any], context: Context) -> None:
            context.wake("up", after_s=60.0)

        def wake(self, name: str, body: Any, context: Context) -> str:
            return "woken"

    return made


async def start_older(town: Town, name: str) -> TownNode:
    """A node that tells what those tell that know no effects and no timers, and answers no nudge."""
    node = TownNode(town, name, app(), LIMITS)

    def load() -> Load:
        return msgspec.structs.replace(node.node.load(), acting=None)

    async def ask_nothing() -> int:
        return 0

    async def refuse(request: WakeUp) -> Reply:
        return Done(ok=False, text="nothing here answers a Nudge")

    node.host.membership.load = load
    node.host.inquiries.add(WakeUp, refuse)
    node.work.due.ask = ask_nothing  # type: ignore[method-assign]
    town.nodes.append(node)
    await node.node.start()
    return node


async def test_a_stream_that_acts_is_given_to_no_node_of_an_older_version(town: Town) -> None:
    newer = await town.start(app(), "newer")
    older = await start_older(town, "older")
    await town.until(lambda: len(newer.host.membership.view) == 2)
    for pump in older.work.pumps.values():
        pump.stopping = True  # what an older node itself places is its own affair
    await town.send(*({"key": key} for key in KEYS))
    await town.until_over()
    assert [key for key in KEYS if older.owns(f"s/{key}")] == []
    assert all(newer.owns(f"s/{key}") for key in KEYS)
    newer.host.draining = True
    await newer.work.drain()
    assert [key for key in KEYS if older.owns(f"s/{key}")] == [], "nor as the newer one ends"
    newer.host.draining = False


async def test_a_due_stream_that_an_older_node_owns_is_moved_away_from_it(town: Town) -> None:
    older = await start_older(town, "older")
    await town.send({"key": "k"})
    await town.until_over()
    newer = await town.start(app(), "newer")
    assert older.owns("s/k")
    standing = town.state.standing["s/k"]
    town.state.standing["s/k"] = msgspec.structs.replace(standing, due=1.0)
    await town.until(lambda: newer.owns("s/k"))
    await town.until(lambda: town.results("k") == ["woken"])


async def test_a_due_stream_whose_claim_an_older_node_has_without_an_owner_is_taken_from_it(
    town: Town,
) -> None:
    older = await start_older(town, "older")
    await town.send({"key": "k"})
    await town.until_over()
    older.work.owners.drop_all()  # and the claim stays, as after a lost message
    claim = await town.coordinator.lookup("s/k")
    assert claim is not None
    assert claim.member == older.host.membership.id
    newer = await town.start(app(), "newer")
    standing = town.state.standing["s/k"]
    town.state.standing["s/k"] = msgspec.structs.replace(standing, due=1.0)
    await town.until(lambda: newer.owns("s/k"))
    await town.until(lambda: town.results("k") == ["woken"])


async def test_every_node_tells_which_versions_of_the_protocol_it_speaks(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cluster.node.OUR_VERSIONS", ProtocolVersions(1, 2))
    node = await town.start(app(), "newer")
    [member] = await node.host.coordinator.members()
    assert member.load.speaks == ProtocolVersions(1, 2)
