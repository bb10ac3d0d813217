"""A node that ended without a drain stays in the console for an hour, with what became of its streams."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.console.lost import KEPT_S, NODES_MAX, LostNodes, lost_since
from holdfast.ports.coordinator import Load, Member


def node(identity: str, *, draining: bool = False, started_at: float = 1.0, name: str = "") -> Member:
    return Member(
        identity, name or f"node-{identity}", "http://n", Load(draining=draining, started_at=started_at)
    )


class Cluster:
    """Claims of streams, and the living members."""

    def __init__(self) -> None:
        self.now = 0.0
        self.living: dict[str, Member] = {}
        self.claims: dict[str, str] = {}
        clock = SimpleNamespace(monotonic=lambda: self.now, wall=lambda: self.now + 1e9)
        self.lost = LostNodes(
            cast("Any", clock),
            self.living.values,
            lambda member: [key for key, owner in self.claims.items() if owner == member],
            lambda key: self.claims.get(key, ""),
        )


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.living["b"] = node("b")
    made.claims |= {"s/1": "a", "s/2": "a", "s/3": "b"}
    return made


def test_a_killed_node_stays_for_an_hour_with_what_became_of_its_streams(cluster: Cluster) -> None:
    cluster.lost.left(node("a"))
    (lost,) = cluster.lost.all()
    assert (lost.name, lost.at, lost.streams, lost.elsewhere) == ("node-a", 1e9, 2, 0)
    assert lost.sentence == "0 of its 2 streams are on other nodes; 2 on none, until their next message"
    cluster.claims["s/1"] = "b"
    cluster.now = 300.0
    (lost,) = cluster.lost.all()
    assert lost_since(lost, 1e9 + 300.0) == (
        "node-a ended without a drain 5 min ago: 1 of its 2 streams is on other nodes; 1 on none, until"
        " their next message"
    )
    cluster.claims["s/2"] = "b"
    assert cluster.lost.all()[0].sentence == "2 of its 2 streams are on other nodes"
    cluster.now = KEPT_S + 1.0
    assert cluster.lost.all() == []


def test_a_node_without_streams_is_lost_too(cluster: Cluster) -> None:
    cluster.lost.left(node("c"))
    assert [lost.sentence for lost in cluster.lost.all()] == ["it had no streams"]


def test_a_node_that_drained_is_not_lost_though_that_is_told_later(cluster: Cluster) -> None:
    cluster.lost.left(node("c", draining=True))
    assert cluster.lost.all() == []
    cluster.lost.left(node("a"))  # as it was last seen, before it began to drain
    cluster.lost.left(node("a", draining=True))
    assert cluster.lost.all() == []


def test_a_node_that_joined_again_is_not_lost_and_its_successor_of_the_same_name_is_another(
    cluster: Cluster,
) -> None:
    cluster.lost.left(node("a"))
    cluster.living["a2"] = node("a2", name="node-a")
    assert cluster.lost.all() == [], "the same process, with a new membership"
    cluster.living["a2"] = node("a2", name="node-a", started_at=2.0)
    assert [lost.id for lost in cluster.lost.all()] == ["a"]


def test_the_last_lost_come_first_and_no_more_than_a_few_are_kept(cluster: Cluster) -> None:
    for number in range(NODES_MAX + 10):
        cluster.lost.left(node(str(number)))
    found = cluster.lost.all()
    assert (len(found), found[0].id) == (NODES_MAX, str(NODES_MAX + 9))
