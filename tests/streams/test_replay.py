"""An archive is read in the order of its key, each message once, and a handler runs over it by its clock."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.message import CommitPlace
from holdfast.errors import InvalidMessage, ModelFailed
from holdfast.services.memory.objects import MemoryObjects
from holdfast.slots.thread import SlotThread
from holdfast.streams.archive import ArchivedAs, ArchivedMessage, lines_of, object_name
from holdfast.streams.archive_reader import ArchiveReader, Hours
from holdfast.streams.offline import OfflineStream
from holdfast.streams.replay import Replay, ReplayedMessage, compare

HOUR_S = 3600.0
T0 = 1_800_000_000.0


def message(n: int, number: int = 1, kind: ArchivedAs = "done", **more: Any) -> ArchivedMessage:
    given: dict[str, Any] = {"epoch": 1, "at": T0 + n, "run": 0, "seq": n, "kind": kind} | more
    return ArchivedMessage(key="k", number=number, body=msgspec.Raw(b'{"n":%d}' % n), **given)


class Archive:
    """An archive in memory, object by object."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.broken: list[str] = []
        self._number = 0

    async def put(self, *messages: ArchivedMessage) -> str:
        """Write messages as one object, in the order of the calls."""
        first = messages[0]
        commit = CommitPlace(first.epoch, first.number, first.at)
        self._number += 1
        name = object_name("s", first.key, commit, self._number, again=first.kind == "again")
        return await self.objects.put(name, lines_of(messages))

    def reader(self, *, ordered: bool = True, since: str = "", until: str = "") -> ArchiveReader:
        def on_broken(error: InvalidMessage) -> None:
            self.broken.append(str(error))

        return ArchiveReader(self.objects, "s", Hours(since, until), ordered=ordered, on_broken=on_broken)

    async def read(self, **settings: Any) -> list[ArchivedMessage]:
        reader = self.reader(**settings)
        urls = [url for some in (await reader.objects("k")).values() for url in some]
        return [each async for each in reader.messages(urls)]

    async def seqs(self, **settings: Any) -> list[int | str]:
        return [each.id or each.seq for each in await self.read(**settings)]


# --- what is read, in which order


async def test_objects_are_read_in_the_order_of_their_commits_whatever_the_hour_says() -> None:
    archive = Archive()
    await archive.put(message(0), message(1))
    await archive.put(message(2, at=T0 - HOUR_S))  # the clock was set back
    await archive.put(message(4, epoch=3, at=T0 - 2 * HOUR_S))
    await archive.put(message(3, epoch=2))
    assert await archive.seqs() == [0, 1, 2, 3, 4]


async def test_what_only_came_again_is_read_in_its_place() -> None:
    archive = Archive()
    await archive.put(message(0), message(1))
    await archive.put(message(5, epoch=2))
    await archive.put(message(3, kind="again", epoch=2), message(2, kind="again", epoch=2))
    await archive.put(message(7, kind="again", epoch=2), message(1, kind="again", epoch=2))
    assert await archive.seqs() == [0, 1, 2, 3, 5, 7]


async def test_what_came_again_without_a_seq_is_read_where_it_came() -> None:
    archive = Archive()
    await archive.put(message(0, id="a"), message(0, id="b"))
    await archive.put(message(0, kind="again", id="c", epoch=2), message(0, kind="again", id="a", epoch=2))
    await archive.put(message(0, id="d", epoch=2))
    assert await archive.seqs(ordered=False) == ["a", "b", "c", "d"]


async def test_a_message_archived_twice_is_read_once() -> None:
    archive = Archive()
    await archive.put(message(0), message(1))
    await archive.put(message(1, epoch=2), message(2, epoch=2), message(0, epoch=2, run=1))
    reader = archive.reader()
    [urls] = (await reader.objects("k")).values()
    found = [(each.run, each.seq) async for each in reader.messages(urls)]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert reader.left_out == {"repeated": 1}


async def test_what_was_set_aside_is_left_out_and_what_failed_is_not() -> None:
    archive = Archive()
    await archive.put(message(0), message(1, kind="skip"), message(9, kind="far"), message(2, kind="parked"))
    await archive.put(message(0, kind="late"), message(2))
    assert await archive.seqs() == [0, 1, 2]


async def test_hours_and_days_limit_what_is_read() -> None:
    archive = Archive()
    for n in range(50):
        await archive.put(message(n, at=T0 + n * HOUR_S))  # the first is at 2027-01-15T08
    assert await archive.seqs(since="2027-01-15T10", until="2027-01-15T12") == [2, 3, 4]
    assert await archive.seqs(until="2027-01-15T09") == [0, 1]
    assert await archive.seqs(since="2027-01-17") == [40 + n for n in range(10)]
    assert await archive.seqs(since="2027-01-16", until="2027-01-16") == [16 + n for n in range(24)]
    assert await archive.seqs(since="2020-01-01", until="2030-01-01") == list(range(50))


