"""Messages are in the archive of their stream before they are deleted, whatever dies or is away meanwhile."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.cluster.deliveries import Settlement
from holdfast.common.held import Held
from holdfast.common.message import CommitPlace, Place
from holdfast.common.retry import Backoff
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.streams import archiver
from holdfast.streams.archive import ArchivedMessage, ObjectName, read_line
from holdfast.streams.requests import RequestAnswer
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
AWAY_S = 200.0


class Sum(StreamHandler[dict[str, Any]]):
    """Keeps the sum of what it saw, and fails where told."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.sum = int(state or 0)

    def process(self, message: dict[str, Any], context: Context) -> Any:
        if message.get("do") == "raise":
            raise ValueError("told to fail")
        self.sum += message["n"]
        return self.sum

    def snapshot(self) -> bytes:
        return str(self.sum).encode()


def app_of(*others: str, **settings: Any) -> App:
    app = App("town")
    rules: dict[str, Any] = {"max_tries": 2, "backoff": Backoff(0.01, 0.02), "first_seq": 0}
    app.stream("s", seq="n", archive="memory:", **rules | settings)(Sum)
    for other in others:
        app.stream(other, seq="n", **rules)(Sum)
    return app


def number(n: int, key: str = "k", **more: Any) -> dict[str, Any]:
    return {"key": key, "n": n} | more


def archived(town: Town, key: str = "k") -> list[ArchivedMessage]:
    """What is in the archive of a key, in the order in which it was written."""
    names = sorted(name for name in town.archive.objects if name.startswith(f"s/{key}/"))
    return [read_line(line, name) for name in names for line in town.archive.objects[name].splitlines()]


def seqs(town: Town, kind: str = "done") -> list[int]:
    return [message.seq for message in archived(town) if message.kind == kind]


class Away:
    """An archive that takes nothing until it is told to."""

    def __init__(self, town: Town, node: TownNode) -> None:
        self._town = town
        self._node = node
        self.is_away = True
        self.tried = 0
        node.archive.instead["put"] = self._put

    async def _put(self, name: str, data: bytes) -> str:
        self.tried += 1
        if self.is_away:
            raise Unavailable("the archive is away")
        return await self._town.archive.put(name, data)


# --- what is written


async def test_messages_are_in_the_archive_before_they_are_deleted(town: Town) -> None:
    node = await town.start(app_of())
    deleted: list[int] = []

    async def delete(receipts: list[str]) -> None:
        deleted.append(len(seqs(town)))
        await town.queue().delete(receipts)

    node.queues["s"].instead["delete"] = delete
    await town.send(*(number(n) for n in range(20)))
    await town.until_over()
    assert deleted
    assert set(deleted) == {20}
    assert seqs(town) == list(range(20))
    message = archived(town)[7]
    assert json.loads(message.content) == {"key": "k", "n": 7}
    assert (message.key, message.place, message.epoch) == ("k", Place(0, 7), 1)
    assert message.received_at <= message.at


async def test_messages_that_are_committed_within_a_moment_share_an_object(town: Town) -> None:
    await town.start(app_of())
    for n in range(10):
        await town.send(number(n), number(n, "other"))
        await town.clock.sleep(0.1)
    await town.until_over()
    assert seqs(town) == list(range(10))
    assert len(town.archive.objects) == 2
    names = [ObjectName.of(f"memory:///{name}") for name in town.archive.objects]
    assert sorted(name.key for name in names if name is not None) == ["k", "other"]


async def test_a_write_of_unknown_outcome_is_repeated_under_the_same_name(town: Town) -> None:
    node = await town.start(app_of())
    tried: list[tuple[str, bytes]] = []

    async def put(name: str, data: bytes) -> str:
        tried.append((name, data))
        url = await town.archive.put(name, data)
        if len(tried) < 3:
            raise OutcomeUnknown("the answer was lost")
        return url

    node.archive.instead["put"] = put
    await town.send(number(0), number(1))
    await town.until_over()
    assert tried == [tried[0]] * 3
    assert seqs(town) == [0, 1]


async def test_a_message_that_failed_is_archived_with_the_reason_in_its_place(town: Town) -> None:
    await town.start(app_of())
    await town.send(number(0), number(1, do="raise"), number(2))
    await town.until_over()
    assert [(message.seq, message.kind) for message in archived(town)] == [
        (0, "done"),
        (1, "skip"),
        (2, "done"),
    ]
    assert "told to fail" in archived(town)[1].reason


async def test_late_messages_are_archived_as_such(town: Town) -> None:
    await town.start(app_of(seq_kind="increasing", first_seq="first"))
    await town.send(number(5))
    await town.until_over()
    await town.send(number(3))
    await town.until_over()
    assert [(message.seq, message.kind) for message in archived(town)] == [(5, "done"), (3, "late")]


async def test_a_stream_without_an_archive_writes_none(town: Town) -> None:
    node = await town.start(app_of("plain"))
    await town.send(*(number(n) for n in range(10)), stream="plain")
    await town.until_over("plain")
    assert node.archive.calls == []


# --- what dies, and what is away


async def test_what_was_committed_by_a_node_that_died_before_it_wrote_is_archived(town: Town) -> None:
    first = await town.start(app_of(), "a")
    Away(town, first)
    await town.send(*(number(n) for n in range(5)))
    await town.until(lambda: town.results("k") == [0, 1, 3, 6, 10])
    assert archived(town) == []
    await town.crash(first)
    await town.start(app_of(), "b")
    await town.until_over()
    assert sorted(seqs(town, "again")) == [0, 1, 2, 3, 4]
    assert town.results("k") == [0, 1, 3, 6, 10]
    await town.send(number(5))
    await town.until_over()
    assert seqs(town) == [5]


