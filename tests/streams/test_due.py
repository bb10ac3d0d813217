"""Which streams a node has somebody look after, and how often."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.common.due import ASK_EVERY_S, LEASE_S
from holdfast.ports.clock import Clock
from holdfast.ports.state import StateStore
from holdfast.streams import due
from holdfast.streams.due import DueStreams
from holdfast.streams.placing import Placing
from tests.cluster.fakes import StandingMembership, make_host

VIRTUAL = True
LOST, SERVED = "s/lost", "s/served"


class Store:
    """Keys that are due for ever: each is handed out once a lease."""

    def __init__(self, clock: Clock, *keys: str) -> None:
        self._clock = clock
        self.due_at = dict.fromkeys(keys, 0.0)
        self.calls: list[tuple[float, float]] = []
        """When it was asked, and for what is due before which time."""

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        self.calls.append((self._clock.wall(), before))
        found = [key for key, at in self.due_at.items() if at < before]
        self.due_at |= dict.fromkeys(found, before + lease_s)
        return found


class Nudges:
    """Places keys, and finds an owner for what is served."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at: dict[str, list[float]] = {LOST: [], SERVED: []}
        self.served = {SERVED}

    async def nudge(self, stream: str, key: str) -> bool:
        self.at[key].append(self._clock.monotonic())
        return key in self.served


@pytest.fixture
def nudges(clock: Clock) -> Nudges:
    return Nudges(clock)


@pytest.fixture
async def streams(clock: Clock, tasks: Tasks, nudges: Nudges) -> DueStreams:
    host = make_host(clock, tasks, membership=StandingMembership())
    return DueStreams(host, cast("StateStore", Store(clock, LOST, SERVED)), cast("Placing", nudges))


async def test_a_node_asks_once_in_five_seconds_at_most_and_misses_no_time(
    clock: Clock, tasks: Tasks, nudges: Nudges
) -> None:
    store = Store(clock)
    host = make_host(clock, tasks, membership=StandingMembership())
    tasks.spawn(DueStreams(host, cast("StateStore", store), cast("Placing", nudges)).run())
    await clock.sleep(600.0)
    pairs = list(zip(store.calls, store.calls[1:], strict=False))
    assert len(pairs) > 600.0 / 6.5
    assert all(later - earlier >= 5.0 for (earlier, _), (later, _) in pairs)
    assert all(later < before for (_, before), (later, _) in pairs), "what was due between came too late"


async def test_a_stream_that_nobody_can_look_after_is_nudged_less_and_less_often(
    clock: Clock, tasks: Tasks, streams: DueStreams, nudges: Nudges
) -> None:
    tasks.spawn(streams.run())
    await clock.sleep(2400.0)
    pauses_s = [later - earlier for earlier, later in zip(nudges.at[LOST], nudges.at[LOST][1:], strict=False)]
    assert pauses_s[0] < LEASE_S + 2 * ASK_EVERY_S
    assert 300.0 <= max(pauses_s) < 300.0 + LEASE_S + 2 * ASK_EVERY_S
    assert min(pauses_s[-3:]) >= 300.0
    assert len(nudges.at[LOST]) < 15 < 2400.0 / (LEASE_S + 2 * ASK_EVERY_S) < len(nudges.at[SERVED])
    nudges.served.add(LOST)
    await clock.sleep(400.0)
    nudges.at[LOST].clear()
    await clock.sleep(100.0)
    assert len(nudges.at[LOST]) >= 2, "once somebody does, it is as before"


async def test_what_is_remembered_of_streams_without_owners_is_bounded(
    clock: Clock, tasks: Tasks, nudges: Nudges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "FAILURES_MAX", 2)
    keys = [f"s/{number}" for number in range(5)]
    nudges.at |= {key: [] for key in keys}
    host = make_host(clock, tasks, membership=StandingMembership())
    store: Any = Store(clock, *keys)
    streams = DueStreams(host, store, cast("Placing", nudges))
    assert await streams.ask() == 5
    store.due_at = {keys[0]: 0.0, keys[-1]: 0.0}
    assert await streams.ask() == 2
    assert len(nudges.at[keys[0]]) == 2, "it is forgotten, and so nudged as if it were new"
    assert len(nudges.at[keys[-1]]) == 1
