"""The state store in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.adapters.memory.state import Began, Committed, MemoryState, Opened
from holdfast.core.ledger import Checkpoint
from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.testing.conformance import StateConformance
from holdfast.testing.conformance.state import next_commit


class TestMemoryState(StateConformance):
    @pytest.fixture
    async def state(self, clock: Clock) -> AsyncIterator[MemoryState]:
        state = MemoryState(clock, max_state_bytes=2**20)
        yield state
        await state.close()


async def test_the_history_tells_every_attempt(clock: Clock) -> None:
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
    told = [(type(e), e.before and e.before.number, e.after and e.after.number) for e in state.history]
    assert told == [
        (Opened, None, 0),
        (Opened, 0, None),
        (Began, 0, 0),
        (Began, 0, None),
        (Committed, 0, 1),
        (Committed, 1, 1),
        (Committed, 1, None),
    ]
    assert [e.repeated for e in state.history if isinstance(e, Committed)] == [False, True, False]
    assert state.history is history


async def test_closing_ends_a_waiting_reader(clock: Clock) -> None:
    state = MemoryState(clock)
    reading = asyncio.create_task(state.results(0, 1, 60))
    await asyncio.sleep(0)
    await state.close()
    assert await asyncio.wait_for(reading, 10) == []
    assert await state.open("s/k", 0, "a") == Checkpoint("s/k", epoch=1, member="a")
