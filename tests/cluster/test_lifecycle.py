"""One contract for all that runs: started once, stopped once, in whatever order that is asked."""

import asyncio
from random import Random

import pytest

from holdfast.cluster.lifecycle import Startable, Tasks
from holdfast.errors import OutcomeUnknown, Unavailable
from simulator.loop import SimClock
from tests.cluster.fakes import Log


class Counted(Startable):
    """Records each call, and takes a few turns of the loop for it."""

    def __init__(self, turns: int = 3) -> None:
        super().__init__()
        self.turns = turns
        self.story: list[str] = []

    async def _start(self) -> None:
        await self._do("start")

    async def _stop(self) -> None:
        await self._do("stop")

    async def _do(self, what: str) -> None:
        self.story.append(f"{what} begins")
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.story.append(f"{what} ends")


STARTED = ["start begins", "start ends"]
WHOLE = [*STARTED, "stop begins", "stop ends"]


async def test_a_stop_during_the_start_lets_it_finish() -> None:
    service = Counted()
    starting = asyncio.create_task(service.start())
    await asyncio.sleep(0)
    assert service.story == ["start begins"]
    await service.stop()
    assert service.story == WHOLE
    await starting


async def test_what_failed_to_start_is_stopped_all_the_same() -> None:
    class Broken(Counted):
        async def _start(self) -> None:
            await super()._start()
            raise OSError("no")

    service = Broken()
    with pytest.raises(OSError, match="no"):
        await service.start()
    await service.stop()
    assert service.story == WHOLE


async def test_a_start_that_is_given_up_can_be_stopped() -> None:
    service = Counted(turns=1_000_000)
    starting = asyncio.create_task(service.start())
    await asyncio.sleep(0)
    starting.cancel()
    service.turns = 1
    await service.stop()
    assert service.story == ["start begins", "stop begins", "stop ends"]


@pytest.mark.parametrize("seed", range(100))
async def test_any_order_of_calls_is_one_life(seed: int) -> None:
    random = Random(seed)
    service = Counted(random.randrange(4))

    async def call() -> str:
        name = random.choice(["start", "stop"])
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        await getattr(service, name)()
        if name == "stop":
            assert service.story in ([], WHOLE), "a stop returns when all is over"
        else:
            assert service.story == [] or service.story[:2] == STARTED, "a start returns when ready"
        return name

    asked = await asyncio.gather(*(call() for _ in range(random.randrange(1, 8))))
    assert service.story == WHOLE[: len(service.story)]
    if "stop" not in asked:
        assert service.story == STARTED
    await service.stop()
    assert service.story in ([], WHOLE)


# --- tasks


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("a bug")


async def test_a_task_that_fails_is_told_once() -> None:
    crashes: list[BaseException] = []
    tasks = Tasks(crashes.append)
    failing = tasks.spawn(fail())
    assert failing is not None
    await asyncio.wait((failing,))
    await asyncio.sleep(0)
    assert [str(error) for error in crashes] == ["a bug"]
    await tasks.close()
    assert len(crashes) == 1


async def test_a_cancelled_task_is_no_failure() -> None:
    crashes: list[BaseException] = []
    tasks = Tasks(crashes.append)
    task = tasks.spawn(wait_for_ever())
    assert task is not None
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    await tasks.close()
    assert crashes == []


async def test_what_fails_while_it_is_cancelled_is_told_to_nobody() -> None:
    crashes: list[BaseException] = []
    tasks = Tasks(crashes.append)

    async def stubborn() -> None:
        try:
            await wait_for_ever()
        finally:
            raise ValueError("too late")

    tasks.spawn(stubborn())
    await asyncio.sleep(0)
    await tasks.close()
    assert crashes == []


async def test_work_that_is_spawned_after_the_end_never_runs() -> None:
    tasks = Tasks(lambda _: None)
    await tasks.close()
    ran = []

    async def work() -> None:
        ran.append(1)

    assert tasks.spawn(work()) is None  # nor is it a warning that it was never awaited
    await asyncio.sleep(0)
    assert ran == []


async def test_closing_waits_for_all_ends_but_its_own() -> None:
    tasks = Tasks(lambda _: None)
    ended = []

    async def slow() -> None:
        try:
            await wait_for_ever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append("slow")

    async def closes() -> None:
        await asyncio.sleep(0)
        await tasks.close()
        ended.append("closer")

    tasks.spawn(slow())
    closer = tasks.spawn(closes())
    assert closer is not None
    await asyncio.wait((closer,))
    assert ended == ["slow", "closer"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), Unavailable("away"), OutcomeUnknown("?")]
)
async def test_a_loop_whose_input_or_output_fails_is_begun_anew_and_ends_nothing(error: Exception) -> None:
    crashes: list[BaseException] = []
    tasks, log, done = Tasks(crashes.append), Log(), asyncio.Event()
    clock, began_at = SimClock(Random(0), "clock"), []

    async def loop() -> None:
        began_at.append(clock.monotonic())
        if len(began_at) < 6:
            raise error
        done.set()

    tasks.repeat(loop, clock, log)
    await asyncio.wait_for(done.wait(), 60)
    await tasks.close()
    assert not crashes
    assert len(log.events("error")) == 5
    assert began_at[-1] - began_at[0] > 0.5, "with pauses"


async def test_a_bug_in_a_loop_still_ends_the_node() -> None:
    crashes: list[BaseException] = []
    tasks = Tasks(crashes.append)

    async def loop() -> None:
        raise ValueError("a bug")

    task = tasks.repeat(loop, SimClock(Random(0), "clock"), Log())
    assert task is not None
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    assert [str(error) for error in crashes] == ["a bug"]
