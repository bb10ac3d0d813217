"""One key with more messages than its owner has room for: they come from the queue in order."""

import asyncio
import json
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import App, Context
from holdfast.common.protocol import Done, RebalanceRequest, Warm
from holdfast.errors import TooLarge
from holdfast.ports.queue import Outgoing
from holdfast.rules.streams.options import MovedFrom
from holdfast.services.memory.queue import MemoryQueue
from holdfast.streams.operations import pause, resume
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
INBOX = 4
DEEP = 100
KEY = "s/k"


def app_of(**settings: Any) -> App:
    """An app with one stream, whose handler returns the number of each message."""
    made = App("t")

    @made.stream("s", key="k", **{"inbox_limit": INBOX, **settings})
    async def handle(message: dict[str, Any], context: Context) -> Any:
        await asyncio.sleep(0.01)
        return message["n"]

    return made


async def send(town: Town, *numbers: int) -> None:
    """Send messages of one key, as producers do."""
    for n in numbers:
        await town.queue().send([Outgoing(json.dumps({"k": "k", "n": n}).encode(), key="k")])


async def in_order(town: Town, count: int = DEEP) -> None:
    """Wait for the end, and see that all were handled once and in order."""
    await town.until_over()
    assert town.letters() == []
    assert town.results("k") == list(range(count))


async def half_done(town: Town, share: float = 0.3) -> None:
    """Wait until a share of the backlog is committed."""
    await town.until(lambda: len(town.results("k")) >= share * DEEP)


def given_back(town: Town) -> int:
    """How many messages went back with a delay."""
    return sum(node.host.stats.given_back for node in town.nodes)


KINDS = pytest.mark.parametrize("settings", [{}, {"seq": "n", "first_seq": 0}], ids=["arrival", "seqs"])


@KINDS
async def test_a_deep_backlog_is_handled_in_order_and_nothing_is_delayed(
    town: Town, settings: dict[str, Any]
) -> None:
    await send(town, *range(DEEP))
    await town.start(app_of(**settings))
    began_at = town.clock.monotonic()
    await in_order(town)
    assert given_back(town) == 0
    assert town.clock.monotonic() - began_at < 0.05 * DEEP
    assert not town.queue().reservations, "a backlog that is done with is reserved no more"


async def test_what_had_no_room_was_not_received_as_far_as_its_handler_knows(town: Town) -> None:
    await send(town, *range(DEEP))
    node = await town.start(app_of())
    await town.until(lambda: node.host.stats.put_back)
    await half_done(town)
    assert {m.receives - m.excused for m in town.queue().messages.values()} <= {0, 1}
    await in_order(town)


@KINDS
async def test_other_keys_go_on_beside_a_deep_one(town: Town, settings: dict[str, Any]) -> None:
    await send(town, *range(DEEP))
    await town.start(app_of(**settings))
    await half_done(town, 0.1)
    await town.send(*({"k": "other", "n": n} for n in range(8)))
    await town.until(lambda: town.results("other") == list(range(8)))
    assert len(town.results("k")) < DEEP
    await in_order(town)


