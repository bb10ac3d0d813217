"""What is special of slots for tasks that are processes."""

import asyncio
import errno
import signal
from pathlib import Path

import pytest

from holdfast.errors import SlotDied, Unavailable
from holdfast.ports.slots import Attempt
from holdfast.slots import lifeline
from holdfast.slots.task_slots import PrefetchBuffer, TaskSlotSettings, task_slots
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.slots import RecordingListener

APP = "holdfast.testing.conformance.slots_app:app"
PATIENCE_S = 20.0


@pytest.mark.slow
async def test_where_there_is_no_stream_of_messages_datagrams_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "LINUX", False)
    slots, listener = task_slots(TaskSlotSettings(app=APP), SystemClock()), RecordingListener()
    slot = await slots.spawn(listener)
    for number, size in enumerate([10, 100_000]):
        assert slot.offer(number, Attempt("t", "echo", b"x" * size))
    assert (await listener.outcome(0)).result == b'"%s"' % (b"x" * 10)
    assert "100002 bytes" in (await listener.outcome(1)).error
    await slot.stop(PATIENCE_S)
    assert (await slot.exited()).reason == "exited with code 0"
    await slots.close()


@pytest.mark.slow
async def test_a_full_tray_refuses_until_there_is_room_again() -> None:
    slots, listener = (
        task_slots(TaskSlotSettings(app=APP, close_timeout_s=0.1), SystemClock()),
        RecordingListener(),
    )
    slot = await slots.spawn(listener)
    slot.offer(0, Attempt("t", "wait", b""))
    await listener.begun()
    count = 1
    while slot.offer(count, Attempt("t", "echo", b"x" * 60_000)):
        count += 1
    assert slot.withdraw() == list(range(1, count))
    assert slot.offer(count, Attempt("t", "echo", b"")), "there is room again"
    slot.cancel(0, "enough")
    assert (await listener.outcome(count)).result == b'""'
    await slots.close()


@pytest.mark.slow
async def test_a_slot_that_can_not_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, listener = task_slots(TaskSlotSettings(app=APP), SystemClock()), RecordingListener()
    slot = await slots.spawn(listener)
    before = open_files()

    def no_file(self: PrefetchBuffer) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(PrefetchBuffer, "__init__", no_file)
    with pytest.raises(Unavailable):
        await slots.spawn(listener)
    assert open_files() == before
    await slot.stop(PATIENCE_S)
    await slots.close()


def open_files() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
async def test_requests_to_a_stopped_server_wait_for_it(end: signal.Signals) -> None:
    """It is far more than its socket takes."""
    slots, listener = task_slots(TaskSlotSettings(app=APP), SystemClock()), RecordingListener()
    slot = await slots.spawn(listener)
    before = open_files()
    server = slots.server
    assert server is not None
    server.process.send_signal(signal.SIGSTOP)
    for _ in range(10_000):
        server.lease("missing", 1.0)
    spawning = asyncio.ensure_future(slots.spawn(RecordingListener()))
    async with asyncio.timeout(PATIENCE_S):
        while not server.unsent[-1][1]:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    server.process.send_signal(end)
    if end == signal.SIGCONT:
        other = await asyncio.wait_for(spawning, PATIENCE_S)
        await other.stop(PATIENCE_S)
    else:
        with pytest.raises(SlotDied):
            await asyncio.wait_for(spawning, PATIENCE_S)
        await asyncio.wait_for(slot.exited(), PATIENCE_S)
    assert open_files() <= before
    await slots.close()


@pytest.mark.slow
async def test_slots_that_lost_their_server_are_over() -> None:
    slots, listener = task_slots(TaskSlotSettings(app=APP), SystemClock()), RecordingListener()
    slot, other = await slots.spawn(listener), await slots.spawn(listener)
    slot.offer(0, Attempt("t", "wait", b""))
    await listener.begun()
    slots.server.process.kill()  # type: ignore[union-attr]
    gone = await asyncio.wait_for(asyncio.gather(slot.exited(), other.exited()), PATIENCE_S)
    assert all("lost its fork server" in each.reason for each in gone)
    again = await slots.spawn(listener)
    again.offer(1, Attempt("t", "echo", b""))
    await listener.outcome(1)
    await slots.close()
