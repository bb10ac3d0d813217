"""Dead letters that operators send again and remove."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from holdfast.common.progress import chunks
from holdfast.config.settings import Config
from holdfast.errors import HoldfastError
from holdfast.operate.dead_letters import Failed, purge, redrive
from holdfast.ports.queue import DeadLetter
from holdfast.services.memory.queue import MemoryQueue
from holdfast.system.clock import SystemClock
from holdfast.wiring.services import Services

Act = Callable[[Services, Mapping[str, Sequence[str]], Failed], Awaitable[int]]


class Searched(MemoryQueue):
    """A queue that reads all its dead letters for each look, redrive and purge, as SQS does."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), max_batch=10)
        self.hides_dead_letters = True
        self.looks = 0

    async def redrive(self, ids: Sequence[str]) -> int:
        self.looks += 1
        return sum([await super(Searched, self).redrive(some) for some in chunks(ids, 10)])

    async def purge(self, ids: Sequence[str]) -> int:
        self.looks += 1
        return sum([await super(Searched, self).purge(some) for some in chunks(ids, 10)])


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with Services(Config(url=f"sqlite:///{tmp_path}/holdfast.db")) as made:
        yield made


@pytest.mark.parametrize("act", [redrive, purge])
async def test_letters_that_each_call_must_search_are_named_in_few_calls(
    services: Services, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    queue = Searched()
    ids = [f"detect/cam-1:0:{number:03d}" for number in range(600)]
    for some in chunks(ids, 10):
        await queue.bury([DeadLetter(name, b"x", "late", stream="detect", key="cam-1") for name in some])
    monkeypatch.setattr(services, "queue", lambda name: queue)
    failed: list[HoldfastError] = []
    count = await act(services, {"detect": ids}, lambda where, error: failed.append(error))
    assert (count, failed) == (600, [])
    assert queue.looks == 2
