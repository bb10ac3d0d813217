"""One file delivered: whole, once, and found again, wherever a worker dies."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest

from holdfast.errors import (
    AlreadyThere,
    ConfigError,
    Damaged,
    Fenced,
    HoldfastError,
    NoRoom,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.reports import deliver as delivering
from holdfast.reports import deliver_pipe, deliver_plan
from holdfast.reports.deliver import Delivered, deliver_file
from holdfast.reports.deliver_plan import Companion, DeliveryStage, FileToDeliver, Record
from holdfast.reports.ports.sink import Data, Sink
from holdfast.reports.sinks.memory import MemorySink
from holdfast.system.clock import SystemClock

KIB = 1 << 10
MARK = 64 * KIB
CHUNK = 32 * KIB
PARCEL = FileToDeliver(name="out/daily.csv", content="v1", companions=(Companion.SHA256, Companion.OK))
BODY = b"".join(hashlib.sha256(bytes([n])).digest() * KIB for n in range(5))
SUM = hashlib.sha256(BODY).hexdigest()


LATE = 9
"""The call that writes after the second mark: before it an opening, four writes, three notes."""


class QuickClock(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks so close, and pieces so small, that a small file has several."""
    monkeypatch.setattr(deliver_plan, "MARK_BYTES", MARK)
    monkeypatch.setattr(delivering, "NOTE_S", 0.0)
    monkeypatch.setattr(deliver_pipe, "PIECE_BYTES", CHUNK)


def chunks(body: bytes = BODY, size: int = CHUNK) -> Callable[[], Iterator[Data]]:
    return lambda: (body[at : at + size] for at in range(0, len(body), size))


class Dead(BaseException):
    """The worker's process is gone: its calls have no effect."""


class Desk:
    """A destination, what is noted, and faults: calls of the port and notes are counted, and the ``at``-th
    fails with ``error``, before its effect or after it. Once Dead, all do."""

    def __init__(self, sink: Any = None) -> None:
        self.files: dict[str, bytearray] = {}
        self.sink = sink or MemorySink(self.files)
        self.record: Record | None = None
        self.stages: list[DeliveryStage] = []
        self.calls = 0
        self.at = -1
        self.after = False
        self.error: BaseException = Dead()
        self.dead = False
        self.shown: set[bytes] = set()

    async def strike(self, call: Callable[[], Any]) -> Any:
        """Perform a call, or fail."""
        if self.dead:
            raise self.error
        self.calls += 1
        struck = self.calls == self.at
        if struck and not self.after:
            self.dead = isinstance(self.error, Dead)
            raise self.error
        result = await call()
        self.shown.add(bytes(self.files.get(PARCEL.name, b"none")))
        if struck:
            self.dead = isinstance(self.error, Dead)
            raise self.error
        return result

    async def note(self, record: Record) -> None:
        async def keep() -> None:
            self.record = record
            self.stages.append(record.stage)

        await self.strike(keep)

    def connect(self) -> AbstractAsyncContextManager[Sink]:
        @asynccontextmanager
        async def connected() -> AsyncIterator[Sink]:
            yield Struck(self, self.sink)

        return connected()

    async def deliver(
        self, parcel: FileToDeliver = PARCEL, made: Callable[[], Iterator[Data]] | None = None, **options: Any
    ) -> Delivered:
        return await deliver_file(
            parcel,
            made or chunks(),
            self.connect,
            QuickClock(),
            record=self.record,
            note=self.note,
            **options,
        )

    def heal(self) -> None:
        self.calls, self.at, self.dead = 0, -1, False


class Struck:
    """A sink or an upload whose calls go by the desk."""

    def __init__(self, desk: Desk, inner: Any) -> None:
        self._desk = desk
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name == "read":
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = await self._desk.strike(lambda: found(*args, **kwargs))
            return Struck(self._desk, result) if hasattr(result, "commit") else result

        return call


@pytest.fixture
def desk() -> Desk:
    return Desk()


