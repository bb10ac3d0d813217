"""What a slot's process says goes to the call that it names, in whatever order it comes."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from holdfast.errors import HandlerFailed, SlotDied
from holdfast.ports.meter import Meter
from holdfast.ports.slots import Attempt, AttemptReport, MessageWork, Progress, RunResult, SlotCall
from holdfast.slots import wire
from holdfast.slots.child import ChildHost, NodeConnection
from holdfast.slots.launcher import ForkServer
from holdfast.slots.process import ProcessSetup
from holdfast.slots.stream_slots import ForkserverStreamSlot
from holdfast.slots.task_child import TaskChildHost
from holdfast.slots.task_slots import ForkserverTaskSlot
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.slots import RecordingListener
from tests.cluster.fakes import settle_down


class ScriptedChild(asyncio.Transport):
    """The other end of a slot's socket: it answers what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self._splitter = wire.Splitter()
        self.asked: list[tuple[int, wire.Request]] = []

    def write(self, data: Any) -> None:
        for call, payload in self._splitter.feed(data):
            self.asked.append((call, msgspec.msgpack.decode(payload, type=wire.Request)))

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


class NoServer:
    """A fork server that ignores all requests."""

    def signal(self, *args: Any, **settings: Any) -> None:
        pass


@pytest.fixture
def stacks() -> Iterator[int]:
    end, pen = os.pipe()
    os.set_blocking(end, False)
    yield end
    os.close(pen)


class StreamRig:
    """A slot whose process is a script."""

    def __init__(self, stacks: int) -> None:
        self.child = ScriptedChild()
        server = cast("ForkServer", NoServer())
        self.slot = ForkserverStreamSlot(ProcessSetup("slot-1", SystemClock(), server, stacks, 0), Meter())
        self.slot.connection_made(self.child)

    async def begin(self, *keys: str) -> list[asyncio.Task[RunResult]]:
        """Calls that run a message of each key."""
        work = [MessageWork(0, 0, b"")]
        self.calls = {key: SlotCall(30.0) for key in keys}
        runs = [
            asyncio.create_task(self.slot.run("s", key, work, 1, 1.0, call=call))
            for key, call in self.calls.items()
        ]
        await settle_down()
        return runs

    def say(self, message: msgspec.Struct, call: int) -> None:
        self.slot.data_received(bytes(wire.frame(message, call)))


@pytest.fixture
async def rig(stacks: int) -> StreamRig:
    return StreamRig(stacks)


def ran(text: str) -> wire.RunDone:
    return wire.RunDone(RunResult([text.encode()]))


async def test_answers_go_to_the_calls_that_they_name_in_any_order(rig: StreamRig) -> None:
    runs = await rig.begin("a", "b", "c")
    by_key = {request.key: call for call, request in rig.child.asked}
    for key in "cab":
        rig.say(ran(key), by_key[key])
    assert [run.results for run in await asyncio.gather(*runs)] == [[b"a"], [b"b"], [b"c"]]


async def test_an_answer_that_no_call_waits_for_is_given_to_none(rig: StreamRig) -> None:
    first, second = await rig.begin("a", "b")
    (call, _), (other, _) = rig.child.asked
    rig.say(ran("a"), call)
    rig.say(ran("a, again"), call)
    rig.say(ran("of-no-call"), 99)
    rig.say(wire.Opened("of none", "detail"), 0)
    assert (await first).results == [b"a"]
    assert not second.done()
    assert list(rig.slot.calls) == [rig.calls["b"]]
    rig.say(ran("b"), other)
    assert (await second).results == [b"b"]


async def test_the_answer_of_a_call_that_was_given_up_is_no_other_s(rig: StreamRig) -> None:
    first, second = await rig.begin("a", "b")
    (call, _), (other, _) = rig.child.asked
    first.cancel()
    await asyncio.wait([first])
    rig.say(ran("b"), other)
    rig.say(ran("a"), call)
    assert (await second).results == [b"b"]
    assert not rig.slot.calls


