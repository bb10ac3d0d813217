"""The rates of groups of devices, and of rollouts."""

from collections.abc import Mapping
from unittest import mock

from holdfast.devices.rules.group_rate import BURST_S, ROLLOUTS_MAX, GroupRate, RolloutRates
from holdfast.extend.tools import Limiter, Rate


def test_each_that_waits_for_its_group_gets_its_own_moment() -> None:
    groups = GroupRate(lambda device: device[0], {"a": 2.0})
    pairs = [(f"a{n}", 0) for n in range(6)]
    assert [groups.wait_until(pair, 100.0) for pair in pairs] == [0.0, 100.5, 101.0, 101.5, 102.0, 102.5]
    assert [groups.wait_until(pair, 100.1) for pair in pairs[1:]] == [100.5, 101.0, 101.5, 102.0, 102.5]
    assert [groups.wait_until(pair, 100.5) for pair in pairs[1:]] == [0.0, 101.0, 101.5, 102.0, 102.5]
    assert groups.wait_until(("b1", 0), 100.0) == 0.0


def test_moments_that_passed_while_nothing_could_be_sent_don_t_come_all_at_once() -> None:
    groups = GroupRate(lambda device: device[0], {"a": 2.0})
    pairs = [(f"a{n}", 0) for n in range(100)]
    for pair in pairs:
        groups.wait_until(pair, 100.0)
    assert [groups.wait_until(pair, 200.0) for pair in pairs].count(0.0) == 1


def test_heads_that_are_looked_at_late_go_on_at_the_rate() -> None:
    """Each moment has passed for a second when its head is looked at: others go first."""
    groups = GroupRate(lambda _: "", {"": 10.0})
    looks, went, now = {(f"d{n}", 0): 100.0 for n in range(100)}, 0, 100.0
    while now < 160.0:
        for pair in [pair for pair, at in looks.items() if at <= now]:
            at = groups.wait_until(pair, now)
            went += at == 0.0
            looks[pair] = max(at, now) + 1.0
        now += 0.05
    assert 540 <= went <= 610


def test_rounded_wall_times_make_no_moment() -> None:
    groups = GroupRate(lambda _: "", {"": 6.0})
    for n in range(100):
        now = 1_700_000_041.005 + n * 2.001
        assert groups.wait_until(("d1", 0), now) == 0.0


def test_no_second_has_more_than_its_rate() -> None:
    groups = GroupRate(lambda _: "", {"": 40.0})
    waiting, went, now = {(f"d{n}", 0): 0.0 for n in range(200)}, [], 100.0
    while waiting:
        ready = [pair for pair, at in waiting.items() if at <= now]
        for pair in ready:
            if (at := groups.wait_until(pair, now)) > 0:
                waiting[pair] = at
            else:
                went.append(now)
                del waiting[pair]
        now += 0.01
    busiest = max(sum(begin <= at < begin + 1.0 for at in went) for begin in went)
    assert busiest <= 40 * (1 + BURST_S) + 1, "with a burst of a second it would be twice the rate"


def test_each_rollout_has_its_rate_of_which_this_is_a_share() -> None:
    rollouts = RolloutRates(share=0.5)
    pairs = [(f"d{n}", 0) for n in range(4)]
    assert [rollouts.wait_until(7, 4.0, pair, 100.0) for pair in pairs] == [0.0, 100.5, 101.0, 101.5]
    assert rollouts.wait_until(8, 4.0, pairs[0], 100.0) == 0.0
    assert rollouts.wait_until(7, 4.0, pairs[1], 100.5) == 0.0


def test_a_share_that_changes_is_kept_to_at_once_and_forgives_nothing() -> None:
    groups = GroupRate(lambda _: "a", {"a": 4.0}, share=0.25)
    pairs = [(f"d{n}", 0) for n in range(8)]
    assert [groups.wait_until(pair, 100.0) for pair in pairs[:3]] == [0.0, 101.0, 102.0]
    groups.take_share(1.0)
    assert groups.wait_until(pairs[3], 101.0) > 101.0
    groups.take_share(0.0)
    assert groups.wait_until(pairs[4], 101.0) == 0.0, "who serves nothing limits nothing"
    rollouts = RolloutRates(share=0.0)
    rollouts.take_share(0.5)
    assert [rollouts.wait_until(7, 4.0, pair, 100.0) for pair in pairs[:3]] == [0.0, 100.5, 101.0]
    rollouts.take_share(0.25)
    assert [rollouts.wait_until(7, 4.0, pair, 100.0) for pair in pairs[3:5]] == [101.5, 102.5]


def test_a_share_that_changes_touches_nothing_that_a_turn_in_another_thread_uses() -> None:
    groups, rollouts = GroupRate(lambda _: "a", {"a": 4.0}), RolloutRates(share=1.0)
    groups.wait_until(("d1", 0), 100.0)
    for rollout in (7, 8):
        rollouts.wait_until(rollout, 4.0, ("d1", 0), 100.0)

    def meanwhile(limiter: Limiter, default: Rate | None, rates: Mapping[str, Rate] | None = None) -> None:
        raise AssertionError("the rates are changed under the turn that asks for them")

    with mock.patch.object(Limiter, "change", meanwhile):
        groups.take_share(0.5)
        rollouts.take_share(0.5)
    pairs, expected = [("d2", 0), ("d3", 0)], [100.25, 100.75]
    assert [groups.wait_until(pair, 100.0) for pair in pairs] == expected, "what comes next has the new share"
    assert [rollouts.wait_until(7, 4.0, pair, 100.0) for pair in pairs] == expected


def test_a_device_without_a_group_has_no_limit() -> None:
    groups = GroupRate({"d1": "a"}.get, {"a": 2.0})
    assert [groups.wait_until(("d1", lane), 100.0) for lane in range(2)] == [0.0, 100.5]
    assert [groups.wait_until(("d2", lane), 100.0) for lane in range(2)] == [0.0, 0.0]


def test_rollouts_that_were_asked_about_long_ago_are_forgotten() -> None:
    rollouts = RolloutRates(share=1.0)
    for rollout in (*range(ROLLOUTS_MAX), 0, ROLLOUTS_MAX):
        rollouts.wait_until(rollout, 1.0, ("d1", 0), 100.0)
    assert rollouts.wait_until(0, 1.0, ("d2", 0), 100.0) > 100.0
    assert rollouts.wait_until(1, 1.0, ("d2", 0), 100.0) == 0.0