def whole(desk: Desk) -> None:
    """The file and its companions stand, and nothing else; no reader saw a part."""
    assert {name: bytes(body) for name, body in desk.files.items()} == {
        "out/daily.csv": BODY,
        "out/daily.csv.sha256": f"{SUM}  daily.csv\n".encode(),
        "out/daily.csv.ok": b"",
    }
    assert desk.shown <= {b"none", b"old", BODY}
    assert desk.record is not None
    assert (desk.record.stage, desk.record.size, desk.record.sha256) == (DeliveryStage.DONE, len(BODY), SUM)


async def test_a_file_and_what_belongs_beside_it(desk: Desk) -> None:
    reported: list[int] = []
    done = await desk.deliver(progress=reported.append)
    whole(desk)
    assert (done.duplicated, done.sent, done.tries) == (False, len(BODY), 1)
    assert reported == sorted(reported)
    assert reported[-1] == len(BODY)
    assert desk.stages[0] is DeliveryStage.SENDING
    assert desk.stages[-3:] == [DeliveryStage.PLACING, DeliveryStage.PLACED, DeliveryStage.DONE]


async def test_the_same_again_is_a_duplicate_and_sends_nothing(desk: Desk) -> None:
    await desk.deliver()
    done = await desk.deliver()
    assert (done.duplicated, done.sent) == (True, 0)
    whole(desk)


async def test_an_empty_file_is_delivered(desk: Desk) -> None:
    await desk.deliver(made=lambda: iter(()))
    assert desk.files["out/daily.csv"] == b""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_worker_may_die_at_any_step(after: bool) -> None:
    """Each call, of the service or of the record, is the last that one worker makes; the next finishes."""
    probe = Desk()
    await probe.deliver()
    gone_on = []
    for at in range(1, probe.calls + 1):
        desk = Desk()
        desk.files["out/daily.csv"] = bytearray(b"old")
        desk.at, desk.after = at, after
        with pytest.raises(Dead):
            await desk.deliver()
        desk.heal()
        done = await desk.deliver()
        whole(desk)
        assert done.sent + done.gone_on in (0, len(BODY))
        gone_on.append(done.gone_on)
    assert {0, MARK, 2 * MARK} <= set(gone_on)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_connection_may_break_at_any_step(after: bool) -> None:
    """One worker sees it through, however its connection breaks."""
    probe = Desk()
    await probe.deliver()
    for at in range(1, probe.calls + 1):
        for error in (Unavailable("cut"), OutcomeUnknown("cut")):
            desk = Desk()
            desk.at, desk.after, desk.error = at, after, error
            await desk.deliver()
            whole(desk)


@pytest.mark.nightly
async def test_a_delivery_survives_two_crashes_at_any_step() -> None:
    for first in range(2, 18):
        for second in range(1, 8):
            desk = Desk()
            for at in (first, second):
                desk.heal()
                desk.at = at
                with contextlib.suppress(Dead):
                    await desk.deliver()
            desk.heal()
            await desk.deliver()
            whole(desk)


async def test_what_was_half_sent_is_gone_on_with(desk: Desk) -> None:
    desk.at, desk.error = LATE, Unavailable("cut")
    reported: list[int] = []
    done = await desk.deliver(progress=reported.append)
    assert reported == [CHUNK * n for n in (*range(1, 5), *range(1, 6))]  # it goes on while nothing is sent
    assert done.gone_on == 2 * MARK
    assert done.sent == len(BODY)
    assert done.tries == 2
    whole(desk)


@pytest.mark.parametrize(
    "first, then", [(BODY.swapcase(), BODY), (BODY, BODY[:1000])], ids=["other bytes", "fewer bytes"]
)
async def test_a_file_of_other_bytes_is_sent_again(desk: Desk, first: bytes, then: bytes) -> None:
    desk.at = LATE
    with pytest.raises(Dead):
        await desk.deliver(made=chunks(first))
    desk.heal()
    assert (await desk.deliver(made=chunks(then))).tries == 2
    assert desk.files["out/daily.csv"] == then


