"""Balance: the least load moves from the hottest nodes, in the cheapest streams."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.cluster.balance import (
    BAND,
    LOAD_COST,
    OVERSHOOT,
    STATE_BYTES_A_COST,
    Movable,
    NodeLoad,
    Shift,
    StreamLoad,
    cost,
    pick,
    plan,
    streams_to_move,
)
from holdfast.rules.cluster.placement import Load, Member, able_members


def nodes(*loads: float) -> list[NodeLoad]:
    return [NodeLoad(f"n{i}", load) for i, load in enumerate(loads)]


def test_what_is_within_the_band_stays() -> None:
    assert plan(nodes(1.0, 1.09, 0.91), 9) == []


def test_a_hot_node_gives_its_excess_to_the_coldest() -> None:
    assert plan(nodes(3.0, 1.0, 2.0), 9) == [Shift("n0", "n1", 1.0)]


def test_an_excess_may_go_to_several() -> None:
    assert plan(nodes(6.0, 0.0, 0.0), 9) == [Shift("n0", "n1", 2.0), Shift("n0", "n2", 2.0)]
    assert plan(nodes(4.0, 4.0, 1.0, 3.0), 9) == [Shift("n0", "n2", 1.0), Shift("n1", "n2", 1.0)]


def test_a_plan_has_no_more_shifts_than_asked_for() -> None:
    assert len(plan(nodes(6.0, 0.0, 0.0), 1)) == 1


def test_a_node_of_more_capacity_may_have_more_load() -> None:
    assert plan([NodeLoad("big", 3.0, 3.0), NodeLoad("small", 1.0, 1.0)], 9) == []
    assert plan([NodeLoad("big", 2.0, 3.0), NodeLoad("small", 2.0, 1.0)], 9) == [Shift("small", "big", 1.0)]


def test_small_gains_are_not_worth_it() -> None:
    crowd = [NodeLoad(f"n{i:03}", 1.0) for i in range(200)]
    hot = NodeLoad("hot", 1.2)
    barely_cold = [NodeLoad("cold", 0.9985)]
    assert all(shift.amount >= 0.01 * 0.99 for shift in plan([*crowd, hot, *barely_cold], 99))


@pytest.mark.parametrize("loads", [(), (5.0,), (0.0, 0.0)])
def test_there_is_nothing_to_do_alone_or_idle(loads: tuple[float, ...]) -> None:
    assert plan(nodes(*loads), 9) == []


def test_nodes_without_capacity_do_not_count() -> None:
    assert plan([NodeLoad("a", 4.0), NodeLoad("none", 0.0, 0.0)], 9) == []


@pytest.mark.slow
@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_shifts_never_make_another_node_hot(loads: list[float]) -> None:
    after = {f"n{i}": load for i, load in enumerate(loads)}
    mean = sum(loads) / len(loads)
    for shift in plan(nodes(*loads), 1000):
        assert shift.amount > 0
        after[shift.source] -= shift.amount
        after[shift.target] += shift.amount
        assert after[shift.target] <= mean * (1 + 1e-6)
    assert max(after.values()) <= max(mean * (1 + BAND) + 0.01 * mean * len(loads), mean * 1.2) + 1e-6


def test_the_cheapest_for_their_load_go_first() -> None:
    dear, cheap = StreamLoad("dear", 1.0, cost=10.0), StreamLoad("cheap", 1.0)
    assert pick([dear, cheap], 1.0, 9) == [cheap]
    assert pick([dear, cheap], 2.0, 9) == [cheap, dear]


def test_a_stream_hotter_than_the_whole_stays() -> None:
    hot, warm = StreamLoad("hot", 5.0), StreamLoad("warm", 1.0)
    assert pick([hot, warm], 2.0, 9) == [warm]


def test_idle_streams_are_not_moved_for_load() -> None:
    assert pick([StreamLoad("idle", 0.0)], 1.0, 9) == []


def test_a_pick_has_no_more_streams_than_asked_for() -> None:
    assert len(pick([StreamLoad(f"k{i}", 1.0) for i in range(9)], 9.0, 4)) == 4


@given(st.lists(st.floats(0, 10), max_size=50), st.floats(0.1, 50))
def test_a_pick_never_exceeds_what_was_asked_by_much(loads: list[float], amount: float) -> None:
    streams = [StreamLoad(f"k{i}", load) for i, load in enumerate(loads)]
    assert sum(stream.load for stream in pick(streams, amount, 99)) <= amount * (1 + OVERSHOOT) + 1e-9


def test_the_band_is_a_share_of_what_a_node_bears() -> None:
    assert plan([NodeLoad("large", 10.5, 10.0), NodeLoad("small", 0.5, 1.0)], 9) == []


def test_what_takes_nothing_gets_nothing_and_still_gives() -> None:
    cold, hot = NodeLoad("cold", 0.0, takes=False), NodeLoad("hot", 4.0, takes=False)
    assert plan([cold, hot], 9) == []
    (shift,) = plan([cold, hot, NodeLoad("new", 2.0, capacity=2.0)], 9)
    assert shift == Shift("hot", "new", 1.0)


TARGET = Member("b", "b", "http://b", Load(acting=()))


def movable(key: str, load: float = 1.0, **known: object) -> Movable:
    return msgspec.structs.replace(Movable(key, load, 0.0), **known)


def test_streams_with_the_requested_load_are_chosen() -> None:
    streams = [movable("s/a", 0.5), movable("s/b", 0.25), movable("s/c", 0.25)]
    assert set(streams_to_move(streams, 0.75, TARGET, (), 10.0)) == {"s/a", "s/b"}


@pytest.mark.parametrize(
    "stays",
    [
        movable("s/late", since=11.0),
        movable("s/leaving", stays=True),
        movable("acts/k"),
        movable("s/newer", state_version=9),
    ],
    ids=["moved here lately", "leaves or waits", "acts", "newer state"],
)
def test_a_stream_that_must_stay_is_not_chosen(stays: Movable) -> None:
    older = Member("b", "b", "http://b", Load(acting=None, reads={"s": 1}))
    assert streams_to_move([stays], 1.0, older, ("acts",), 10.0) == []


def test_a_stream_may_leave_for_an_unknown_target() -> None:
    assert streams_to_move([movable("acts/k")], 1.0, None, ("acts",), 10.0) == ["acts/k"]


def test_models_that_the_target_lacks_and_large_states_make_a_move_costly() -> None:
    warm = msgspec.structs.replace(TARGET, load=Load(warm=("s",)))
    stream = movable("s/k", has_models=True, state_bytes=2 * STATE_BYTES_A_COST)
    assert cost(stream, TARGET) == 3.0 + LOAD_COST
    assert cost(stream, warm) == cost(stream, None) == 3.0
    assert cost(movable("s/k"), TARGET) == 1.0


def test_other_programs_and_nodes_without_a_model_can_own_no_stream() -> None:
    lacking = Member("c", "c", "http://c", Load(lacks=("s",)))
    foreign = Member("d", "d", "http://d", foreign=True)
    assert able_members("s", [TARGET, lacking, foreign, Member("a", "a", "")], (), but="a") == [TARGET]
