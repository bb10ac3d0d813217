"""How many nodes are wanted: as many as the work needs, and the same number for the same work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.cluster.placement import STREAMS, TASKS, Load, Member, WorkLoad
from holdfast.rules.cluster.scaling import (
    HIGH,
    LOW,
    SPAN_S,
    STALE_S,
    STEP_S,
    ClusterSample,
    SampleHistory,
    ScalingAdvice,
    advise,
    apps_of,
    steady,
)

SLOTS = 4
QUEUES = {STREAMS: ("frames",), TASKS: ("app-report",)}


def member(name: str, busy: float = 0.0, handled: int = 0, kind: str = STREAMS, **load: Any) -> Member:
    work = WorkLoad(kind, SLOTS, busy, handled, QUEUES[kind])
    given: dict[str, Any] = {"streams": 100, "app": "app", "works": (work,), **load}
    return Member(name, name, "", Load(**given))


def sample(at: float, *members: Member, ready: Mapping[str, int] | None = None) -> ClusterSample:
    return ClusterSample(at, members, {"frames": 0, "app-report": 0} if ready is None else ready)


def asked(
    nodes: int,
    busy: float,
    *,
    handled: int = 6000,
    waited: int = 0,
    waits: int = 0,
    kind: str = STREAMS,
    **load: Any,
) -> ScalingAdvice:
    """Return the advice for equal nodes with ``busy`` slots each; together they handle ``handled`` a
    minute."""
    names = [f"n{i}" for i in range(nodes)]
    queue = QUEUES[kind][0]
    before = sample(0.0, *(member(name, busy, 0, kind, **load) for name in names), ready={queue: waited})
    now = sample(60.0, *(member(name, busy, handled // nodes, kind, **load) for name in names))
    return advise("app", before, now._replace(ready={queue: waits}))


class TestSteady:
    @given(st.integers(1, 500), st.floats(0, 500))
    def test_the_same_work_wants_the_same_number_again(self, nodes: int, need: float) -> None:
        wanted = steady(nodes, need)
        assert steady(wanted, need) == wanted

    @given(st.integers(1, 500), st.floats(0, 500))
    def test_what_is_wanted_bears_the_work(self, nodes: int, need: float) -> None:
        assert steady(nodes, need) * HIGH >= need - 1e-6

    @given(st.integers(1, 500), st.floats(0, 500))
    def test_fewer_are_wanted_only_if_the_rest_stay_at_ease(self, nodes: int, need: float) -> None:
        wanted = steady(nodes, need)
        assert wanted >= nodes or wanted * LOW >= need - 1e-6

    @given(st.integers(1, 500), st.floats(0, 500))
    def test_a_change_up_to_a_tenth_is_ignored(self, nodes: int, need: float) -> None:
        wanted = steady(nodes, need)
        assert wanted == nodes or abs(wanted / nodes - 1) > 0.1

    @given(st.integers(1, 100), st.floats(0, 100), st.floats(0, 100))
    def test_more_work_never_wants_fewer_nodes(self, nodes: int, need: float, more: float) -> None:
        assert steady(nodes, need + more) >= steady(nodes, need)

    def test_without_work_one_node_is_wanted(self) -> None:
        assert [steady(nodes, 0.0) for nodes in (0, 1, 9)] == [1, 1, 1]


class TestAdvise:
    def test_busy_slots_want_as_many_nodes_as_their_load_needs(self) -> None:
        assert asked(10, 3.0).wanted == 10
        assert asked(10, 3.6).wanted == math.ceil(9 / LOW)
        assert asked(10, 1.4).wanted == 5

    def test_at_the_limit_what_comes_counts_and_what_waits(self) -> None:
        # 100 a second are handled and 400 more come, which wait already for a minute.
        assert asked(10, 4.0, handled=6000, waits=24000).wanted == math.ceil((10 * 5 + 10 * 2) / LOW)

    def test_what_is_caught_up_with_wants_no_more_though_all_slots_are_busy(self) -> None:
        assert asked(20, 4.0, handled=12000, waited=6000, waits=600).wanted < 20

    def test_messages_that_wait_while_slots_are_free_want_nothing(self) -> None:
        assert asked(10, 3.0, waits=1_000_000).wanted == 10

    def test_busy_processors_are_a_limit_if_much_waits(self) -> None:
        assert asked(10, 3.0, cpu=0.9).wanted == 10
        assert asked(10, 3.0, cpu=0.9, waits=6000).wanted > 10

    def test_one_stream_wants_one_node_however_much_waits(self) -> None:
        work = WorkLoad(STREAMS, 1, 1.0, 0, ("frames",))
        one = Member("a", "a", "", Load(streams=1, app="app", works=(work,)))
        assert advise("app", sample(0.0, one), sample(60.0, one, ready={"frames": 10_000})).wanted == 1

    def test_processors_are_no_limit_while_little_waits(self) -> None:
        # 20 a second are handled: 99 messages are done in 4.95 s, and 100 in 5.
        assert asked(10, 3.0, cpu=0.9, handled=1200, waits=99).wanted == 10
        assert "which take 5 s" in asked(10, 3.0, cpu=0.9, handled=1200, waits=100).reason
        assert asked(10, 3.0, cpu=0.5, handled=1200, waits=6000).wanted == 10

    def test_a_node_with_room_wants_no_more_nodes_than_streams_fill(self) -> None:
        wanted = asked(4, 4.0, handled=600, waits=100_000, streams=5, room=10).wanted
        assert wanted == math.ceil(4 * 5 / SLOTS / LOW)

    def test_the_reason_names_the_room_that_nodes_have(self) -> None:
        found = asked(4, 0.4, streams=3, room=1)
        assert found.wanted == 4
        assert found.reason == "streams: 12, and nodes have room for 4 more"

    def test_a_waiting_task_wants_one_slot_however_long_tasks_take(self) -> None:
        wanted = asked(5, 4.0, handled=0, waits=20, kind=TASKS, streams=0, room=0).wanted
        assert wanted == math.ceil((5 + 20 / SLOTS) / LOW)

    def test_long_tasks_keep_their_nodes_though_none_ends(self) -> None:
        assert asked(5, 4.0, handled=0, kind=TASKS, streams=0, room=0).wanted == math.ceil(5 / LOW)

    def test_nodes_that_have_no_room_want_more_nodes(self) -> None:
        assert asked(2, 0.1, room=0).wanted == math.ceil(2 / LOW)

    def test_an_unknown_queue_depth_changes_nothing(self) -> None:
        busy, idle = member("a", 4.0), member("a", 0.0)
        for one in (busy, idle):
            silent = advise("app", sample(0.0, one), sample(60.0, one, ready={}))
            assert (silent.wanted, silent.nodes) == (1, 1)
            assert "'frames'" in silent.reason

    def test_nodes_that_have_just_come_change_nothing(self) -> None:
        now = sample(60.0, member("b"), member("c"), member("d"))
        found = advise("app", sample(0.0, member("a")), now)
        assert (found.wanted, found.reason) == (3, "streams: all its nodes are new or draining")

    def test_nodes_that_report_no_load_are_all_kept(self) -> None:
        mute = [member(name, works=()) for name in "abc"]
        found = advise("app", sample(0.0, *mute), sample(60.0, *mute))
        assert found == ScalingAdvice("app", 3, 3, "its nodes don't report their busy slots")

    def test_what_a_new_node_has_done_counts(self) -> None:
        before = sample(0.0, member("a", 4.0, 0))
        now = sample(60.0, member("a", 4.0, 600), member("b", 4.0, 600), ready={"frames": 0, "app-report": 0})
        assert advise("app", before, now).wanted == math.ceil(2 / LOW)

    def test_a_node_that_has_rejoined_counts_with_no_more_than_another_got_done(self) -> None:
        waits = {"frames": 2000}
        before = sample(0.0, member("a", 4.0, 1_000_000), member("b before", 4.0, 1_000_000), ready=waits)
        now = sample(60.0, member("a", 4.0, 1_000_600), member("b again", 4.0, 1_000_600), ready=waits)
        assert advise("app", before, now).wanted == math.ceil((2 + 1000 / 600) / LOW)

    def test_a_node_that_drains_is_none_of_them_and_its_work_stays(self) -> None:
        both = [member("a", 2.0), member("b", 2.0, draining=True)]
        assert advise("app", sample(0.0, *both), sample(60.0, *both)) == ScalingAdvice(
            "app", 2, 1, "streams: 4.0 of 8 slots busy"
        )

    def test_a_node_that_cannot_load_a_model_is_replaced(self) -> None:
        both = [member("a", 2.4), member("b", lacks=("frames",))]
        found = advise("app", sample(0.0, *both), sample(60.0, *both))
        assert (found.wanted, found.nodes) == (2, 2)
        assert found.reason == "streams: 2.4 of 8 slots busy; 1 nodes can't load a model"
        none = [member(name, lacks=("frames",)) for name in "ab"]
        found = advise("app", sample(0.0, *none), sample(60.0, *none))
        assert found == ScalingAdvice("app", 2, 2, "no node can load all models")

    def test_other_apps_and_programs_do_not_count(self) -> None:
        others = [member("b", 4.0, app="other"), Member("c", "c", "", Load(app="app"), foreign=True)]
        now = sample(60.0, member("a", 2.0), *others)
        assert advise("app", sample(0.0, *now.members), now).nodes == 1
        assert apps_of(now.members) == ["app", "other"]

    def test_an_app_that_no_node_runs_wants_one(self) -> None:
        assert advise("app", sample(0.0), sample(60.0)) == ScalingAdvice("app", 1, 0, "no node runs")


class TestSampleHistory:
    def test_one_sample_is_compared_with_nothing(self) -> None:
        history = SampleHistory()
        assert history.add(sample(0.0)) is None
        assert history.add(sample(STEP_S - 1)) is None

    def test_a_sample_is_compared_with_that_of_a_minute_ago(self) -> None:
        history = SampleHistory()
        compared = [history.add(sample(at)) for at in range(0, 600, 15)]
        assert [found.at for found in compared[4:] if found] == [at - SPAN_S for at in range(60, 600, 15)]

    def test_a_sample_from_too_long_ago_is_forgotten(self) -> None:
        history = SampleHistory()
        history.add(sample(0.0))
        assert history.add(sample(STALE_S + 1)) is None

    def test_samples_count_from_one_step_apart_to_the_longest_span(self) -> None:
        for apart_s in (STEP_S, STALE_S):
            history = SampleHistory()
            first = sample(1e6)
            history.add(first)
            assert history.add(sample(1e6 + apart_s)) is first

    def test_of_two_samples_the_one_that_is_a_minute_old_is_compared(self) -> None:
        history = SampleHistory()
        _, second = history.add(sample(1e6)), sample(1e6 + SPAN_S)
        history.add(second)
        assert history.add(sample(1e6 + 2 * SPAN_S)) is second

    def test_a_sample_too_soon_after_another_is_not_kept(self) -> None:
        history = SampleHistory()
        first = sample(1e6)
        history.add(first)
        assert history.add(sample(1e6 + STEP_S - 1)) is None
        assert history.add(sample(1e6 + SPAN_S + STEP_S - 1)) is first


@pytest.mark.parametrize("busy", [0.0, 1.0, 2.9, 3.5])
def test_nothing_flaps_where_the_work_stays(busy: float) -> None:
    """Nodes follow the advice, and the same work spreads over them."""
    nodes, wanted = 10, []
    for _ in range(5):
        nodes = asked(nodes, busy * 10 / nodes).wanted
        wanted.append(nodes)
    assert len({*wanted}) == 1