async def test_new_content_is_sent_over_the_old_and_what_was_left_is_removed(desk: Desk) -> None:
    desk.at = LATE
    with pytest.raises(Dead):
        await desk.deliver(FileToDeliver(name=PARCEL.name, content="v0"), chunks(b"other" * 100_000))
    assert any(name.endswith(".part") for name in desk.files)
    desk.heal()
    done = await desk.deliver()
    assert done.gone_on == 0
    whole(desk)


async def test_files_taken_away_are_left_so_or_sent_again(desk: Desk) -> None:
    await desk.deliver()
    desk.files.clear()
    assert (await desk.deliver()).duplicated
    assert desk.files == {}
    again = FileToDeliver(name=PARCEL.name, content="v1", companions=PARCEL.companions, if_gone="send")
    assert not (await desk.deliver(again)).duplicated
    whole(desk)


async def test_in_place_a_part_is_seen_but_never_left(desk: Desk) -> None:
    parcel = FileToDeliver(name=PARCEL.name, content="v1", in_place=True, companions=PARCEL.companions)
    desk.at, desk.error = LATE - 1, Unavailable("cut")
    left: list[bytes] = []

    def made() -> Iterator[Data]:
        left.append(bytes(desk.files.get(PARCEL.name, b"")))
        return chunks()()

    done = await desk.deliver(parcel, made)
    assert (done.tries, done.gone_on) == (2, 0)
    assert left == [b"", b""]
    assert len(desk.shown - {b"none", BODY}) > 1
    assert desk.files["out/daily.csv"] == BODY
    assert (await desk.deliver(parcel, made)).duplicated


