"""The balancer: one node decides, and only nodes that may take a stream's load are given any."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.cluster.balancer import Balancer
from holdfast.ports.coordinator import Load, Member
from holdfast.rules.cluster.balance import Shift
from tests.cluster.fakes import Log


def balancer(*members: Member, me: str = "a") -> Balancer:
    membership = SimpleNamespace(id=me, view={member.id: member for member in members})
    host = SimpleNamespace(clock=None, limits=None, log=Log(), membership=membership)
    return Balancer(cast("Any", host))


def node(name: str, busy: float, *, foreign: bool = False, **load: Any) -> Member:
    return Member(name, name, f"sim://{name}", Load(slots=4, busy=busy, **load), foreign=foreign)


def test_load_goes_from_the_hot_to_the_cold() -> None:
    assert balancer(node("a", 4.0), node("b", 0.0)).shifts() == [Shift("a", "b", 2.0)]


@pytest.mark.parametrize("other", [node("b", 0.0, draining=True), node("b", 0.0, foreign=True)])
def test_nothing_goes_to_who_drains_or_is_another_program_s(other: Member) -> None:
    assert balancer(node("a", 4.0), other).shifts() == []


def test_nothing_goes_to_nodes_of_other_streams() -> None:
    assert balancer(node("a", 4.0, serves=("frames",)), node("b", 0.0, serves=("orders",))).shifts() == []


def test_idle_nodes_are_not_worth_it() -> None:
    assert balancer(node("a", 0.05), node("b", 0.0)).shifts() == []


def test_the_first_of_the_living_decides_and_no_other_program() -> None:
    members = (node("0", 0.0, foreign=True), node("a", 0.0), node("b", 0.0))
    assert [balancer(*members, me=name).elected for name in ("a", "b")] == [True, False]


def test_nothing_goes_to_nodes_of_an_older_revision_which_are_about_to_be_replaced() -> None:
    old = node("b", 0.0, revision="one", started_at=1.0)
    new = node("a", 4.0, revision="two", started_at=2.0)
    assert balancer(new, old).shifts() == []
    assert balancer(
        node("a", 0.0, revision="two", started_at=2.0), node("b", 4.0, revision="one")
    ).shifts() == [Shift("b", "a", 2.0)]
