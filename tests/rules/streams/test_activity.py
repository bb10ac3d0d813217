"""What a node reports of its streams: the busiest, those behind, and those that wait for targets."""

import pytest

from holdfast.common.effects import PendingReport
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Place
from holdfast.rules.streams.activity import (
    BEHIND_S,
    FIGURES,
    Lag,
    StreamActivity,
    activity,
    behind,
    busiest,
    oldest_s,
    unsent,
)


def held(*received_at: float) -> Held:
    receipts = [Receipt(f"r{at}", at + 30.0, received_at=at) for at in received_at]
    return Held(Place(0, 1), b"", {}, receipts)


def test_the_oldest_message_is_the_one_whose_first_delivery_came_first() -> None:
    assert oldest_s([held(4.0), held(2.0, 0.5), held()], 10.0) == 8.0
    assert oldest_s([], 10.0) == 0.0


def test_the_time_of_a_message_is_known_once_messages_were_handled() -> None:
    assert activity("s/k", 0.5, 2.0, 3, 1.5) == StreamActivity("s/k", 0.5, 2.0, 0.25, 3, 1.5)
    assert activity("s/k", 0.5, 0.0, 0, 0.0).time_s == 0.0


@pytest.mark.parametrize("by", FIGURES)
def test_the_busiest_streams_have_most_of_the_figure_that_is_asked_for(by: str) -> None:
    found = [StreamActivity(f"s/{n}", float(n), float(n), float(n), n, float(n)) for n in (1, 3, 2)]
    assert [each.key for each in busiest(found, by, 2)] == ["s/3", "s/2"]


def test_a_stream_is_behind_once_its_oldest_message_is_old_enough() -> None:
    lags = [Lag("s/a", BEHIND_S, 1), Lag("s/b", BEHIND_S - 0.1, 9), Lag("s/c", 7.0, 2)]
    assert [lag.key for lag in behind(lags, 5)] == ["s/c", "s/a"]
    assert [lag.key for lag in behind(lags, 1)] == ["s/c"]


def test_streams_with_the_oldest_effects_come_first_without_the_secrets_of_their_targets() -> None:
    hook = "https://user:hunter2@hooks.example.com/x"
    pending = [
        ("s/new", PendingReport(1, 90.0, "door", 0)),
        ("s/old", PendingReport(3, 50.0, hook, 2, "refused")),
        ("s/set", PendingReport(1, 120.0, "door", 0)),
    ]
    found = unsent(pending, 100.0, 3)
    assert [(each.key, each.oldest_s) for each in found] == [("s/old", 50.0), ("s/new", 10.0), ("s/set", 0.0)]
    assert (found[0].count, found[0].failures, found[0].error) == (3, 2, "refused")
    assert "hunter2" not in found[0].target
    assert len(unsent(pending, 100.0, 1)) == 1