async def test_what_is_said_of_a_call_is_its_own(rig: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await rig.begin("a", "b")
    calls = {request.key: call for call, request in rig.child.asked}
    a, b = rig.calls["a"], rig.calls["b"]
    waited, advanced_at = b.begun_at is None, a.advanced_at
    monkeypatch.setattr(SystemClock, "monotonic", lambda clock: advanced_at + 5.0)
    rig.say(wire.Noted("half"), calls["b"])
    assert waited
    assert b.begun_at == b.advanced_at == advanced_at + 5.0, "and so it has begun"
    assert b.note == "half"
    rig.say(wire.SlotModels("people", []), calls["b"])
    assert (a.advanced_at, a.note, a.loading, b.loading) == (advanced_at, "", "", "people")
    await rig.slot.ended("died of SIGKILL")
    deaths = await asyncio.gather(*runs, return_exceptions=True)
    assert [death.detail for death in deaths if isinstance(death, SlotDied)] == ["", "its last note: half\n"]


async def test_a_large_answer_that_comes_in_pieces_is_progress_of_its_call(rig: StreamRig) -> None:
    await rig.begin("a", "b")
    (_, _), (call, _) = rig.child.asked
    a, b = rig.calls["a"], rig.calls["b"]
    frame = bytes(wire.frame(ran("x" * 1000), call))
    advanced_at = a.advanced_at
    rig.slot.data_received(frame[:100])
    assert b.begun_at is not None
    assert b.advanced_at > advanced_at == a.advanced_at
    rig.slot.data_received(frame[100:])
    assert list(rig.slot.calls) == [a]


async def test_the_oldest_call_begins_once_no_other_is_at_work(rig: StreamRig) -> None:
    await rig.begin("a", "b", "c")
    numbers = [call for call, _ in rig.child.asked]
    rig.say(ran("a"), numbers[0])
    assert rig.calls["b"].begun_at is not None
    assert rig.calls["c"].begun_at is None


class Written:
    """The connection of a child to its node: what it says there."""

    def __init__(self) -> None:
        self.said: list[tuple[int, msgspec.Struct]] = []

    def send(self, message: msgspec.Struct, call: int = 0) -> None:
        self.said.append((call, message))


class Talkative:
    """A worker whose handler says how far others are, too."""

    def __init__(self, host: ChildHost) -> None:
        self._host = host

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        self._host.report_models(stream, key, "people", [])
        self._host.progress(stream, "another", "not at work")
        self._host.progress(stream, key, "half")
        raise HandlerFailed("no licence")


def test_a_child_names_the_call_in_all_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.slots.child.PROGRESS_EVERY_S", 0.0)
    line = Written()
    host = ChildHost(cast("NodeConnection", line))
    host.answer(cast("Any", Talkative(host)), 7, wire.OpenStream("s", "k", None, 0))
    host.progress("s", "k", "left behind in a thread")
    assert line.said == [
        (7, wire.SlotModels("people", [])),
        (7, wire.Noted("half")),
        (7, wire.Opened("no licence")),
    ]


# --- tasks


class TaskRig:
    """A slot for tasks whose process is a script."""

    def __init__(self, stacks: int) -> None:
        self.listener = RecordingListener()
        server = cast("ForkServer", NoServer())
        self.slot = ForkserverTaskSlot(
            ProcessSetup("slot-1", SystemClock(), server, stacks, 0), self.listener
        )
        self.slot.connection_made(ScriptedChild())
        self.slot.forked()

    def say(self, message: msgspec.Struct, number: int) -> None:
        self.slot.data_received(bytes(wire.frame(message, number)))


async def test_an_attempt_ends_by_its_number_in_any_order(stacks: int) -> None:
    rig = TaskRig(stacks)
    for number, memory_mb in ((1, 100), (2, 200), (3, 0)):
        rig.slot.offer(number, Attempt("t", "echo", b"", memory_mb=memory_mb))
    rig.say(wire.Advanced(Progress(0.5)), 2)
    rig.say(wire.LogLine("info", "half", {}), 2)
    rig.say(wire.AttemptEnded(AttemptReport(b"2")), 2)
    rig.say(wire.AttemptEnded(AttemptReport(b"2, again")), 2)
    rig.say(wire.AttemptEnded(AttemptReport(b"of-no-call")), 99)
    assert rig.slot.memory_mb == 100, "that of the attempt at work"
    rig.say(wire.AttemptEnded(AttemptReport(b"1")), 1)
    assert rig.listener.order == [2, 1]
    assert {number: report.result for number, report in rig.listener.reports.items()} == {1: b"1", 2: b"2"}
    assert rig.listener.progress == [(2, Progress(0.5))]
    assert rig.listener.lines == [(2, "info", "half", {})]
    assert rig.slot.memory_mb == 0
    await rig.slot.ended("died of SIGKILL")


def test_what_an_ended_attempt_left_behind_keeps_no_other_alive() -> None:
    line = Written()
    host = TaskChildHost(cast("NodeConnection", line))
    host.current = 2
    for _ in range(1000):  # more than may be reported in a second
        host.progress(1, Progress(0.1))
    host.progress(2, Progress(0.9))
    host.log(1, "info", "left behind", {})
    assert line.said == [(2, wire.Advanced(Progress(0.9))), (1, wire.LogLine("info", "left behind", {}))]


def test_numbers_past_64_bits_lose_nothing_of_their_messages() -> None:
    work = [
        MessageWork(0, 2**70, b"{}", 3, wake="timer", traceparent="00-a-b-01"),
        MessageWork(1, 5, b"{}"),
    ]
    framed = wire.frame(wire.RunMessages("s", "k", work, 2, 1.0), 7)
    ((call, payload),) = wire.Splitter().feed(bytes(framed))
    decoded = msgspec.msgpack.decode(payload, type=wire.Request, strict=False)
    assert call == 7
    assert isinstance(decoded, wire.RunMessages)
    assert decoded.work == work