async def test_while_the_archive_is_away_deliveries_are_kept_and_streams_go_on(town: Town) -> None:
    node = await town.start(app_of("plain"))
    away = Away(town, node)
    await town.send(*(number(n) for n in range(5)))
    await town.send(*(number(n) for n in range(5)), stream="plain")
    await town.until_over("plain")
    await town.until(lambda: len(town.results("k")) == 5)
    await town.clock.sleep(AWAY_S)
    await town.send(number(5))
    await town.until(lambda: len(town.results("k")) == 6)
    assert len(town.queue().messages) == 6
    assert len(town.events("received")) == 6, "no delivery has lapsed"
    assert away.tried < 2 * AWAY_S, "it is not asked in a hot loop"
    [told, *more] = [f for level, event, f in node.log.entries if event == "cannot archive messages"]
    assert told["stream"] == "s"
    assert len(more) <= AWAY_S / archiver.LOG_EVERY_S
    assert ("archive_waiting", 6) in [(name, value) for name, _, value in node.work.gauges({})]
    away.is_away = False
    await town.until_over()
    assert seqs(town) == [0, 1, 2, 3, 4, 5]


async def test_a_client_is_answered_once_its_message_is_in_the_archive(town: Town) -> None:
    node = await town.start(app_of())
    away = Away(town, node)

    async def ask() -> RequestAnswer:
        body = json.dumps(number(0)).encode()
        return await node.work.requests.process("s", "s/k", Place(0, 0), body, {}, 30.0)

    asked = asyncio.ensure_future(ask())
    await town.until(lambda: away.tried > 3)
    assert town.results("k") == [0]
    assert not asked.done()
    away.is_away = False
    assert (await asked).result == b"0"
    [message] = archived(town)
    assert message.received_at == 0.0


async def test_a_client_does_not_wait_for_others_to_share_its_object(town: Town) -> None:
    node = await town.start(app_of())
    began_at = town.clock.monotonic()
    body = json.dumps(number(0)).encode()
    await node.work.requests.process("s", "s/k", Place(0, 0), body, {}, 30.0)
    assert town.clock.monotonic() - began_at < archiver.LINGER_S / 2


@pytest.mark.slow
async def test_an_archive_that_is_away_for_long_holds_its_stream_back_and_skips_no_gap(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, max_held=20)
    node = await town.start(app_of("plain", gap_timeout_s=40.0), limits=limits)
    away = Away(town, node)
    await town.send(number(0), number(2))
    await town.until(lambda: town.results("k") == [0])
    await town.send(*(number(n, "other") for n in range(30)))
    await town.until(lambda: node.work.archivers["s"].is_full)
    await town.clock.sleep(AWAY_S)
    received, handled = len(town.events("received")), len(town.results("other"))
    await town.send(number(1))
    await town.clock.sleep(AWAY_S)
    assert town.results("k") == [0]
    assert len(town.results("other")) == handled < 30
    assert len(town.events("received")) == received, "nothing is received that could only wait"
    await town.send(*(number(n) for n in range(10)), stream="plain")
    await town.until_over("plain")
    away.is_away = False
    await town.until_over()
    assert seqs(town) == [0, 1, 2]
    assert town.letters() == []


async def test_a_stream_that_is_held_back_says_so(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, max_held=8)
    node = await town.start(app_of(), limits=limits)
    away = Away(town, node)
    await town.send(*(number(n) for n in range(4)))
    await town.until(lambda: node.work.archivers["s"].is_full)
    body = json.dumps(number(4)).encode()
    asked = asyncio.ensure_future(node.work.requests.process("s", "s/k", Place(0, 4), body, {}, 60.0))
    entry = node.work.owners.get("s/k")
    assert entry is not None
    await town.until(lambda: entry.owner.wait_reason() is not None)
    standing = entry.owner.wait_reason()
    assert standing is not None
    assert standing.kind == "archive"
    away.is_away = False
    assert (await asked).result == b"10"


async def test_a_node_that_stops_first_writes_what_it_has_committed(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*(number(n) for n in range(5)))
    await town.until(lambda: len(town.results("k")) == 5)
    await node.node.stop()
    assert seqs(town) == [0, 1, 2, 3, 4]
    assert town.queue().messages == {}


async def test_a_message_that_comes_again_is_archived_apart(town: Town) -> None:
    await town.start(app_of())
    await town.send(number(0))
    await town.until_over()
    await town.send(number(0), number(1))
    await town.until_over()
    assert (seqs(town), seqs(town, "again")) == ([0, 1], [0])


async def test_what_came_again_shares_no_object_with_what_is_new(town: Town) -> None:
    node = await town.start(app_of())
    new, again = settlement(1), settlement(2)
    again.messages[0].covered_as = ""
    await node.work.archivers["s"].write([new, again])
    names = (ObjectName.of(name) for name in town.archive.objects)
    assert sorted((name.number, name.again) for name in names if name) == [(1, False), (2, True)]


async def test_a_full_archive_is_full_until_much_of_it_is_written(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, max_held=20)
    node = await town.start(app_of(), limits=limits)
    changes: list[tuple[bool, int]] = []
    made = node.work.archivers["s"]
    made.on_change = lambda: changes.append((made.is_full, made.waiting))
    many = [settlement(n) for n in range(14)]
    for item in many[:12]:
        made.expect(item)
    await made.write(many[:4])
    made.expect(many[12])  # what was under way is committed meanwhile
    await made.write(many[4:7])
    made.expect(many[13])
    await made.write(many[7:])
    assert changes == [(True, 10), (False, 0)]


def settlement(n: int) -> Settlement:
    held = Held(Place(0, n), b"{}", {}, [], covered_as="done")
    return Settlement("s/k", (), (held,), lambda: None, CommitPlace(1, n, 0.0))
