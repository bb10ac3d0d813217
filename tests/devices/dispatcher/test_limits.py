"""The limits of an outbox on one node."""

from holdfast import App
from holdfast.devices.dispatcher.limits import TURN_MAX, TURN_MIN, TURN_S, NodeLimits
from tests.cluster.fakes import Log


def limits(**settings: object) -> NodeLimits:
    return NodeLimits(App("office").outbox("doors", shards=4, **settings).spec, Log())  # type: ignore[arg-type]


def test_a_node_has_the_part_of_the_limits_that_it_has_of_the_shards() -> None:
    node = limits(in_flight_max=40, rate=400.0)
    node.take_share(4)
    assert (node.in_flight_max, node.sendable(0.0)) == (40, 20)
    node.take_share(1)
    assert (node.in_flight_max, node.sendable(0.0)) == (10, 5)
    node.take_share(0)
    assert node.in_flight_max == 10, "nothing is sent without a shard"


def test_after_more_than_the_rate_allows_nothing_goes_for_a_while() -> None:
    node = limits(rate=10.0)
    node.take_share(4)
    node.spend(5, 100.0)
    assert node.sendable(100.0) == 0
    wait_s = node.wait_s(100.0)
    assert 0.3 < wait_s < 0.6
    assert node.sendable(100.0 + wait_s) == 1


def test_turns_that_last_long_take_fewer_rows_until_they_are_short_again() -> None:
    node = limits()
    assert node.turn_max == TURN_MAX
    for _ in range(20):
        node.note_turn(2 * TURN_S)
    assert node.turn_max == TURN_MIN
    for _ in range(100):
        node.note_turn(TURN_S / 2)
    assert node.turn_max == TURN_MAX
