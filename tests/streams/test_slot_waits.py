"""A message that waits for a busy slot, a node or an archive says so, and the one that runs says where."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.common.message import Place
from holdfast.common.protocol import Busiest, Done, Explain, Waiting
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.operate.survey import NodeReport
from holdfast.rules.streams.activity import StreamActivity
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.slots import SlotWork
from holdfast.streams.waiting_streams import LOG_AFTER_S, StreamWait
from tests.streams.test_archiver import app_of as archiving
from tests.streams.test_owners import app_of, numbers
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
ONE_SLOT = msgspec.structs.replace(LIMITS, slots=1)
WORK_S = 40.0


class Explained(msgspec.Struct):
    """What a node tells of one of its streams."""

    waits: StreamWait | None
    runs: SlotWork | None
    busy: float


async def explained(node: TownNode, key: str) -> Explained:
    said = await node.peer.call(node.peer.address, Explain(node.id, "s", key), 1.0)
    assert isinstance(said, Done)
    return msgspec.json.decode(said.text, type=Explained)


async def reported(node: TownNode) -> NodeReport:
    said = await node.peer.call(node.peer.address, Waiting(node.id, 100), 1.0)
    assert isinstance(said, Done)
    return msgspec.json.decode(said.text, type=NodeReport)


async def one_that_works(town: Town, work_s: float = WORK_S) -> TownNode:
    """A node whose only slot is busy with s/a, for so long with each message of it."""

    async def work(slot: MemorySlot) -> None:
        await town.clock.sleep(work_s)

    node = await town.start(app_of(gap_timeout_s=60.0, timeout_s=300.0), limits=ONE_SLOT)
    for body in (b'{"key": "a", "n": %d}' % n for n in range(100)):
        town.deeds[body] = work
    await town.send(*numbers(0, key="a"))
    await town.until(lambda: node.work.pool.busy)
    return node


async def test_a_message_that_waits_for_a_slot_names_the_key_that_has_it_and_since_when(town: Town) -> None:
    node = await one_that_works(town)
    await town.clock.sleep(4.0)
    await town.send(*numbers(0, key="b"))
    await town.clock.sleep(10.0)
    waits = (await explained(node, "s/b")).waits
    assert waits is not None
    assert waits.kind == "slot"
    assert waits.sentence == "waits for its slot a-1, which has been busy with s/a for 14 s"
    assert waits.since_s == pytest.approx(10.0, abs=0.1)
    assert [each.key for each in (await reported(node)).waits] == ["s/b"]
    (line,) = (fields for _, event, fields in node.log.entries if event == "stream waits")
    assert line["key"] == "s/b"
    assert str(line["reason"]).startswith("waits for its slot a-1, which has been busy with s/a for ")
    assert node.work.waiting_streams.counts()["slot"] == 1
    assert node.work.waiting_streams.longest()["slot"] > LOG_AFTER_S
    with pytest.raises(OutcomeUnknown, match=r"\(it waits: slot\)"):
        await node.work.requests.process("s", "s/b", Place(0, 1), b'{"key":"b","n":1}', {}, 2.0)
    await town.until_over()
    assert (await explained(node, "s/b")).waits is None


async def test_a_short_wait_for_a_slot_is_not_told(town: Town) -> None:
    node = await one_that_works(town, work_s=0.4)
    for n in range(1, 20):  # every second of these waits for a moment
        await town.send(*numbers(n, key="a"), *numbers(n - 1, key="b"))
        await town.clock.sleep(0.45)
        assert node.work.waiting_streams.all() == []
    await town.until_over()
    assert "stream waits" not in node.log.events("warning")


async def test_a_message_that_runs_says_in_which_slot_and_for_how_long(town: Town) -> None:
    node = await one_that_works(town)
    await town.clock.sleep(14.0)
    found = await explained(node, "s/a")
    assert found.waits is None
    assert found.runs is not None
    assert found.runs.sentence == "message 0:0 runs in a-1, for 14 s now"
    (work,) = (await reported(node)).works
    assert (work.of, work.slot) == ("s/a", "a-1")
    assert work.still_s == pytest.approx(14.0, abs=0.1)
    await town.until_over()
    await town.clock.sleep(1.0)
    assert (await explained(node, "s/a")).runs is None
    assert (await reported(node)).works == []


async def test_a_stream_is_as_busy_as_its_handler_however_long_it_waits_for_the_slot(town: Town) -> None:
    node = await one_that_works(town, work_s=0.9)
    for n in range(1, 30):
        await town.send(*numbers(n, key="a"), *(numbers(n - 1, key=key)[0] for key in "bcdefgh"))
        await town.clock.sleep(1.0)
    assert node.work.load().busy <= 1.1, "of one slot"
    said = await node.peer.call(node.peer.address, Busiest(node.id, 10, "load"), 1.0)
    assert isinstance(said, Done)
    loads = {each.key: each.load for each in msgspec.json.decode(said.text, type=list[StreamActivity])}
    assert loads["s/a"] == pytest.approx(0.9, abs=0.15)
    assert max(loads[f"s/{key}"] for key in "bcdefgh") < 0.1
    await town.until_over()


async def test_a_long_call_keeps_one_slot_busy_and_not_many_when_it_ends(town: Town) -> None:
    node = await one_that_works(town)
    seen = []
    for _ in range(60):
        await town.clock.sleep(1.0)
        seen.append(node.work.load().busy)
    assert max(seen) <= 1.0
    assert min(seen[15:35]) > 0.9, "while it runs"
    await town.until_over()


async def test_a_stream_that_no_node_takes_says_why(town: Town) -> None:
    node = await town.start(
        app_of(gap_timeout_s=60.0), limits=msgspec.structs.replace(ONE_SLOT, streams_per_slot_max=1)
    )
    await town.send(*numbers(0, 2, key="a"))
    await town.until(lambda: node.owns("s/a"))
    await town.until(lambda: node.host.membership.view[node.id].load.room == 0)
    await town.send(*numbers(0, 1, key="b"))
    await town.clock.sleep(20.0)
    waits = {each.key: each for each in (await reported(node)).waits}
    assert waits["s/b"].sentence == (
        "waits for a node that takes it: no node has room for a new stream: full are a (streams_per_slot_max)"
    )
    assert waits["s/b"].since_s == pytest.approx(20.0, abs=1.0)
    assert waits["s/b"].kind == "room"
    assert node.work.waiting_streams.longest()["room"] > 15.0
    assert node.work.waiting_streams.counts()["room"] == 1
    await town.send(*numbers(1, key="a"))
    await town.until_over()
    assert (await reported(node)).waits == []


async def test_an_archive_that_is_away_is_told_with_its_error(town: Town) -> None:
    node = await town.start(archiving(), limits=msgspec.structs.replace(LIMITS, max_held=20))

    async def put(name: str, data: bytes) -> Any:
        raise Unavailable("the bucket is gone")

    node.archive.instead["put"] = put
    await town.send(*({"key": "k", "n": n} for n in range(5)))
    await town.clock.sleep(10.0)
    assert (await reported(node)).archives == {"s": "5 committed messages wait for it: the bucket is gone"}
    await town.send(*({"key": "k", "n": n} for n in range(5, 10)))
    await town.clock.sleep(10.0)
    body = b'{"key": "k", "n": 10}'
    asked = asyncio.ensure_future(node.work.requests.process("s", "s/k", Place(0, 10), body, {}, 60.0))
    await town.clock.sleep(1.0)
    waits = (await explained(node, "s/k")).waits
    assert waits is not None
    assert waits.text == "its archive, which has yet to take what is committed: the bucket is gone"
    del node.archive.instead["put"]
    await asked
    await town.until_over()
    assert (await reported(node)).archives == {}