@KINDS
async def test_messages_that_come_during_a_backlog_follow_it(town: Town, settings: dict[str, Any]) -> None:
    await send(town, *range(DEEP // 2))
    await town.start(app_of(**settings))
    await half_done(town, 0.2)
    for n in range(DEEP // 2, DEEP):
        await send(town, n)
        await town.clock.sleep(0.005)
    await in_order(town)


@KINDS
async def test_a_paused_stream_takes_nothing_and_goes_on_in_order(
    town: Town, settings: dict[str, Any]
) -> None:
    await send(town, *range(DEEP))
    node = await town.start(app_of(**settings))
    await half_done(town)
    await pause(town.state, KEY)
    node.work.owners.poke(KEY)
    await town.clock.sleep(1.0)
    done = len(town.results("k"))
    await town.clock.sleep(70.0)
    assert len(town.results("k")) == done < DEEP
    await resume(town.state, town.queue(), KEY)
    node.work.owners.poke(KEY)
    await in_order(town)


@KINDS
async def test_order_holds_while_slots_die(town: Town, settings: dict[str, Any]) -> None:
    await send(town, *range(DEEP))
    node = await town.start(app_of(max_tries=100, **settings))
    for share in (0.1, 0.3, 0.5):
        await half_done(town, share)
        for slot in node.slots.slots[:1]:
            slot.die("was killed by the test")
    await in_order(town)


@KINDS
async def test_order_holds_while_the_stream_moves(town: Town, settings: dict[str, Any]) -> None:
    await send(town, *range(DEEP))
    a = await town.start(app_of(**settings))
    await half_done(town, 0.1)
    b = await town.start(app_of(**settings), "b")
    await town.until(lambda: {a.id, b.id} <= a.host.membership.view.keys())
    for share, node, to in ((0.2, a, b), (0.4, b, a), (0.6, a, b)):
        await half_done(town, share)
        assert await node.work.moves.move(KEY, to.id) == ""
        await town.until(partial(to.owns, KEY), 1.0)
    await in_order(town)
    assert given_back(town) == 0


async def test_a_deep_backlog_goes_on_at_once_on_a_node_of_an_older_version(town: Town) -> None:
    await send(town, *range(DEEP))
    a = await town.start(app_of(seq="n", first_seq=0))
    await half_done(town, 0.2)
    older = await town.start(app_of(seq="n", first_seq=0), "older")
    await town.until(lambda: {a.id, older.id} <= a.host.membership.view.keys())

    async def warm(request: Warm) -> Done:
        return Done()

    older.host.inquiries.add(Warm, warm)
    assert await a.work.moves.move(KEY, older.id) == ""
    done = len(town.results("k"))
    await town.until(lambda: len(town.results("k")) > done + INBOX, 5.0)
    await in_order(town)


async def test_a_deep_backlog_is_reserved_first_where_it_moves_though_another_node_ended(town: Town) -> None:
    node = await town.start(app_of())
    assert await node.work.assignment.warm("s", KEY, MovedFrom(deep=True)) == ""
    node.host.news.left("another")
    assert node.work.owners.adopt("s", KEY, await town.coordinator.claim(KEY, node.id))
    await town.until(lambda: node.queues["s"].called("reserve"), 1.0)


@KINDS
@pytest.mark.parametrize("dies", [False, True], ids=["drained", "dies"])
async def test_all_of_a_backlog_is_handled_in_order_after_its_owner_ends(
    town: Town, settings: dict[str, Any], dies: bool
) -> None:
    await send(town, *range(DEEP))
    a = await town.start(app_of(**settings))
    await half_done(town, 0.2)
    await town.start(app_of(**settings), "b")
    await town.until(lambda: len(a.host.membership.view) == 2)
    await (town.crash(a) if dies else a.node.stop())
    await in_order(town)


@KINDS
async def test_a_node_that_joins_again_reserves_again(town: Town, settings: dict[str, Any]) -> None:
    await send(town, *range(DEEP))
    node = await town.start(app_of(**settings))
    await half_done(town, 0.2)
    before = node.id
    await town.coordinator.leave(before)
    await in_order(town)
    assert node.id != before


@KINDS
async def test_a_reservation_that_has_lapsed_is_made_again_at_once(
    town: Town, settings: dict[str, Any]
) -> None:
    await send(town, *range(DEEP))
    node = await town.start(app_of(**settings))
    town.deeds[json.dumps({"k": "k", "n": DEEP // 2}).encode()] = lambda _: town.clock.sleep(5.0)
    await half_done(town, 0.5)
    await town.clock.sleep(1.0)
    calls = node.host.stats.receive_calls
    await town.queue().unreserve("k", node.id)
    await town.clock.sleep(1.0)
    assert node.host.stats.receive_calls - calls < 10, "nothing is received and put back all the time"
    await in_order(town)


async def test_a_node_without_room_asks_now_and_then_for_a_missing_message(town: Town) -> None:
    await send(town, *range(1, DEEP))
    node = await town.start(app_of(seq="n", first_seq=0))
    await town.until(lambda: node.host.stats.put_back)
    full, node.work.backlogs.room = node.work.backlogs.room, lambda stream: 0
    await town.clock.sleep(10.0)
    node.work.backlogs.room = full
    await send(town, 0)
    await in_order(town)


@pytest.mark.parametrize("by_key", [True, False], ids=["keyed", "no keys"])
async def test_no_number_with_gaps_is_late_because_it_found_no_room(town: Town, by_key: bool) -> None:
    town.queue().by_key = by_key
    await send(town, *range(DEEP))
    node = await town.start(app_of(seq="n", seq_kind="increasing"))

    async def slow(*args: Any) -> bool:
        await town.clock.sleep(0.3)
        return await town.queue().reserve(*args)

    node.queues["s"].instead["reserve"] = slow
    await in_order(town)


async def test_a_node_lives_on_and_a_stream_moves_though_its_queue_refuses_to_reserve(town: Town) -> None:
    await send(town, *range(DEEP))
    a = await town.start(app_of())

    async def refuse(*args: Any) -> bool:
        raise TooLarge("this key is too long to be reserved")

    a.queues["s"].instead["reserve"] = refuse
    await half_done(town, 0.2)
    await town.start(app_of(), "b")
    await town.until(lambda: len(a.host.membership.view) == 2)
    await a.node.stop()
    await town.until_over()
    assert sorted(town.results("k")) == list(range(DEEP))


async def test_a_message_behind_all_others_is_found_before_the_gap_is_skipped(town: Town) -> None:
    await send(town, *range(1, DEEP), 0)
    await town.start(app_of(seq="n", first_seq=0, gap_timeout_s=0.2, prefer_latency=True))
    await in_order(town)


async def test_a_message_that_comes_late_is_found_though_the_inbox_is_full(town: Town) -> None:
    await send(town, *range(1, DEEP))
    node = await town.start(app_of(seq="n", first_seq=0))
    await town.until(lambda: node.host.stats.put_back >= DEEP - 1 - INBOX)
    await town.clock.sleep(10.0)
    await send(town, 0)
    await in_order(town)


async def test_a_gap_in_a_backlog_is_skipped_once_all_of_it_was_seen(town: Town) -> None:
    missing = DEEP // 2
    await send(town, *(n for n in range(DEEP) if n != missing))
    await town.start(app_of(seq="n", first_seq=0, gap_timeout_s=5.0, prefer_latency=True))
    began_at = town.clock.monotonic()
    await town.until_over()
    assert town.results("k") == [n for n in range(DEEP) if n != missing]
    assert 5.0 <= town.clock.monotonic() - began_at < 20.0


ON_QUEUES = pytest.mark.parametrize(
    "fifo, settings",
    [
        (False, {"seq": "n", "first_seq": 0}),
        (True, {"seq": "n", "first_seq": 0}),
        (True, {"seq": "queue"}),
        (True, {}),
    ],
    ids=["seqs", "fifo-seqs", "fifo-numbers", "fifo-arrival"],
)
"""Streams on queues that can't keep the messages of a key for its owner, as those of SQS."""


def queue_of(town: Town, *, fifo: bool) -> MemoryQueue:
    """Make the stream's queue one that knows no keys. Without order, it delivers what is ready at random."""
    if fifo:
        return town.add_fifo_queue()
    queue = town.queue()
    queue.by_key = False
    random = Random(1)
    queue.choose = lambda visible: random.sample(visible, len(visible))
    return queue


@ON_QUEUES
async def test_a_deep_backlog_is_handled_in_order_where_the_queue_can_t_keep_it(
    town: Town, fifo: bool, settings: dict[str, Any]
) -> None:
    queue_of(town, fifo=fifo)
    await send(town, *range(DEEP))
    await town.start(app_of(gap_timeout_s=3.0, **settings))
    began_at = town.clock.monotonic()
    await in_order(town)
    assert town.clock.monotonic() - began_at < 0.1 * DEEP
    if not fifo:
        assert given_back(town) == 0, "all of it has room in custody"


@ON_QUEUES
async def test_the_owner_elsewhere_gets_a_deep_backlog_in_order(
    town: Town, fifo: bool, settings: dict[str, Any]
) -> None:
    queue_of(town, fifo=fifo)
    a = await town.start(app_of(gap_timeout_s=3.0, **settings))
    await send(town, 0)
    await town.until(lambda: town.results("k") == [0])
    await town.start(app_of(gap_timeout_s=3.0, **settings), "b")
    await town.until(lambda: len(a.host.membership.view) == 2)
    await send(town, *range(1, DEEP))
    await in_order(town)


@ON_QUEUES
async def test_what_is_given_back_never_counts_as_missing(
    town: Town, fifo: bool, settings: dict[str, Any]
) -> None:
    queue_of(town, fifo=fifo)
    await send(town, *range(DEEP))
    limits = msgspec.structs.replace(LIMITS, custody_limit=8)
    node = await town.start(app_of(gap_timeout_s=1.5, **settings), limits=limits)
    await in_order(town)
    assert node.host.stats.given_back or fifo


async def test_what_was_given_back_is_found_behind_a_deep_backlog_before_its_time_is_over(town: Town) -> None:
    """At the pace of a crowded node, it would take twice the timeout to read all that is before it."""
    queue_of(town, fifo=False)
    town.queue().choose = None
    limits = msgspec.structs.replace(LIMITS, custody_limit=8)
    await town.start(app_of(seq="n", first_seq=0, gap_timeout_s=5.0), limits=limits)
    await send(town, 0)
    await town.until(lambda: town.results("k"))
    await send(town, *range(2, 1000), 1)
    await town.until(lambda: len(town.results("k")) > 1)
    assert town.results("k")[:2] == [0, 1]


async def test_a_paused_stream_of_a_queue_in_order_goes_on_in_order(town: Town) -> None:
    queue_of(town, fifo=True)
    node = await town.start(app_of())
    await send(town, 0)
    await town.until(lambda: town.results("k") == [0])
    await pause(town.state, KEY)
    node.work.owners.poke(KEY)
    await town.clock.sleep(1.0)
    for n in range(1, DEEP):
        await send(town, n)
    await town.clock.sleep(100.0)
    assert town.letters() == [], "the queue keeps what has no room"
    await resume(town.state, town.queue(), KEY)
    node.work.owners.poke(KEY)
    await in_order(town)


async def waiting_for_a_gap(town: Town, **settings: Any) -> tuple[TownNode, TownNode]:
    """Return two nodes, the first of which owns a stream that waits for a missing message."""
    a = await town.start(app_of(seq="n", first_seq=0, **settings))
    await send(town, 0, 2)
    await town.until(lambda: town.results("k") == [0])
    b = await town.start(app_of(seq="n", first_seq=0, **settings), "b")
    await town.until(lambda: {a.id, b.id} <= a.host.membership.view.keys())
    return a, b


async def test_the_wait_for_a_gap_goes_on_where_a_stream_moves(town: Town) -> None:
    a, b = await waiting_for_a_gap(town, gap_timeout_s=60.0)
    began_at = town.clock.monotonic()
    for node, to in ((a, b), (b, a)):
        await town.clock.sleep(20.0)
        assert await node.work.moves.move(KEY, to.id) == ""
        await town.until(partial(to.owns, KEY))
    [waits] = b.work.waiting_streams.all() or a.work.waiting_streams.all()
    assert waits.kind == "gap"
    assert waits.since_s == pytest.approx(40.0, abs=1.0)
    await town.until(lambda: town.results("k") == [0, 2])
    assert 59.0 < town.clock.monotonic() - began_at < 63.0


async def test_the_balancer_leaves_a_stream_that_waits_for_a_gap(town: Town) -> None:
    a, b = await waiting_for_a_gap(town, gap_timeout_s=LIMITS.rest_s + 100.0)
    await town.clock.sleep(LIMITS.rest_s + 1.0)
    await a.host.inquiries.answer(RebalanceRequest(a.id, b.id, 10.0))
    assert a.owns(KEY)
