"""Briefs that no program reads go after a while, and the others stay."""

from holdfast.ports.queue import Outgoing
from holdfast.rules.tasks.task import State
from holdfast.services.memory.queue import MemoryQueue
from holdfast.system.clock import SystemClock
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.producer import drop_old_events
from holdfast.tasks.wire import Envelope, encode_event


def brief(ended_at: float) -> bytes:
    outcome = Outcome(task_id=f"t{ended_at:g}", state=State.SUCCEEDED, ended_at=ended_at)
    return encode_event(Envelope(app="a", task_id=outcome.task_id, task_type="t"), outcome)


async def left_of(bodies: list[bytes], before: float, max_batch: int = 10) -> tuple[int, list[bytes]]:
    """How many briefs were dropped, and those that are left, as their reader gets them."""
    queue = MemoryQueue(SystemClock(), max_batch=max_batch)
    for body in bodies:
        await queue.send([Outgoing(body)])
    dropped = await drop_old_events(queue, before, "node")
    left: list[bytes] = []
    while some := await queue.receive(max_batch, 0.0, 60.0, "reader"):
        left += [delivery.body for delivery in some]
    await queue.close()
    return dropped, left


async def test_briefs_that_are_older_than_outcomes_are_kept_are_dropped() -> None:
    old, young = [brief(100.0 + n) for n in range(30)], [brief(200.0 + n) for n in range(3)]
    assert await left_of([*old, *young], before=150.0, max_batch=7) == (30, young)


async def test_what_is_young_or_tells_no_time_stays_for_its_readers() -> None:
    bodies = [brief(200.0), brief(0.0), b"no brief"]
    assert await left_of(bodies, before=150.0) == (0, bodies)
    assert await left_of([], before=150.0) == (0, [])
