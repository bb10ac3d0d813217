"""The outbox store in memory."""

from collections.abc import AsyncIterator

import pytest

from holdfast.devices.conformance import OutboxConformance
from holdfast.devices.conformance.outbox_bench import Begin
from holdfast.devices.services.memory.outbox import MemoryOutbox
from holdfast.ports.clock import Clock


class TestMemoryOutbox(OutboxConformance):
    @pytest.fixture
    async def store(self, clock: Clock) -> AsyncIterator[MemoryOutbox]:
        store = MemoryOutbox(clock)
        yield store
        await store.close()

    @pytest.fixture
    def begin(self, store: MemoryOutbox) -> Begin:
        return store.transaction
