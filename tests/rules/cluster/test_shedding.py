"""Which streams leave a node that sheds load, and who may take them."""

import msgspec
import pytest

from holdfast.rules.cluster.placement import Load, Member
from holdfast.rules.cluster.shedding import LOAD_COST, STATE_BYTES_A_COST, Movable, cost, takers, to_shed

TARGET = Member("b", "b", "http://b", Load(acting=()))


def movable(key: str, load: float = 1.0, **known: object) -> Movable:
    return msgspec.structs.replace(Movable(key, load, 0.0), **known)


def test_streams_that_make_up_the_load_are_chosen() -> None:
    streams = [movable("s/a", 0.5), movable("s/b", 0.25), movable("s/c", 0.25)]
    assert set(to_shed(streams, 0.75, TARGET, (), 10.0)) == {"s/a", "s/b"}


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
    assert to_shed([stays], 1.0, older, ("acts",), 10.0) == []


def test_a_target_that_is_not_known_is_no_reason_to_stay() -> None:
    assert to_shed([movable("acts/k")], 1.0, None, ("acts",), 10.0) == ["acts/k"]


def test_models_that_the_target_lacks_and_large_states_make_a_move_costly() -> None:
    warm = msgspec.structs.replace(TARGET, load=Load(warm=("s",)))
    stream = movable("s/k", has_models=True, state_bytes=2 * STATE_BYTES_A_COST)
    assert cost(stream, TARGET) == 3.0 + LOAD_COST
    assert cost(stream, warm) == cost(stream, None) == 3.0
    assert cost(movable("s/k"), TARGET) == 1.0


def test_other_programs_and_nodes_that_lack_a_model_take_no_stream() -> None:
    lacking = Member("c", "c", "http://c", Load(lacks=("s",)))
    foreign = Member("d", "d", "http://d", foreign=True)
    assert takers("s", [TARGET, lacking, foreign, Member("a", "a", "")], (), but="a") == [TARGET]
