"""What is wrong with nodes and queues, in words."""

from __future__ import annotations

from holdfast.operate.survey import NodeReport, QueueStatus, node_troubles, unplaced_queues
from holdfast.ports.coordinator import Load, Member
from holdfast.rules.cluster.placement import STREAMS, TASKS, WorkLoad
from holdfast.streams.slots import SlotWork
from holdfast.streams.waiting_streams import StreamWait

WAITS = StreamWait("s/b", "slot", "its slot", 10.0, None, 1)


def node(**load: object) -> Member:
    return Member("a", "a", "http://a", Load(**load))  # type: ignore[arg-type]


def at_work(still_s: float, slot: str = "slot-1") -> SlotWork:
    return SlotWork(slot, "s/a", 64.0, still_s)


def test_a_node_whose_slots_all_stand_still_while_streams_wait_is_a_trouble() -> None:
    works = [at_work(40.0), at_work(35.0, "slot-2")]
    (text,) = node_troubles(node(slots=2), NodeReport(works=works, waits=[WAITS]))
    assert text == (
        "no slot of a has made progress for 35 s, and 1 stream waits for a slot: s/a has been in slot-1"
        " longest, for 64 s"
    )
    of_both = (WorkLoad(STREAMS, 2, 2.0, 0), WorkLoad(TASKS, 8, 0.0, 0))
    both = node(slots=8, works=of_both)
    assert len(node_troubles(both, NodeReport(works=works, waits=[WAITS, WAITS]))) == 1


def test_a_slot_that_is_free_or_makes_progress_is_no_trouble_nor_is_one_that_no_stream_waits_for() -> None:
    still = at_work(40.0)
    assert node_troubles(node(slots=2), NodeReport(works=[still], waits=[WAITS])) == []
    assert node_troubles(node(slots=2), NodeReport(works=[still, at_work(1.0)], waits=[WAITS])) == []
    assert node_troubles(node(slots=1), NodeReport(works=[still])) == []


def test_an_archive_that_takes_nothing_is_a_trouble_of_its_node() -> None:
    assert node_troubles(node(), NodeReport(archives={"s": "5 committed messages wait for it: gone"})) == [
        "the archive of s takes nothing from a: 5 committed messages wait for it: gone"
    ]


def test_a_queue_with_messages_of_which_no_node_takes_new_keys_is_named() -> None:
    full = node(serves=("s", "t"), room=0)
    queues = [QueueStatus("s", ready=3), QueueStatus("t", in_flight=1), QueueStatus("task.x", ready=5)]
    (text,) = unplaced_queues(queues, [full])
    assert text == (
        "no node takes new keys of 's', whose queue holds messages: no node has room for a new stream: full"
        " are a (streams_per_slot_max)"
    )
    assert unplaced_queues(queues, [full, node(serves=("s",))]) == []
    assert unplaced_queues(queues, []) == [], "what no node runs is another trouble"
