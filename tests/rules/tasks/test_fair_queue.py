"""Fair queueing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.tasks.fair_queue import GROUPS_MIN, FairQueue, Permits, TypeShare
from holdfast.rules.tasks.rates import WINDOW_S


def taken(queue: FairQueue[str], count: int, now: float = 0.0) -> list[str]:
    return [item for _ in range(count) if (item := queue.take(now)) is not None]


def test_one_group_comes_in_the_order_of_its_arrival() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare()})
    for item in "abc":
        queue.add("t", "", 0, item)
    assert taken(queue, 9) == ["a", "b", "c"]
    assert len(queue) == 0


def test_a_large_group_lets_small_ones_in() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare()})
    for _ in range(100):
        queue.add("t", "large", 0, "large")
    assert taken(queue, 2) == ["large", "large"]
    for group in ("s1", "s2"):
        queue.add("t", group, 0, group)
    assert taken(queue, 3) == ["s1", "s2", "large"]


def test_types_of_tasks_share_the_queue_by_weight() -> None:
    queue: FairQueue[str] = FairQueue({"light": TypeShare(weight=1), "heavy": TypeShare(weight=3)})
    for name in ("light", "heavy"):
        for _ in range(100):
            queue.add(name, "", 0, name)
    assert Counter(taken(queue, 40)) == {"heavy": 30, "light": 10}


def test_a_task_of_higher_priority_goes_first() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare()})
    for priority in (0, 5, -1):
        queue.add("t", "", priority, str(priority))
    assert taken(queue, 3) == ["5", "0", "-1"]


def test_a_group_of_which_nothing_is_left_comes_back_as_a_new_one() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare()})
    queue.add("t", "h", 0, "h")
    assert queue.ready == 1
    assert taken(queue, 9) == ["h"]
    queue.done("t", "h")
    assert queue.ready == 0
    for group in ("g", "h"):
        queue.add("t", group, 0, group)
    assert taken(queue, 9) == ["g", "h"]


def test_a_limit_holds_a_group_back_until_one_of_its_own_is_done() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_limit=2)})
    for _ in range(5):
        queue.add("t", "g", 0, "g")
    queue.add("t", "h", 0, "h")
    assert queue.ready == 3
    assert sorted(taken(queue, 9)) == ["g", "g", "h"]
    assert queue.ready == 0
    queue.done("t", "g")
    assert queue.ready == 1
    assert taken(queue, 9) == ["g"]


def test_a_rate_spreads_the_beginnings_of_a_group() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_rate=10)})
    for _ in range(3):
        queue.add("t", "g", 0, "g")
    assert taken(queue, 9, now=0.0) == ["g"]
    assert queue.rests_until() == 0.1
    queue.done("t", "g")
    assert taken(queue, 9, now=0.05) == []
    assert taken(queue, 9, now=0.1) == ["g"]
    assert taken(queue, 9, now=0.5) == ["g"]


def test_a_rest_ends_though_nothing_may_begin() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_rate=10)})
    for _ in range(2):
        queue.add("t", "g", 0, "g")
    assert taken(queue, 9) == ["g"]
    queue.done("t", "g")
    queue.end_rests(0.05)
    assert (queue.rests_until(), queue.ready) == (0.1, 0)
    queue.end_rests(0.1)
    assert (queue.rests_until(), queue.ready) == (None, 1)
    assert taken(queue, 9, now=0.1) == ["g"]


def test_with_a_rate_of_groups_what_runs_takes_no_place_of_what_waits() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_rate=10)})
    for number in range(3):
        queue.add("t", "g", 0, "g")
        assert taken(queue, 9, now=float(number)) == ["g"]
    queue.add("t", "g", 0, "g")
    assert queue.ready == 1


def test_groups_whose_rate_holds_nothing_back_are_forgotten() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_rate=1e-3)})

    def remembered(begin: int, end: int, now: float) -> int:
        for number in range(begin, end):
            queue.add("t", f"g{number}", 0, "g")
            assert taken(queue, 9, now) == ["g"]
        return len(queue.rates["t"])

    assert remembered(0, GROUPS_MIN + 10, 0.0) == GROUPS_MIN + 10, "all of them may still be held back"
    assert remembered(2000, 2000 + GROUPS_MIN, 1500.0) == GROUPS_MIN, "the old ones went"
    queue.add("t", "g2000", 0, "g")
    assert taken(queue, 9, 1500.0) == [], "the new ones did not"


def test_what_limits_hold_back_makes_way_the_newest_of_the_longest_lines_first() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_limit=1), "free": TypeShare()})
    for n in range(8):
        queue.add("t", "long", 0, f"long{n}")
    for group in ("short", "low"):
        queue.add("t", group, 0, group)
    assert len(taken(queue, 9)) == 3, "one of each group"
    queue.add("t", "short", 0, "short")
    queue.add("t", "low", -1, "low")
    queue.add("t", "open", -1, "open")
    queue.add("free", "", -1, "free")
    assert queue.shed(3) == ["low", "long7", "long6"]
    assert queue.shed(9) == ["long5", "long4", "long3", "short"]
    assert len(queue) == 4
    queue.done("t", "long")
    queue.done("t", "short")
    assert sorted(taken(queue, 9)) == ["free", "long1", "open"]
    queue.done("t", "long")
    assert taken(queue, 9) == ["long2"]
    assert len(queue) == 0


def test_what_a_rate_holds_back_makes_way_and_can_come_again() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_rate=1.0)})
    for item in "abc":
        queue.add("t", "g", 0, item)
    assert taken(queue, 9) == ["a"]
    queue.done("t", "g")
    assert queue.shed(9) == ["c"]
    assert queue.shed(9) == ["b"]
    assert (len(queue), queue.shed(9)) == (0, [])
    queue.add("t", "g", 0, "b")
    assert taken(queue, 9) == []
    assert taken(queue, 9, now=1.0) == ["b"]


def test_all_that_waits_can_be_taken_back() -> None:
    queue: FairQueue[str] = FairQueue({"t": TypeShare(group_limit=1)})
    for item in "abc":
        queue.add("t", "g", ord(item), item)
    assert taken(queue, 1) == ["c"]
    assert sorted(queue.drain()) == ["a", "b"]
    assert (len(queue), queue.take(0.0), queue.rests_until()) == (0, None, None)


@given(
    st.lists(
        st.tuples(st.sampled_from(("add", "take", "done")), st.sampled_from("ab"), st.sampled_from("xyz")),
        max_size=80,
    ),
    st.integers(0, 2),
)
def test_nothing_is_lost_and_no_limit_is_passed(steps: list[tuple[str, str, str]], limit: int) -> None:
    queue: FairQueue[tuple[str, str, int]] = FairQueue({name: TypeShare(group_limit=limit) for name in "ab"})
    waiting: set[tuple[str, str, int]] = set()
    running: Counter[tuple[str, str]] = Counter()
    for number, (step, type_, group) in enumerate(steps):
        if step == "add":
            item = (type_, group, number)
            queue.add(type_, group, number % 2, item)
            waiting.add(item)
        elif step == "take":
            found = queue.take(0.0)
            free = {(t, g) for t, g, _ in waiting if not limit or running[t, g] < limit}
            assert (found is None) == (not free)
            if found is not None:
                waiting.remove(found)
                running[found[:2]] += 1
                assert not limit or running[found[:2]] <= limit
        elif running[type_, group]:
            running[type_, group] -= 1
            queue.done(type_, group)
        assert len(queue) == len(waiting)
        places = {(t, g) for t, g, _ in waiting}
        ready = sum(
            min(
                sum(item[:2] == place for item in waiting),
                limit - running[place] if limit else len(waiting),
            )
            for place in places
        )
        assert bool(queue.ready) == bool(ready)


def test_only_what_has_a_permit_begins_and_what_has_none_delays_no_other_type() -> None:
    permits = Permits(lambda name: 1.0 if name == "t" else 0.0)
    queue: FairQueue[str] = FairQueue({"t": TypeShare(), "other": TypeShare()}, permits)
    for number in range(4):
        queue.add("t", "", 5, f"t-{number}")
    queue.add("other", "", 0, "other")
    assert (queue.ready, queue.soon, queue.waiting("t")) == (1, 2, 4)
    assert [queue.take(0.0), queue.take(0.0)] == ["other", None]
    permits.add({"t": 2}, 0.0)
    assert (queue.ready, queue.soon) == (2, 2)
    assert [queue.take(0.5) for _ in range(3)] == ["t-0", "t-1", None]
    permits.add({"t": 2}, 0.0)
    assert queue.take(WINDOW_S) is None
    assert queue.waiting("t") == 2
