"""The state store in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result
from holdfast.services.memory.state import CommitRecord, MemoryState, OpenRecord, StartRecord
from holdfast.testing.conformance import StateConformance, StateTransferConformance
from holdfast.testing.conformance.state import next_commit


class TestMemoryState(StateConformance, StateTransferConformance):
    @pytest.fixture
    async def state(self, clock: Clock) -> AsyncIterator[MemoryState]:
        state = MemoryState(clock, max_state_bytes=2**20)
        yield state
        await state.close()


async def test_the_history_has_refused_calls_and_repeated_commits_too(clock: Clock) -> None:
    history: list[object] = []
    state = MemoryState(clock, history=history)
    opened = await state.open("s/k", 0, "a")
    with pytest.raises(Fenced):
        await state.open("s/k", 0, "b")
    await state.start("s/k", 1, "0:1")
    with pytest.raises(Fenced):
        await state.start("s/k", 2, "0:1")
    commit = next_commit(opened)
    await state.commit(commit)
    await state.commit(commit)
    with pytest.raises(Fenced):
        await state.commit(next_commit(opened, id="other"))
    events = [(type(e), e.before and e.before.number, e.after and e.after.number) for e in state.history]
    assert events == [
        (OpenRecord, None, 0),
        (OpenRecord, 0, None),
        (StartRecord, 0, 0),
        (StartRecord, 0, None),
        (CommitRecord, 0, 1),
        (CommitRecord, 1, 1),
        (CommitRecord, 1, None),
    ]
    assert [e.repeated for e in state.history if isinstance(e, CommitRecord)] == [False, True, False]
    assert state.history is history


async def test_closing_ends_a_waiting_reader(clock: Clock) -> None:
    state = MemoryState(clock)
    reading = asyncio.create_task(state.results(0, 1, 60))
    await asyncio.sleep(0)
    await state.close()
    assert await asyncio.wait_for(reading, 10) == []
    assert await state.open("s/k", 0, "a") == Checkpoint("s/k", epoch=1, member="a")


async def test_a_store_may_lose_its_last_writes_and_issues_no_epoch_again(clock: Clock) -> None:
    state = MemoryState(clock)
    await state.open("s/k", 0, "a")
    await state.commit(Commit("s/k", 1, 1, "1", None, results=(Result("0:1", b"kept"),)))
    kept = await state.peek("s/k")
    await clock.sleep(10.0)
    await state.start("s/k", 1, "0:2")
    await state.commit(Commit("s/k", 1, 2, "2", None, results=(Result("0:2", b"lost"),)))
    await state.open("s/k", 1, "b")
    await state.open("s/new", 0, "b")
    state.rewind(5.0)
    assert await state.peek("s/k") == kept
    assert await state.peek("s/new") is None
    assert [logged.result.body for logged in await state.results(0, 10)] == [b"kept"]
    assert await state.result("s/k", "0:2") is None
    state.rewind(60.0)
    assert await state.peek("s/k") == kept, "no further than it has forgotten before"
    assert (await state.open("s/k", 1, "c")).epoch == 3
    assert (await state.open("s/new", 0, "c")).epoch == 2
