"""The turns of suspects on a node: who runs beside whom."""

import asyncio
from random import Random

import pytest

from holdfast.streams.quarantine import Quarantine
from simulator.loop import SimClock
from tests.cluster.fakes import settle_down

VIRTUAL = True
PATIENCE_S = 30.0


@pytest.fixture
async def clock() -> SimClock:
    return SimClock(Random(1), "node")


@pytest.fixture
async def quarantine(clock: SimClock) -> Quarantine:
    return Quarantine(clock, PATIENCE_S)


class Work:
    """Something that runs in a slot until it is told to end."""

    def __init__(self, quarantine: Quarantine, *, in_turn: bool = False) -> None:
        self._quarantine = quarantine
        self._ends = asyncio.Event()
        self.runs = False
        self._task = asyncio.ensure_future(self._run(in_turn))

    async def _run(self, in_turn: bool) -> None:
        if not in_turn:
            await self._quarantine.opened()
        with self._quarantine.running:
            self.runs = True
            await self._ends.wait()
        self.runs = False

    async def end(self) -> None:
        self._ends.set()
        await self._task


async def test_two_suspects_never_have_a_turn_together(quarantine: Quarantine) -> None:
    await quarantine.enter()
    second = asyncio.ensure_future(quarantine.enter())
    await settle_down()
    assert not second.done()
    quarantine.leave()
    await second
    assert quarantine.is_taken
    quarantine.leave()
    assert not quarantine.is_taken


async def test_others_run_beside_a_turn_that_is_not_the_last(quarantine: Quarantine) -> None:
    await quarantine.enter()
    work = Work(quarantine)
    await settle_down()
    assert work.runs
    await work.end()


async def test_nothing_runs_beside_a_suspect_in_its_last_turn(quarantine: Quarantine) -> None:
    ended = Work(quarantine)
    await settle_down()
    await ended.end()
    before = Work(quarantine)
    await settle_down()
    turn = asyncio.ensure_future(quarantine.enter(last=True))
    await settle_down()
    after = Work(quarantine)
    await settle_down()
    assert (before.runs, turn.done(), after.runs) == (True, False, False)
    await before.end()
    await turn
    suspect = Work(quarantine, in_turn=True)
    await settle_down()
    assert (suspect.runs, after.runs) == (True, False)
    await suspect.end()
    assert (suspect.runs, after.runs) == (False, False), "its commit has yet to be answered"
    quarantine.leave()
    await settle_down()
    assert after.runs
    await after.end()


async def test_what_makes_progress_for_hours_is_not_waited_for(
    quarantine: Quarantine, clock: SimClock
) -> None:
    long = Work(quarantine)
    await settle_down()
    began = clock.monotonic()
    await quarantine.enter(last=True)
    assert clock.monotonic() - began == pytest.approx(PATIENCE_S, abs=0.1)
    await long.end()


async def test_between_two_last_turns_what_waited_runs(quarantine: Quarantine) -> None:
    """Else the suspects of many streams would keep it waiting one after the other."""
    await quarantine.enter(last=True)
    work = Work(quarantine)
    next_turn = asyncio.ensure_future(quarantine.enter(last=True))
    await settle_down()
    quarantine.leave()
    await settle_down()
    assert (work.runs, next_turn.done()) == (True, False)
    await work.end()
    await next_turn
