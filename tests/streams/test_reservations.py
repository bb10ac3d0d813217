"""The reservations of a node, beside a queue in memory."""

from typing import Any

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.common.held import Held
from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing, Queue
from holdfast.services.memory.queue import MemoryQueue
from holdfast.streams.reservations import RENEWALS, RESERVE_S, Reservations
from tests.cluster.fakes import Log, StandingMembership, held, make_host, settle_down
from tests.streams.town import Service

VIRTUAL = True
HIDE_S = 10.0


class Desk:
    """The reservations of one node with two queues, of which one knows no keys."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.clock = clock
        self.queue = MemoryQueue(clock)
        self.service = Service(self.queue)
        self.log = Log()
        self.membership = StandingMembership()
        self.host = make_host(clock, tasks, log=self.log, membership=self.membership)
        self.lost: list[tuple[str, str]] = []
        queues: dict[str, Queue] = {"s": self.service, "other": MemoryQueue(clock, by_key=False)}
        self.reservations = Reservations(self.host, queues, HIDE_S)
        self.reservations.on_lost = lambda stream, key: self.lost.append((stream, key))
        self.reservations.start()

    async def receive(self, count: int) -> list[Held]:
        """Messages of the key "k" with real deliveries."""
        await self.queue.send([Outgoing(b"%d" % n, key="k") for n in range(count)])
        found = await self.queue.receive(count, 0, HIDE_S, "me")
        return [held(n, delivery.receipt) for n, delivery in enumerate(found)]

    def put_back(self) -> int:
        """How many messages were put back."""
        return sum(event.kind == "put back" for event in self.queue.log)


@pytest.fixture
async def desk(clock: Clock, tasks: Tasks) -> Desk:
    return Desk(clock, tasks)


async def failing(*args: Any) -> Any:
    raise Unavailable("the queue is away")


async def test_it_is_known_which_queues_know_keys(desk: Desk) -> None:
    assert desk.reservations.knows_keys("s")
    assert not desk.reservations.knows_keys("other")


async def test_a_reservation_is_renewed_for_as_long_as_it_is_held(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    await desk.clock.sleep(5 * RESERVE_S)
    assert not await desk.queue.reserve("k", "another", 0, RESERVE_S)
    assert desk.lost == []
    await desk.reservations.unreserve("s", "k")
    assert await desk.queue.reserve("k", "another", 1, RESERVE_S)
    await desk.clock.sleep(5 * RESERVE_S)
    assert desk.lost == []


async def test_a_reservation_that_is_lost_is_told_of_once(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    assert await desk.queue.reserve("k", "another", 2, 10 * RESERVE_S)
    await desk.clock.sleep(RESERVE_S)
    assert desk.lost == [("s", "k")]


async def test_a_renewal_that_fails_is_tried_again_before_the_reservation_lapses(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    desk.service.instead["keep"] = failing
    await desk.clock.sleep(1.5 * RESERVE_S / RENEWALS)
    del desk.service.instead["keep"]
    await desk.clock.sleep(RESERVE_S)
    assert "cannot renew reservations" in desk.log.events("warning")
    assert desk.lost == []


async def test_nothing_is_renewed_while_the_node_is_no_member(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    desk.membership.alive = False
    await desk.clock.sleep(2 * RESERVE_S)
    assert desk.service.called("keep") == []


async def test_a_reservation_that_could_not_be_given_up_lapses(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    desk.service.instead["unreserve"] = failing
    await desk.reservations.unreserve("s", "k")
    await desk.clock.sleep(RESERVE_S + 1.0)
    assert await desk.queue.reserve("k", "another", 1, RESERVE_S)


async def test_the_next_owner_gets_a_reservation_that_was_left_to_it(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    desk.reservations.leave("s", "k")
    desk.reservations.leave("other", "k")
    await desk.clock.sleep(RESERVE_S)
    assert desk.service.called("keep") == []
    assert desk.lost == []


async def test_a_take_waits_for_all_that_goes_back(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    desk.reservations.put_back("s", "k", await desk.receive(5))
    taken = await desk.reservations.take("s", "k", 10, 0)
    assert taken is not None
    assert [delivery.body for delivery in taken.deliveries] == [b"0", b"1", b"2", b"3", b"4"]
    assert {delivery.receives for delivery in taken.deliveries} == {1}


async def test_a_take_of_another_s_key_shows_that_the_reservation_is_lost(desk: Desk) -> None:
    assert await desk.reservations.reserve("s", "k", 1)
    assert await desk.queue.reserve("k", "another", 2, RESERVE_S)
    assert await desk.reservations.take("s", "k", 10, 0) is None
    await desk.clock.sleep(RESERVE_S)
    assert desk.service.called("keep") == [], "it is renewed no more"


async def test_what_can_t_be_put_back_stops_nothing_and_shows_again_by_itself(desk: Desk) -> None:
    first = await desk.receive(3)
    desk.service.instead["put_back"] = failing
    desk.reservations.put_back("s", "k", first)
    await desk.reservations.all_back("s")
    assert "cannot put messages back" in desk.log.events("warning")
    del desk.service.instead["put_back"]
    again = await desk.queue.receive(10, 2 * HIDE_S, HIDE_S, "me")
    assert len(again) == 3
    desk.reservations.put_back("s", "k", [held(0, again[0].receipt)])
    await desk.reservations.all_back("s")
    assert desk.put_back() == 1


async def test_deliveries_that_are_stale_are_not_put_back(desk: Desk) -> None:
    stale, valid = await desk.receive(2)
    stale.receipts[0].stale = True
    desk.reservations.put_back("s", "k", [stale])
    await settle_down()
    assert desk.service.called("put_back") == []
    desk.reservations.put_back("s", "k", [stale, valid])
    await settle_down()
    assert desk.put_back() == 1


async def test_what_may_have_killed_a_node_counts_though_it_is_put_back(desk: Desk) -> None:
    suspect, healthy = await desk.receive(2)
    desk.reservations.put_back("s", "k", [suspect], counted=True)
    desk.reservations.put_back("s", "k", [healthy])
    await desk.reservations.all_back("s")
    assert [delivery.receives for delivery in await desk.queue.receive(10, 0, HIDE_S, "me")] == [2, 1]
