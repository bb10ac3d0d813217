"""Reports: what is settled is gathered, what is returned is told until it is heard."""

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.common.held import Receipt
from holdfast.common.protocol import Done, Reply, Request, SettleReport
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.streams.reports import SETTLED_AFTER_S, Reports
from simulator.limits import limits_with
from tests.cluster.fakes import held, make_host, settle_down

VIRTUAL = True


class Peers:
    """Notes what is said to whom, and fails as the test says."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Request]] = []
        self.failing: list[Exception] = []

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        self.heard.append((address, request))
        if self.failing:
            raise self.failing.pop(0)
        return Done()


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
async def reports(peers: Peers, clock: Clock, tasks: Tasks) -> Reports:
    return Reports(make_host(clock, tasks, peer=peers))


def parcels(sender: str, *numbers: int) -> list[Receipt]:
    return [receipt for number in numbers for receipt in held(number, sender=sender).receipts]


async def test_settled_parcels_are_gathered_by_sender(reports: Reports, peers: Peers, clock: Clock) -> None:
    await reports.report(parcels("a", 1) + parcels("b", 1), True)
    await clock.sleep(SETTLED_AFTER_S / 2)
    await reports.report(parcels("a", 2, 3), True)
    assert peers.heard == []
    await clock.sleep(SETTLED_AFTER_S)
    assert peers.heard == [
        ("sim://a", SettleReport("a", "me", [1, 2, 3], [])),
        ("sim://b", SettleReport("b", "me", [1], [])),
    ]
    await reports.report(parcels("a", 4), True)
    await clock.sleep(SETTLED_AFTER_S * 2)
    assert peers.heard[2:] == [("sim://a", SettleReport("a", "me", [4], []))]


async def test_that_parcels_are_settled_is_told_once(reports: Reports, peers: Peers, clock: Clock) -> None:
    peers.failing = [OutcomeUnknown("lost")]
    await reports.report(parcels("a", 1), True)
    await clock.sleep(60)
    assert len(peers.heard) == 1


async def test_returned_parcels_are_told_at_once_and_until_heard(
    reports: Reports, peers: Peers, clock: Clock
) -> None:
    peers.failing = [Unavailable("gone"), OutcomeUnknown("lost")]
    await reports.report(parcels("a", 1, 2), False)
    await settle_down()
    assert len(peers.heard) == 1
    await clock.sleep(60)
    assert peers.heard == [("sim://a", SettleReport("a", "me", [], [1, 2]))] * 3


async def test_a_sender_is_told_of_returned_parcels_until_these_show_again(
    reports: Reports, peers: Peers, clock: Clock
) -> None:
    peers.failing = [Unavailable("gone")] * 100_000
    visibility_s = limits_with().visibility_s
    await reports.report(parcels("a", 1), False)
    await clock.sleep(0.9 * visibility_s)
    tried = len(peers.heard)
    assert tried > 0.8 * visibility_s
    await clock.sleep(0.2 * visibility_s)
    assert len(peers.heard) > tried
    tried = len(peers.heard)
    await clock.sleep(600)
    assert len(peers.heard) == tried


async def test_before_the_end_all_is_sent(reports: Reports, peers: Peers, clock: Clock) -> None:
    await reports.report(parcels("a", 1) + parcels("b", 2), True)
    await reports.flush()
    assert len(peers.heard) == 2
    await clock.sleep(1)
    assert len(peers.heard) == 2
