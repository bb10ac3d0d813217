"""The state store in memory against the ledger."""

from random import Random

from hypothesis import settings

from holdfast.ports.state import StateStore
from holdfast.services.memory.state import MemoryState
from holdfast.testing.conformance.oracle import StateMachine
from simulator.loop import SimClock


class MemoryStateMachine(StateMachine):
    async def make(self) -> StateStore:
        return MemoryState(SimClock(Random(0), "clock"))


TestMemoryStateMachine = MemoryStateMachine.TestCase
TestMemoryStateMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