async def test_objects_that_are_gone_or_broken_are_told_and_others_are_none_of_its_own() -> None:
    archive = Archive()
    await archive.put(message(0))
    await archive.put(message(1))
    await archive.objects.put("s/k/2027-01-15T08/readme.txt", b"hello")
    reader = archive.reader()
    [urls] = (await reader.objects("k")).values()
    assert len(urls) == 2
    first, second = sorted(archive.objects.objects, key=lambda name: name.endswith("txt"))[:2]
    del archive.objects.objects[first]
    archive.objects.objects[second] += b"nonsense\n"
    assert [each.seq async for each in reader.messages(urls)] == [1]
    assert "is no longer there" in archive.broken[0]
    assert "line 2 can't be read" in archive.broken[1]


async def test_all_keys_of_a_stream_are_found() -> None:
    archive = Archive()
    for key in ("cam 2", "cam/1", "x" * 400):
        await archive.put(msgspec.structs.replace(message(0), key=key))
    found = await archive.reader().objects(None)
    assert list(found)[:2] == ["cam%202", "cam%2F1"]
    assert len(found) == 3
    assert await archive.reader().objects("x" * 400) == dict(list(found.items())[2:])


# --- what runs over it


class Watch(StreamHandler[dict[str, Any]]):
    """Notes when it was called, and wakes ten seconds after each message."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.count = int(state or 0)

    def process(self, message: dict[str, Any], context: Context) -> Any:
        if message["n"] == 66:
            raise ValueError("told to fail")
        self.count += 1
        context.wake("silent", after_s=10)
        return self.count

    def wake(self, name: str, body: Any, context: Context) -> Any:
        context.send("s", {}, key="alert")
        if self.count == 3:
            raise ValueError("told to fail as a timer")
        return f"{name} {self.count}"

    def snapshot(self) -> bytes:
        return b"%d" % self.count


async def run(*messages: ArchivedMessage, handler: Any = Watch) -> tuple[Replay, Sequence[ReplayedMessage]]:
    app = App("t")
    app.stream("s")(handler)

    async def given() -> AsyncIterator[ArchivedMessage]:
        for each in messages:
            yield each

    offline = OfflineStream(app.streams["s"], None, models={}, targets=app.targets)
    replay = Replay(offline, SlotThread("test").wait)
    found = [each async for each in replay.run(given())]
    await replay.stop()
    return replay, found


async def test_timers_fire_between_messages_by_the_archived_time() -> None:
    replay, found = await run(*(message(n) for n in (0, 5, 15, 16)))
    assert [(each.timer, each.at - T0, each.handled.result) for each in found] == [
        ("", 0, b"1"),
        ("", 5, b"2"),
        ("silent", 15, b'"silent 2"'),
        ("", 15, b"3"),
        ("", 16, b"4"),
    ]
    assert +replay.counts == {"messages": 4, "timers": 1, "effects": 1, "timers left": 1}


async def test_the_time_of_replayed_messages_does_not_go_back() -> None:
    _, found = await run(message(5), message(6, at=T0), message(7))
    assert [each.at - T0 for each in found] == [5, 5, 7]


async def test_a_failure_counts_for_nothing_and_the_next_message_goes_on() -> None:
    replay, found = await run(message(0), message(66, at=T0 + 1), message(1, at=T0 + 2))
    assert [each.handled.result for each in found] == [b"1", None, b"2"]
    assert (found[1].error, found[1].fails_anew) == ("ValueError: told to fail", True)
    assert replay.counts["failed"] == 1
    replay, found = await run(message(66, kind="skip", reason="it failed"))
    assert not found[0].fails_anew
    assert replay.counts["failed in both"] == 1


async def test_a_timer_that_fails_is_passed_over() -> None:
    _, found = await run(*(message(n) for n in (0, 1, 2, 60)))
    assert [(each.timer, bool(each.error)) for each in found][3:] == [("silent", True), ("", False)]


async def test_keys_begin_without_state_and_their_own_time() -> None:
    app = App("t")
    app.stream("s")(Watch)
    offline = OfflineStream(app.streams["s"], None, models={}, targets=app.targets)
    replay = Replay(offline, SlotThread("test").wait)

    async def given(key: str, at: float) -> AsyncIterator[ArchivedMessage]:
        yield msgspec.structs.replace(message(0), key=key, at=at)

    first = [each async for each in replay.run(given("a", T0 + 1e6))]
    second = [each async for each in replay.run(given("b", T0))]
    assert [(each.key, each.at, each.handled.result) for each in (*first, *second)] == [
        ("a", T0 + 1e6, b"1"),
        ("b", T0, b"1"),
    ]


async def test_a_model_that_does_not_load_ends_the_replay() -> None:
    class NeedsModel(Watch):
        def process(self, message: dict[str, Any], context: Context) -> Any:
            return context.model(no_weights)

    def no_weights() -> Any:
        raise FileNotFoundError("weights.onnx")

    with pytest.raises(ModelFailed, match=r"weights\.onnx"):
        await run(message(0), handler=NeedsModel)


@pytest.mark.parametrize(
    "result, live, compared",
    [
        (b'{"a":1,"b":2}', b'{"b": 2, "a": 1}', "same"),
        (b"\xff", b"\xff", "same"),
        (b"\xff", b"\xfe", "different"),
        (b"1", b"1.0", "different"),
        (b"1", b"true", "different"),
        (None, b"null", "different"),
        (b"1", None, "missing"),
        (None, None, "none"),
    ],
)
def test_results_are_compared_as_json(result: bytes | None, live: bytes | None, compared: str) -> None:
    assert compare(result, live) == compared
