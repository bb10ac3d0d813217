"""The rates of groups of devices."""

from holdfast.core.group_rate import GroupRate


def test_each_that_waits_for_its_group_gets_its_own_moment() -> None:
    groups = GroupRate(lambda device: device[0], {"a": 2.0})
    pairs = [(f"a{n}", 0) for n in range(6)]
    assert [groups.wait_until(pair, 100.0) for pair in pairs] == [0.0, 0.0, 100.5, 101.0, 101.5, 102.0]
    assert [groups.wait_until(pair, 100.1) for pair in pairs[2:]] == [100.5, 101.0, 101.5, 102.0]
    assert [groups.wait_until(pair, 101.0) for pair in pairs[2:]] == [0.0, 0.0, 101.5, 102.0]
    assert groups.wait_until(("b1", 0), 100.0) == 0.0