async def test_in_place_companions_need_no_renaming_either() -> None:
    class NeverRenames(MemorySink):
        async def open(self, name: str, temporary: str, *, replace: bool = True) -> Any:
            if temporary != name:
                raise ConfigError("this server can't rename")
            return await super().open(name, temporary, replace=replace)

    desk = Desk()
    desk.sink = NeverRenames(desk.files)
    await desk.deliver(msgspec.structs.replace(PARCEL, in_place=True))
    assert sorted(desk.files) == [
        PARCEL.name,
        *(f"{PARCEL.name}{kind.value}" for kind in (Companion.OK, Companion.SHA256)),
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("companions", [(), PARCEL.companions], ids=["alone", "with companions"])
async def test_in_place_a_worker_may_die_at_any_step(companions: tuple[Companion, ...], after: bool) -> None:
    parcel = FileToDeliver(name=PARCEL.name, content="v1", in_place=True, companions=companions)
    probe = Desk()
    await probe.deliver(parcel)
    for at in range(1, probe.calls + 1):
        desk = Desk()
        desk.at, desk.after = at, after
        with pytest.raises(Dead):
            await desk.deliver(parcel)
        desk.heal()
        await desk.deliver(parcel)
        assert desk.files == probe.files


async def test_what_is_not_to_be_replaced_stays(desk: Desk) -> None:
    desk.files["out/daily.csv"] = bytearray(b"old")
    with pytest.raises(AlreadyThere):
        await desk.deliver(FileToDeliver(name=PARCEL.name, content="v1", replace=False))
    assert desk.files == {"out/daily.csv": b"old"}


IN_PLACE = FileToDeliver(name=PARCEL.name, content="v1", in_place=True, replace=False)


@pytest.mark.parametrize("leave", [True, False], ids=["another may come", "none comes"])
async def test_in_place_a_file_that_is_not_to_be_replaced_outlasts_every_attempt(
    desk: Desk, leave: bool
) -> None:
    """It was removed, as if it were a part of the file that may not take its place."""
    desk.files["out/daily.csv"] = bytearray(b"the customer's")
    for _ in range(2):
        with pytest.raises(AlreadyThere):
            await desk.deliver(IN_PLACE, leave=leave)
        assert desk.files == {"out/daily.csv": b"the customer's"}


async def test_in_place_an_opening_that_failed_leaves_the_file_that_is_not_to_be_replaced() -> None:
    class Away(MemorySink):
        away = 1

        async def open(self, *args: Any, **kwargs: Any) -> Any:
            if self.away:
                self.away -= 1
                raise Unavailable("it looks whether a file is there, and hears nothing")
            return await super().open(*args, **kwargs)

    desk = Desk()
    desk.files["out/daily.csv"] = bytearray(b"the customer's")
    desk.sink = Away(desk.files)
    with pytest.raises(AlreadyThere):
        await desk.deliver(IN_PLACE)
    assert desk.files == {"out/daily.csv": b"the customer's"}


async def test_in_place_what_a_dead_worker_left_is_no_file_that_is_not_to_be_replaced(desk: Desk) -> None:
    desk.at = LATE
    with pytest.raises(Dead):
        await desk.deliver(IN_PLACE)
    assert "out/daily.csv" in desk.files
    desk.heal()
    await desk.deliver(IN_PLACE)
    assert desk.files == {"out/daily.csv": BODY}


async def test_in_place_a_record_that_tells_of_no_opening_removes_nothing(desk: Desk) -> None:
    """Version 0.2.0 kept the token before it looked whether a file was there."""
    desk.files["out/daily.csv"] = bytearray(b"the customer's")
    desk.record = Record(PARCEL.name, "v1", tokens=(PARCEL.name,))
    with pytest.raises(AlreadyThere):
        await desk.deliver(IN_PLACE)
    assert desk.files == {"out/daily.csv": b"the customer's"}


async def test_in_place_an_opening_that_cannot_be_noted_leaves_nothing(desk: Desk) -> None:
    async def note(record: Record) -> None:
        if record.opened:
            raise ConfigError("the record can't be kept")

    with pytest.raises(ConfigError):
        await deliver_file(IN_PLACE, chunks(), desk.connect, QuickClock(), note=note)
    assert desk.files == {}


async def test_in_place_a_file_that_came_after_ours_was_removed_stays(desk: Desk) -> None:
    def fail() -> Iterator[bytes]:
        yield BODY
        raise ValueError("damaged source")

    with pytest.raises(ValueError, match="damaged source"):
        await desk.deliver(IN_PLACE, fail)
    assert desk.files == {}
    desk.files["out/daily.csv"] = bytearray(b"the customer's")
    with pytest.raises(AlreadyThere):
        await desk.deliver(IN_PLACE)
    assert desk.files == {"out/daily.csv": b"the customer's"}


async def test_an_attempt_that_lapsed_removes_nothing_though_nobody_goes_on_with_it(desk: Desk) -> None:
    lapsed = False

    async def note(record: Record) -> None:
        nonlocal lapsed
        lapsed = lapsed or bool(record.marks)
        if lapsed:
            raise Fenced("another attempt goes on with it", 2)

    parcel = msgspec.structs.replace(IN_PLACE, replace=True)
    with pytest.raises(Fenced):
        await deliver_file(parcel, chunks(), desk.connect, QuickClock(), note=note, leave=False)
    assert "out/daily.csv" in desk.files


async def test_a_cancelled_delivery_waits_until_its_note_is_kept(desk: Desk) -> None:
    """A note that breaks off may be kept or not: the next would seem to be another attempt's, and what was
    sent would stay."""
    begun, answered = asyncio.Event(), asyncio.Event()
    kept = known = 0

    async def note(record: Record) -> None:
        nonlocal kept, known
        if kept != known:
            raise Fenced("another attempt kept it", 2)
        kept += 1
        if record.marks:
            begun.set()
            await answered.wait()
        known = kept

    task = asyncio.create_task(deliver_file(PARCEL, chunks(), desk.connect, QuickClock(), note=note))
    await begun.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(answered.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.files == {}


async def test_what_no_other_try_helps_is_raised_at_once_and_removed(desk: Desk) -> None:
    desk.at, desk.error = LATE, ConfigError("read-only")
    with pytest.raises(ConfigError):
        await desk.deliver()
    assert desk.files == {}


async def test_on_a_full_disk_nothing_half_sent_takes_room(desk: Desk) -> None:
    desk.at, desk.error = LATE, NoRoom("No space left on device")
    with pytest.raises(NoRoom):
        await desk.deliver(tries=1)
    assert desk.files == {}
    done = await desk.deliver()
    assert done.gone_on == 0
    assert desk.files["out/daily.csv"] == BODY


async def test_nothing_half_sent_stays_where_nobody_goes_on_with_it(desk: Desk) -> None:
    desk.at, desk.error = LATE, Unavailable("cut")
    with pytest.raises(Unavailable):
        await desk.deliver(tries=1)
    assert len(desk.files) == 1, "it waits for another attempt"
    desk.files.clear()
    desk.record, desk.at = None, desk.calls + LATE
    with pytest.raises(Unavailable):
        await desk.deliver(tries=1, leave=False)
    assert desk.files == {}


async def test_tries_that_get_no_further_are_counted(desk: Desk) -> None:
    class Shut(MemorySink):
        opens = 0

        async def open(self, *args: Any, **kwargs: Any) -> Any:
            self.opens += 1
            raise Unavailable("shut")

    desk.sink = Shut(desk.files)
    with pytest.raises(Unavailable):
        await desk.deliver(tries=3)
    assert desk.sink.opens == 3


async def test_a_fault_of_the_maker_removes_what_was_sent(desk: Desk) -> None:
    def fail() -> Iterator[bytes]:
        yield BODY
        raise ValueError("damaged source")

    with pytest.raises(ValueError, match="damaged source"):
        await desk.deliver(made=fail)
    assert desk.files == {}


async def test_a_cancelled_delivery_leaves_no_file(desk: Desk) -> None:
    sent = asyncio.Event()

    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(100_000)

    task = asyncio.create_task(desk.deliver(made=endless, progress=lambda _: sent.set()))
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.files == {}


async def test_two_workers_at_once_leave_one_whole_file() -> None:
    """With one record between them, as when a worker that was taken for dead lives."""
    for pause in range(20):
        desk = Desk()

        first = asyncio.create_task(desk.deliver())
        while desk.calls < pause and not first.done():  # noqa: ASYNC110 (from call to call)
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(first, desk.deliver(), return_exceptions=True)
        assert all(isinstance(outcome, Delivered | HoldfastError) for outcome in outcomes), outcomes
        assert desk.files["out/daily.csv"] == BODY
        assert desk.shown <= {b"none", BODY}


async def test_a_delivery_keeps_to_its_rate(desk: Desk) -> None:
    slept: list[float] = []

    class Clock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    await deliver_file(PARCEL, chunks(), desk.connect, Clock(), pace=lambda size: size / KIB)
    assert sum(slept) == pytest.approx(len(BODY) / KIB)


async def test_a_service_that_holds_other_bytes_is_not_believed(desk: Desk) -> None:
    class Lossy(MemorySink):
        flips = 1

        async def open(self, *args: Any, **kwargs: Any) -> Any:
            upload = await super().open(*args, **kwargs)
            commit = upload.commit

            async def damaged(*args: Any, **kwargs: Any) -> Any:
                if self.flips:
                    self.flips -= 1
                    self.files[upload.token][0] ^= 1
                return await commit(*args, **kwargs)

            upload.commit = damaged  # type: ignore[method-assign]
            return upload

    desk.sink = Lossy(desk.files)
    done = await desk.deliver()
    assert (done.tries, done.gone_on) == (2, 0)
    whole(desk)
    desk.sink.flips = 100
    desk.files.clear()
    desk.record = None
    with pytest.raises(Damaged):
        await desk.deliver(tries=2)
    assert desk.files == {}
