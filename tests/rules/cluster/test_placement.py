"""Placement: by load, the same for the same facts, with the least movement."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.protocol_versions import ProtocolVersions
from holdfast.rules.cluster.placement import (
    BUSY_STREAMS,
    COLD_STREAMS,
    STREAMS,
    TASKS,
    Load,
    Member,
    Placed,
    WorkLoad,
    able_members,
    can_be_read,
    choose,
    newest_revision,
    readers,
    shortage,
    spread,
)


def member(name: str, streams: int = 0, slots: int = 1, room: int = 100, draining: bool = False) -> Member:
    return Member(name, name, f"http://{name}", Load(streams, slots, room, draining))


def test_the_busy_share_of_no_slots_is_that_of_one() -> None:
    assert WorkLoad(STREAMS, 4, 3.0, 0).share == 0.75
    assert WorkLoad(STREAMS, 0, 0.0, 0).share == 0.0


members = st.lists(
    st.builds(
        member,
        st.text("abcdef", min_size=1),
        streams=st.integers(0, 5),
        slots=st.integers(0, 3),
        room=st.integers(-1, 3),
        draining=st.booleans(),
    ),
    unique_by=lambda one: one.id,
    max_size=6,
)


def test_loads_are_read_from_older_nodes_and_by_them() -> None:
    told = msgspec.json.encode(Load(streams=3, offers=("doors",)))
    assert b'"outboxes":["doors"]' in told, "the name that older nodes read"
    assert msgspec.json.decode(told, type=Load) == Load(streams=3, offers=("doors",))


@pytest.mark.slow
@given(st.text(), members, st.randoms(use_true_random=False))
def test_the_choice_has_room_and_the_lowest_share(
    key: str, nodes: list[Member], chance: random.Random
) -> None:
    chosen = choose(key, nodes)
    able = [node for node in nodes if node.load.room > 0 and not node.load.draining]
    if not able:
        assert chosen is None
        return
    assert chosen in able
    share = {node.id: node.load.streams / max(1, node.load.slots) for node in able}
    assert share[chosen.id] == min(share.values())
    chance.shuffle(nodes)
    assert choose(key, nodes) == chosen, "the order of members says nothing"


def test_a_node_without_memory_gets_new_streams_only_where_all_are() -> None:
    full = Member("a", "a", "", Load(slots=4, memory=0.95))
    crowded = Member("b", "b", "", Load(streams=100, slots=4))
    assert choose("k", [full, crowded]) == crowded
    assert choose("k", [full]) == full


@pytest.mark.parametrize("load", [Load(cpu=0.96), Load(busy=1.0)])
def test_a_busy_node_counts_as_fuller_and_no_more(load: Load) -> None:
    busy = Member("a", "a", "", load)
    assert choose("k", [busy, member("b", streams=BUSY_STREAMS - 1)]).id == "b"  # type: ignore[union-attr]
    assert choose("k", [busy, member("b", streams=BUSY_STREAMS + 1)]) == busy


def test_a_stream_goes_where_it_is_declared() -> None:
    frames, tracks = (Member(name, name, "", Load(serves=(name,))) for name in ("frames", "tracks"))
    assert choose("frames/cam-1", [frames, tracks]) == frames
    assert choose("tracks/cam-1", [frames, tracks]) == tracks
    assert choose("other/cam-1", [frames, tracks]) is None
    anything = member("c")
    assert choose("other/cam-1", [frames, anything]) == anything


def test_a_node_that_lacks_a_model_is_no_candidate_for_the_streams_that_use_it() -> None:
    lacking, other = Member("a", "a", "", Load(lacks=("frames",))), member("b", streams=99)
    assert choose("frames/cam-1", [lacking, other]) == other
    assert choose("tracks/cam-1", [lacking, other]) == lacking
    assert choose("frames/cam-1", [lacking]) is None
    assert shortage("frames/cam-1", [lacking]) == (
        "a model of stream 'frames' does not load on a, and no other node takes it"
    )
    assert shortage("tracks/cam-1", [member("c", room=0), member("b", room=0)]) == (
        "no node has room for a new stream: full are b, c (streams_per_slot_max)"
    )


def test_busy_slots_of_all_kinds_of_work_are_of_all_slots() -> None:
    works = (WorkLoad(STREAMS, 4, 3.0, 0), WorkLoad(TASKS, 4, 3.0, 0))
    assert Load(slots=4, busy=6.0, works=works).slots_in_all == 8
    assert Load(slots=4, busy=3.0).slots_in_all == 4, "of a node that tells no kinds"


def test_that_no_node_takes_a_stream_is_told_with_the_reason() -> None:
    assert shortage("frames/cam-1", []) == "no living node runs stream 'frames'"
    tracks, leaves = Member("a", "a", "", Load(serves=("tracks",))), Member("b", "b", "", Load(draining=True))
    assert shortage("frames/cam-1", [tracks]) == "no living node runs stream 'frames'"
    assert shortage("frames/cam-1", [tracks, leaves]) == (
        "all nodes that run stream 'frames' are draining: b"
    )
    assert shortage("frames/cam-1", [leaves, member("c", room=1)]) == "no node has room for a new stream", (
        "it got room since"
    )


def test_a_stream_goes_to_no_node_that_reads_version_older_versions_of_its_state_only() -> None:
    older = Member("a", "a", "", Load(reads={"frames": 1, "tracks": 2}))
    newer = Member("b", "b", "", Load(streams=99, reads={"frames": 2, "tracks": 1}))
    silent = member("c", streams=999)
    assert choose("frames/cam-1", [older, newer], state_version=2) == newer
    assert choose("tracks/cam-1", [older, newer], state_version=2) == older
    assert choose("frames/cam-1", [older, newer]) == older, "its version isn't known"
    assert choose("frames/cam-1", [older], state_version=2) is None
    assert choose("frames/cam-1", [older, silent], state_version=2) == silent, "which may read it"
    placed = spread({"frames/cam-1": 2, "frames/cam-2": 1}, [older, newer])
    assert placed == {"frames/cam-1": newer, "frames/cam-2": older}


def test_only_a_node_that_stays_and_tells_of_it_counts_as_one_that_reads_a_state() -> None:
    assert Load(reads={"frames": 2}).reads_version("frames", 2)
    assert not Load(reads={"frames": 1}).reads_version("frames", 2)
    assert not Load(reads={"tracks": 2}).reads_version("frames", 2)
    assert not Load().reads_version("frames", 2), "it may park the stream for good"
    assert not Load(reads={"frames": 2}, draining=True).reads_version("frames", 2)
    reader = Member("b", "b", "", Load(reads={"frames": 2}))
    assert can_be_read([member("a"), reader], "frames", 2)
    assert not can_be_read([member("a"), reader], "frames", 3)


def test_a_stream_that_acts_goes_to_no_node_of_a_version_that_knows_no_effects_and_timers() -> None:
    older, newer = member("a"), Member("b", "b", "", Load(streams=99, acting=("doors",)))
    assert choose("doors/d1", [older, newer]) == newer
    assert choose("frames/cam-1", [older, newer]) == older, "which doesn't act, as far as anybody knows"
    assert choose("frames/cam-1", [older, newer], acting=("frames",)) == newer
    assert spread({"frames/cam-1": 0}, [older], acting=("frames",)) == {}
    full = Member("b", "b", "", Load(room=0, acting=("doors",)))
    assert choose("doors/d1", [older, full]) is None
    assert shortage("doors/d1", [older, full]) == (
        "stream 'doors' sends effects or sets timers, and the version on a is too old for that; no other"
        " node takes it"
    )
    told = msgspec.json.encode(older.load).replace(b',"acting":null', b"")
    assert b"acting" not in told
    assert msgspec.json.decode(told, type=Load).acting is None, "as an older node tells it"


def test_a_stream_goes_to_no_node_that_could_not_be_called() -> None:
    apart = member("a")
    apart = msgspec.structs.replace(
        apart, load=msgspec.structs.replace(apart.load, speaks=ProtocolVersions(7, 8))
    )
    assert choose("s/k", [apart]) is None
    assert choose("s/k", [apart, member("b", streams=9)]) == member("b", streams=9)


def test_a_load_tells_by_a_full_key_what_it_takes_and_has_warm() -> None:
    load = Load(serves=("frames",), warm=("frames",), acting=None)
    assert load.takes("frames/cam-1")
    assert not load.takes("other/cam-1")
    assert not load.takes("frames/cam-1", acting={"frames"})
    assert load.is_warm("frames/cam-1")
    assert not load.is_warm("other/cam-1")


def test_without_members_nobody_is_chosen() -> None:
    assert choose("k", []) is None


def test_what_was_placed_since_counts_as_load_and_takes_room() -> None:
    nodes = [member("a"), member("b", streams=1)]
    assert choose("k", nodes, {"a": 2}) == nodes[1]
    assert choose("k", [member("a", room=2)], {"a": 2}) is None


def test_a_node_that_drains_gets_no_key() -> None:
    assert choose("k", [member("a", draining=True)]) is None


def test_equal_nodes_share_keys_and_a_new_one_moves_few() -> None:
    keys = [f"cam-{i}" for i in range(600)]
    nodes = [member(name) for name in "abc"]
    before = {key: choose(key, nodes) for key in keys}
    assert all(count > 150 for count in Counter(before.values()).values())
    after = {key: choose(key, [*nodes, member("d")]) for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {member("d")}, "keys move to the new node only"


def test_keys_that_must_leave_are_spread_one_after_another() -> None:
    nodes = [member("a", streams=2), member("b"), member("c", draining=True)]
    placed = spread({f"cam-{i}": 0 for i in range(6)}, iter(nodes))
    assert Counter(node.id for node in placed.values()) == {"a": 2, "b": 4}


def test_keys_that_no_node_has_room_for_stay_unplaced() -> None:
    assert len(spread(dict.fromkeys("xyz", 0), [member("a", room=2)])) == 2


@given(st.permutations(["x", "y", "z"]))
def test_spreading_does_not_depend_on_the_order_of_keys(keys: list[str]) -> None:
    nodes = [member("a", room=1), member("b", room=1)]
    assert spread(dict.fromkeys(keys, 0), nodes) == spread(dict.fromkeys("xyz", 0), nodes)


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_of_two_nodes_the_one_with_less_load_a_slot_is_chosen(slots: int) -> None:
    small, large = member("small", streams=1), member("large", streams=slots, slots=slots * 2)
    assert choose("k", [small, large]) == large


def test_what_was_placed_counts_until_the_member_tells_another_load() -> None:
    placed, a, b = Placed(), member("a"), member("b")
    placed.add(a)
    placed.add(a)
    placed.add(b)
    assert placed.pending([a, b]) == {"a": 2, "b": 1}
    placed.add(a)
    assert placed.pending([a, b]) == {"a": 3, "b": 1}
    placed.add(a, -1)
    assert placed.pending([a, b]) == {"a": 2, "b": 1}
    assert placed.pending([member("a", streams=1), b]) == {"a": 1, "b": 1}, "one shows, the other is coming"
    assert placed.pending([member("a", streams=1), b]) == {"a": 1, "b": 1}
    assert placed.pending([member("a", streams=2), b]) == {"a": 0, "b": 1}
    placed.add(b)
    assert placed.pending([member("a"), member("b", streams=0)]) == {"a": 0, "b": 2}
    assert placed.pending([member("a", streams=1), member("b", streams=9)]) == {"a": 0, "b": 0}


def test_a_load_that_fell_says_that_streams_have_left() -> None:
    placed, a = Placed(), member("a", streams=5)
    placed.add(a)
    assert placed.pending([member("a", streams=3)]) == {"a": 0}


def test_a_key_that_is_placed_counts_at_once_and_no_longer_if_it_went_elsewhere() -> None:
    placed, a, b = Placed(), member("a"), member("b", room=0)
    assert placed.place("k", [b]) is None
    assert placed.place("k", [a, b]) == a
    assert placed.pending([a, b]) == {"a": 1, "b": 0}
    placed.not_taken(a, b)
    assert placed.pending([a, b]) == {"a": 0, "b": 1}
    assert placed.place("k", [a, b]) == a
    placed.not_taken(a)
    assert placed.pending([a, b]) == {"a": 0, "b": 1}, "the news of a claim counts it at its owner"


def test_what_was_not_placed_is_not_owed() -> None:
    placed, a = Placed(), member("a")
    placed.add(a, -1)
    assert placed.pending([a]) == {"a": 0}


def test_what_was_placed_at_a_member_that_left_is_forgotten() -> None:
    placed, a, b = Placed(), member("a"), member("b")
    placed.add(a)
    assert placed.pending([b]) == {"b": 0}
    assert placed.pending([a, b]) == {"a": 0, "b": 0}


def test_many_keys_placed_before_any_load_is_told_are_spread() -> None:
    placed, nodes = Placed(), [member("a"), member("b"), member("c")]
    for number in range(12):
        chosen = choose(f"key-{number}", nodes, placed.pending(nodes))
        assert chosen is not None
        placed.add(chosen)
    assert placed.pending(nodes) == {"a": 4, "b": 4, "c": 4}


def warm(name: str, streams: int = 0, **load: float) -> Member:
    told = Load(streams, 2, warm=("frames",), models=("people",), **load)  # type: ignore[arg-type]
    return Member(name, name, "", told)


def test_a_stream_goes_where_its_models_are_loaded() -> None:
    cold = [member(name, slots=2) for name in "abc"]
    for name in "defg":
        assert choose("frames/cam-1", [*cold, warm(name, streams=1)]) == warm(name, streams=1)
    assert choose("other/cam-1", [cold[0], warm("w", streams=1)]) == cold[0], "it uses no such models"


def test_loaded_models_do_not_outweigh_memory_or_many_more_streams() -> None:
    cold = member("a", slots=2)
    limit = COLD_STREAMS
    assert choose("frames/cam-1", [cold, warm("w", streams=limit - 1)]) == warm("w", streams=limit - 1)
    assert choose("frames/cam-1", [cold, warm("w", streams=limit + 1)]) == cold
    assert choose("frames/cam-1", [cold, warm("w", memory=0.99)]) == cold


@given(
    streams=st.integers(1, 40),
    slots=st.integers(1, 16),
    nodes=st.integers(2, 5),
    routers=st.integers(1, 3),
    models=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_streams_that_begin_in_a_burst_spread_over_the_nodes(
    streams: int, slots: int, nodes: int, routers: int, models: bool, chance: random.Random
) -> None:
    """Whichever routers place them, before any load is told, and though one node has its models loaded."""
    warm_one = Load(slots=slots, warm=("frames",) if models else ())
    members = [Member(f"n{n}", "", "", Load(slots=slots) if n else warm_one) for n in range(nodes)]
    counters = [Placed() for _ in range(routers)]
    placed: Counter[str] = Counter()
    for number in range(streams):
        chosen = choose(f"frames/cam-{number}", members, chance.choice(counters).pending(members))
        assert chosen is not None
        placed[chosen.id] += 1
        for counter in counters:  # by its own choice, or by the coordinator's news
            counter.add(chosen)
    counts = [placed[member.id] for member in members]
    assert max(counts) - min(counts) <= (COLD_STREAMS + 1 if models else 1)


def of_revision(name: str, revision: str, started_at: float, streams: int = 0, memory: float = 0.0) -> Member:
    load = Load(streams, room=100, revision=revision, started_at=started_at, memory=memory)
    return Member(name, name, f"http://{name}", load)


def test_the_newest_revision_is_that_of_the_node_that_started_last() -> None:
    old, new, again = of_revision("a", "one", 1.0), of_revision("b", "two", 2.0), of_revision("c", "one", 3.0)
    assert newest_revision([old, new]) == "two"
    assert newest_revision([old, new, again]) == "one", "as when an update is taken back"
    assert newest_revision([member("m"), member("n")]) == ""
    assert newest_revision([]) == ""


def test_streams_that_leave_go_to_nodes_of_the_newest_revision_while_these_have_room() -> None:
    old, new = of_revision("a", "one", 1.0), of_revision("b", "two", 2.0, streams=50)
    placed = spread({f"s/k{n}": 0 for n in range(60)}, [old, new])
    assert Counter(member.name for member in placed.values()) == {"b": 60}
    full = of_revision("b", "two", 2.0, memory=0.99)
    assert {member.name for member in spread({"s/k": 0}, [old, full]).values()} == {"a"}
    unable = Member("b", "b", "http://b", msgspec.structs.replace(new.load, lacks=("s",)))
    assert {member.name for member in spread({"s/k": 0}, [old, unable]).values()} == {"a"}


def test_what_acts_goes_to_no_old_node_though_only_a_node_of_another_revision_tells_of_it() -> None:
    tells = of_revision("a", "one", 1.0)
    tells = Member("a", "a", "http://a", msgspec.structs.replace(tells.load, acting=("s",)))
    old = of_revision("b", "two", 2.0)
    assert old.load.acting is None
    assert {member.name for member in spread({"s/k": 0}, [tells, old]).values()} == {"a"}


def test_the_owner_answers_queries_first_and_then_members_that_serve_the_stream() -> None:
    serving = [Member(name, name, "", Load(slots=1, serves=("s",))) for name in ("a", "b", "c")]
    others = [
        Member("d", "d", "", Load(slots=1, serves=("t",))),
        Member("e", "e", "", Load(slots=1, serves=("s",)), foreign=True),
    ]
    found = [member.id for member in readers("s/k", [*serving, *others], owner="b")]
    assert found[0] == "b"
    assert sorted(found) == ["a", "b", "c"]


def test_a_member_can_be_left_out_of_the_able_ones() -> None:
    members = [Member(name, name, "", Load(slots=1, room=5, serves=("s",))) for name in ("a", "b")]
    assert [member.id for member in able_members("s", members, ())] == ["a", "b"]
    assert [member.id for member in able_members("s", members, (), but="a")] == ["b"]
