"""The state store in memory against the ledger."""

from hypothesis import settings
from tests.adapters.memory.clock import LoopClock

from holdfast.adapters.memory.state import MemoryState
from holdfast.ports.state import StateStore
from holdfast.testing.conformance.oracle import StateMachine


class MemoryStateMachine(StateMachine):
    async def make(self) -> StateStore:
        return MemoryState(LoopClock())


TestMemoryStateMachine = MemoryStateMachine.TestCase
TestMemoryStateMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
