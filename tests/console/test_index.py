"""The index of all streams: searched, sorted and paged in memory, and no older than it says."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from holdfast.common.message import Place
from holdfast.console.index import Question, StreamIndex
from holdfast.console.life import StreamEvents
from holdfast.errors import Unavailable
from holdfast.operate.survey import NodeReport, PendingEffects, StreamLag
from holdfast.ports.coordinator import Claim, Member
from holdfast.rules.streams.ledger import Checkpoint, RunLog
from holdfast.streams.slots import SlotWork
from holdfast.streams.waiting_streams import StreamWait
from holdfast.system.clock import SystemClock

NODES = {name: Member(name, f"node-{name}", f"http://{name}") for name in ("a", "b")}


class Stored:
    """A state store with these checkpoints, which counts how often it is asked."""

    def __init__(self, points: list[Checkpoint]) -> None:
        self.points = {point.key: point for point in points}
        self.names: list[str] = []
        self.asked = 0

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        self.asked += 1
        names = self.names if len(self.names) == len(self.points) else sorted(self.points)
        self.names = names
        start = bisect_right(names, after)
        return [self.points[key] for key in names[start : start + limit]]


class Claimed:
    """A coordinator with these claims. ``meanwhile``, if set, is called while they are being read."""

    def __init__(self, claims: list[Claim]) -> None:
        self.given = claims
        self.meanwhile: Callable[[], None] | None = None

    async def claims(self, member: str | None = None) -> list[Claim]:
        if self.meanwhile is not None:
            self.meanwhile()
        return self.given


class Unhurried:
    """Attention that never pauses."""

    watched = True

    async def pause(self, watched_s: float, idle_s: float) -> None:
        pass


def point(key: str, **more: Any) -> Checkpoint:
    return Checkpoint(key, **{"epoch": 1, "number": 1, "at": 1000.0, "log": RunLog(0, 0, 5), **more})


async def filled(
    points: Iterable[Checkpoint], claims: Iterable[Claim] | Claimed = ()
) -> tuple[StreamIndex, Stored]:
    """An index that has read everything once."""
    state = Stored(list(points))
    index = StreamIndex(
        claims if isinstance(claims, Claimed) else Claimed(list(claims)),  # type: ignore[arg-type]
        state,  # type: ignore[arg-type]
        SystemClock(),
        Unhurried(),  # type: ignore[arg-type]
        StreamEvents(),
        lambda: NODES,
    )
    await index.read_once()
    return index, state


def keys(index: StreamIndex, question: Question, offset: int = 0, limit: int = 10) -> list[str]:
    return [stream.key for stream in index.find(question, offset, limit).streams]


@pytest.mark.nightly
async def test_a_hundred_thousand_streams_are_paged_from_memory() -> None:
    index, state = await filled(point(f"cameras/{number:06}", done=number % 7) for number in range(100_000))
    asked, began_at = state.asked, time.monotonic()
    found = index.find(Question(sort="done", down=True), 50_000, 50)
    first_s = time.monotonic() - began_at
    began_at = time.monotonic()
    for page in range(100):
        index.find(Question(sort="done", down=True), 50 * page, 50)
    assert time.monotonic() - began_at < 0.1, "a known order is not made again"
    assert (found.total, len(found.streams), first_s < 2.0) == (100_000, 50, True)
    assert state.asked == asked, "a page asks no store"


async def test_streams_are_found_by_text_name_and_standing() -> None:
    index, _ = await filled(
        [
            point("cameras/North-1"),
            point("cameras/south-1", parked="paused"),
            point("doors/north-2"),
        ],
        [Claim("cameras/North-1", "a", 1), Claim("doors/north-2", "gone", 1)],
    )
    index.reported(
        {
            "a": NodeReport(
                waits=[StreamWait("cameras/North-1", "gap", "seq 3 of run 0", 70.0, None, 2)],
                effects=[PendingEffects("doors/north-2", 1, 9.0, "alerts")],
            )
        }
    )
    assert keys(index, Question(text="NORTH")) == ["cameras/North-1", "doors/north-2"]
    assert keys(index, Question(stream="doors")) == ["doors/north-2"]
    assert keys(index, Question(standing="parked")) == ["cameras/south-1"]
    assert keys(index, Question(standing="waiting")) == ["cameras/North-1"]
    assert keys(index, Question(standing="effects")) == ["doors/north-2"]
    assert keys(index, Question(standing="unowned")) == ["cameras/south-1", "doors/north-2"]


async def test_a_stream_that_no_node_takes_is_known_though_nothing_of_it_is_stored() -> None:
    index, _ = await filled([point("s/a")])
    waits = StreamWait("s/b", "room", "a node that takes it: no node has room for a new stream", 7.0, None, 2)
    index.reported({"a": NodeReport(waits=[waits])})
    await index.read_once()
    assert keys(index, Question(standing="waiting")) == ["s/b"]
    assert index.waits["s/b"] == waits
    index.reported({"a": NodeReport()})
    await index.read_once()
    assert index.get("s/b") is None, "it waits no longer, and nothing tells of it"


async def test_a_message_that_has_been_at_work_for_a_while_is_told_with_its_stream() -> None:
    index, _ = await filled([point("s/a")], [Claim("s/a", "a", 1)])
    work = SlotWork("a-1", "s/a", 95.0, 2.0, message=Place(0, 7).name)
    index.reported({"a": NodeReport(works=[work, SlotWork("a-2", "a query of s/a", 3.0, 3.0)])})
    assert index.runs["s/a"].sentence == "message 0:7 runs in a-1, for 95 s now"


async def test_streams_are_sorted_by_each_column_up_and_down() -> None:
    index, _ = await filled(
        [point("s/a", done=2, at=30.0), point("s/b", done=1, at=10.0), point("s/c", done=3, at=20.0)],
        [Claim("s/a", "b", 1), Claim("s/b", "a", 1)],
    )
    assert keys(index, Question(sort="done")) == ["s/b", "s/a", "s/c"]
    assert keys(index, Question(sort="done", down=True)) == ["s/c", "s/a", "s/b"]
    assert keys(index, Question(sort="quiet", down=True)) == ["s/b", "s/c", "s/a"]
    assert keys(index, Question(sort="owner")) == ["s/c", "s/b", "s/a"]
    index.reported({"a": NodeReport(lags=[StreamLag("s/b", 2.0, 7), StreamLag("s/c", 30.0, 1)])})
    assert keys(index, Question(sort="lag", down=True)) == ["s/c", "s/b", "s/a"]
    assert keys(index, Question(down=True)) == ["s/c", "s/b", "s/a"]


async def test_a_page_beyond_the_end_is_the_last_one() -> None:
    index, _ = await filled(point(f"s/{number:02}") for number in range(25))
    found = index.find(Question(), 10_000, 10)
    assert (found.offset, found.streams[0].key) == (20, "s/20")
    assert index.find(Question(text="nothing"), 50, 10) == (0, 0, [])


async def test_a_claim_that_changes_is_known_at_once_and_told_in_the_streams_life() -> None:
    index, _ = await filled([point("s/a")], [Claim("s/a", "a", 1)])
    index.claimed(Claim("s/a", "b", 2))
    stream = index.get("s/a")
    assert stream is not None
    owner = index.owner(stream)
    assert owner is not None
    assert owner.name == "node-b"
    index.claimed(Claim("s/new", "a", 1))
    index.claimed(Claim("s/a", "", 3))
    assert [(event.text, event.node) for event in index.life.of("s/a")] == [
        ("released by node-b", "node-b"),
        ("moved from node-a to node-b", "node-b"),
    ]
    assert len(index) == 2


async def test_what_a_round_no_longer_finds_is_forgotten_unless_it_is_claimed() -> None:
    index, state = await filled([point("s/a"), point("s/b")], [Claim("s/b", "a", 1)])
    state.points.clear()
    await index.read_once()
    assert keys(index, Question(text="")) == ["s/b"]
    assert index.names == {"s": 1}


async def test_a_stream_that_parks_and_goes_on_is_told() -> None:
    index, state = await filled([point("s/a")])
    state.points["s/a"] = point("s/a", parked="broken", epoch=2, skipped=3)
    await index.read_once()
    assert list(index.parked) == ["s/a"]
    state.points["s/a"] = point("s/a", epoch=3)
    await index.read_once()
    assert list(index.parked) == []
    told = [event.text for event in index.life.of("s/a")]
    assert {"parked: broken", "resumed", "3 messages skipped or set aside", "opened, epoch 3"} <= {*told}


async def test_a_wait_is_told_once_in_the_streams_life_with_its_node_and_again_when_it_begins_anew() -> None:
    index, state = await filled([point("s/a")], [Claim("s/a", "a", 1)])

    def told(since_s: float, text: str = "seq 3 of run 0") -> list[str]:
        index.reported({"a": NodeReport(waits=[StreamWait("s/a", "gap", text, since_s, None, 1)])})
        return [event.text for event in index.life.of("s/a")]

    assert told(1.0) == [], "it may be over in a moment"
    assert told(6.0) == told(7.0) == ["waits for seq 3 of run 0, on node-a"]
    assert told(1.0, "seq 9 of run 0") == ["waits for seq 3 of run 0, on node-a"]
    assert told(5.5, "seq 9 of run 0")[0] == "waits for seq 9 of run 0, on node-a"
    assert index.life.of("s/a")[0].node == "node-a"
    state.points["s/a"] = point("s/a", epoch=2, member="b")
    await index.read_once()
    opened = index.life.of("s/a")[0]
    assert (opened.text, opened.node) == ("opened on node-b, epoch 2", "node-b"), "the claim is older"
    assert opened.at > 1000.0, "its last commit was long before"


async def test_a_skip_names_its_node_unless_the_stream_was_opened_meanwhile() -> None:
    index, state = await filled([point("s/a", member="a")])

    async def last(**more: Any) -> tuple[str, str]:
        state.points["s/a"] = point("s/a", **more)
        await index.read_once()
        event = index.life.of("s/a")[0]
        return event.text, event.node

    assert await last(member="a", skipped=1, at=1001.0) == (
        "1 message skipped or set aside on node-a",
        "node-a",
    )
    assert await last(member="b", skipped=3, epoch=2, at=1002.0) == ("2 messages skipped or set aside", "")
    skipped_by_hand = await last(member="operator", skipped=4, epoch=3, at=1003.0)
    assert skipped_by_hand == ("1 message skipped or set aside", ""), "an operator is no node"
    parked = await last(member="operator", skipped=4, epoch=3, at=1004.0, parked="broken")
    assert parked == ("parked: broken", "")


async def test_an_opening_stands_from_the_first_answer_to_the_last_question() -> None:
    index, state = await filled([point("s/a", member="a")])
    await index.read_once()
    [standing] = index.openings("s/a")
    state.points["s/a"] = point("s/a", member="b", epoch=2)
    await index.read_once()
    assert index.openings("s/a") == [standing], "the new one was seen only once"
    await index.read_once()
    now, before = index.openings("s/a")
    assert (before.node, now.node) == ("node-a", "node-b")
    assert before.since <= before.until <= now.since <= now.until


async def test_a_node_that_has_left_tells_nothing_any_more() -> None:
    index, _ = await filled([point("s/a")])
    waits, lag = StreamWait("s/a", "gap", "seq 3", 1.0, None, 1), StreamLag("s/a", 1.0, 3)
    index.reported({"a": NodeReport(waits=[waits], lags=[lag])})
    assert ([*index.waits], [*index.lags], index.messages("s/a")) == (["s/a"], ["s/a"], 3)
    index.left("a")
    assert (index.waits, index.lags, index.messages("s/a")) == ({}, {}, 0)


async def test_what_a_node_tells_that_has_left_since_it_was_asked_is_not_kept() -> None:
    index, _ = await filled([point("s/a")])
    index.reported({"left": NodeReport(lags=[StreamLag("s/a", 2.0, 7)])})
    assert not index.lags


async def test_an_answer_that_comes_late_hides_no_newer_one() -> None:
    """As that of a round which was under way when somebody looked at the page of a stream."""
    index, _ = await filled([point("s/a", number=10)])
    asked_at = time.time() - 1.0
    index.take(point("s/a", number=11, at=1001.0, parked="by an operator"), asked_at)
    index.take(point("s/a", number=10), asked_at)
    assert list(index.parked) == ["s/a"]
    index.take(point("s/a", number=12, epoch=2, at=1002.0, parked="by an operator"), asked_at)
    index.take(point("s/a", number=13, epoch=1, at=1003.0), asked_at)
    assert [event.text for event in index.life.of("s/a")] == ["opened, epoch 2", "parked: by an operator"]


async def test_a_store_that_has_lost_commits_is_believed() -> None:
    index, state = await filled([point("s/a", number=11, epoch=2, parked="by an operator")])
    state.points["s/a"] = point("s/a", number=9, epoch=3, member="b")
    await index.read_once()
    assert list(index.parked) == []
    index.take(point("s/a", number=9, epoch=3, parked="again"), time.time())
    state.points["s/a"] = point("s/a", number=8, epoch=1)
    await index.read_once()
    assert list(index.parked) == [], "nobody has opened it since"


async def test_a_claim_that_is_told_while_all_are_read_is_the_newer_one() -> None:
    claimed = Claimed([Claim(key, "a", 1) for key in ("s/moved", "s/released", "outbox:p/0")])
    index, _ = await filled([], claimed)

    def tell() -> None:
        for key, member in (("s/moved", "b"), ("s/released", ""), ("s/new", "b"), ("outbox:p/0", "b")):
            index.claimed(Claim(key, member, 2))
        index.claimed(Claim("outbox:p/1", "b", 2))

    claimed.meanwhile = tell
    index.missed()
    await index.read_once()
    members = {stream.key: stream.member for stream in index.find(Question(), 0, 10).streams}
    assert members == {"s/moved": "b", "s/new": "b"}
    assert {key: claim.member for key, claim in index.others.items()} == {
        "outbox:p/0": "b",
        "outbox:p/1": "b",
    }
    claimed.meanwhile = None
    index.missed()
    await index.read_once()
    assert keys(index, Question(standing="unowned")) == []
    assert {key: claim.member for key, claim in index.others.items()} == {"outbox:p/0": "a"}


async def test_claims_that_could_not_be_read_are_read_in_the_next_round() -> None:
    claimed = Claimed([])
    index, _ = await filled([], claimed)

    def fail() -> None:
        raise Unavailable("the coordinator is away")

    claimed.meanwhile = fail
    index.missed()
    with pytest.raises(Unavailable):
        await index.read_once()
    claimed.meanwhile = None
    claimed.given = [Claim("s/k", "a", 1)]
    await index.read_once()
    assert {stream.key for stream in index.find(Question(), 0, 10).streams} == {"s/k"}
