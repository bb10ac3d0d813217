"""Whose turn it is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.tasks.rules.turns import Turns, TypeShare


def taken(turns: Turns[str], count: int, now: float = 0.0) -> list[str]:
    return [item for _ in range(count) if (item := turns.take(now)) is not None]


def test_one_group_comes_in_the_order_of_its_arrival() -> None:
    turns: Turns[str] = Turns({"t": TypeShare()})
    for item in "abc":
        turns.add("t", "", 0, item)
    assert taken(turns, 9) == ["a", "b", "c"]
    assert len(turns) == 0


def test_a_large_group_lets_small_ones_in() -> None:
    turns: Turns[str] = Turns({"t": TypeShare()})
    for _ in range(100):
        turns.add("t", "large", 0, "large")
    assert taken(turns, 2) == ["large", "large"]
    for group in ("s1", "s2"):
        turns.add("t", group, 0, group)
    assert taken(turns, 3) == ["s1", "s2", "large"]


def test_types_share_by_weight() -> None:
    turns: Turns[str] = Turns({"light": TypeShare(weight=1), "heavy": TypeShare(weight=3)})
    for name in ("light", "heavy"):
        for _ in range(100):
            turns.add(name, "", 0, name)
    assert Counter(taken(turns, 40)) == {"heavy": 30, "light": 10}


def test_a_higher_priority_goes_first() -> None:
    turns: Turns[str] = Turns({"t": TypeShare()})
    for priority in (0, 5, -1):
        turns.add("t", "", priority, str(priority))
    assert taken(turns, 3) == ["5", "0", "-1"]


def test_a_group_of_which_nothing_is_left_comes_back_as_a_new_one() -> None:
    turns: Turns[str] = Turns({"t": TypeShare()})
    turns.add("t", "h", 0, "h")
    assert turns.ready == 1
    assert taken(turns, 9) == ["h"]
    turns.done("t", "h")
    assert turns.ready == 0
    for group in ("g", "h"):
        turns.add("t", group, 0, group)
    assert taken(turns, 9) == ["g", "h"]


def test_a_limit_holds_a_group_back_until_one_of_its_own_is_done() -> None:
    turns: Turns[str] = Turns({"t": TypeShare(group_limit=2)})
    for _ in range(5):
        turns.add("t", "g", 0, "g")
    turns.add("t", "h", 0, "h")
    assert turns.ready == 3
    assert sorted(taken(turns, 9)) == ["g", "g", "h"]
    assert turns.ready == 0
    turns.done("t", "g")
    assert turns.ready == 1
    assert taken(turns, 9) == ["g"]


def test_a_rate_spreads_the_beginnings_of_a_group() -> None:
    turns: Turns[str] = Turns({"t": TypeShare(group_rate=10)})
    for _ in range(3):
        turns.add("t", "g", 0, "g")
    assert taken(turns, 9, now=0.0) == ["g"]
    assert turns.rests_until() == 0.1
    turns.done("t", "g")
    assert taken(turns, 9, now=0.05) == []
    assert taken(turns, 9, now=0.1) == ["g"]
    assert taken(turns, 9, now=0.5) == ["g"]


def test_all_that_waits_can_be_taken_back() -> None:
    turns: Turns[str] = Turns({"t": TypeShare(group_limit=1)})
    for item in "abc":
        turns.add("t", "g", ord(item), item)
    assert taken(turns, 1) == ["c"]
    assert sorted(turns.drain()) == ["a", "b"]
    assert (len(turns), turns.take(0.0), turns.rests_until()) == (0, None, None)


@given(
    st.lists(
        st.tuples(st.sampled_from(("add", "take", "done")), st.sampled_from("ab"), st.sampled_from("xyz")),
        max_size=80,
    ),
    st.integers(0, 2),
)
def test_nothing_is_lost_and_no_limit_is_passed(steps: list[tuple[str, str, str]], limit: int) -> None:
    turns: Turns[tuple[str, str, int]] = Turns({name: TypeShare(group_limit=limit) for name in "ab"})
    waiting: set[tuple[str, str, int]] = set()
    running: Counter[tuple[str, str]] = Counter()
    for number, (step, type_, group) in enumerate(steps):
        if step == "add":
            item = (type_, group, number)
            turns.add(type_, group, number % 2, item)
            waiting.add(item)
        elif step == "take":
            found = turns.take(0.0)
            free = {(t, g) for t, g, _ in waiting if not limit or running[t, g] < limit}
            assert (found is None) == (not free)
            if found is not None:
                waiting.remove(found)
                running[found[:2]] += 1
                assert not limit or running[found[:2]] <= limit
        elif running[type_, group]:
            running[type_, group] -= 1
            turns.done(type_, group)
        assert len(turns) == len(waiting)
        places = {(t, g) for t, g, _ in waiting}
        ready = sum(
            min(
                sum(item[:2] == place for item in waiting),
                limit - running[place] if limit else len(waiting),
            )
            for place in places
        )
        assert bool(turns.ready) == bool(ready)
