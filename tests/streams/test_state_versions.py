"""State that a newer version of the app wrote: its stream goes to a node that reads it, and parks without."""

from typing import Any

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.message import Place
from holdfast.errors import Unavailable
from holdfast.streams.obstacles import AGAIN
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
KEY = "s/k"


class Item(msgspec.Struct):
    """A message."""

    key: str
    n: int


class Count(StreamHandler[Item]):
    """Counts."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.count = int(state or b"0")

    def process(self, message: Item, context: Context) -> Any:
        self.count += 1
        return {"n": message.n, "count": self.count}

    def snapshot(self) -> bytes:
        return str(self.count).encode()

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        return state


class Newer(Count):
    """What a later version of the app does."""

    version = 2


def app_of(handler: type[Count]) -> App:
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, idle_timeout_s=1000.0, max_tries=1)(handler)
    return app


def numbers(*ns: int, key: str = "k") -> list[dict[str, Any]]:
    return [{"key": key, "n": n} for n in ns]


async def written(town: Town, name: str = "newer") -> TownNode:
    """A newer node that has written its state."""
    newer = await town.start(app_of(Newer), name)
    await town.send(*numbers(0))
    await town.until_over()
    return newer


async def give(town: Town, node: TownNode) -> None:
    """Place the stream on a node, as one does that doesn't know the version of its state."""
    claim = await town.coordinator.lookup(KEY)
    if claim is None:
        await town.coordinator.claim(KEY, node.id)
    else:
        await town.coordinator.transfer(claim, node.id)


def waits(node: TownNode) -> bool:
    """True if the node owns the stream and can't run it."""
    entry = node.work.owners.get(KEY)
    return entry is not None and bool(entry.owner.runs.obstacle)


def parked(town: Town) -> str:
    return town.state.standing[KEY].parked


async def test_a_node_with_an_older_handler_moves_a_stream_to_one_that_reads_its_state(town: Town) -> None:
    newer = await written(town)
    older = await town.start(app_of(Count), "older")
    await town.until(lambda: newer.id in older.host.membership.view)
    await give(town, older)
    await town.send(*numbers(1, 2))
    await town.until_over()
    assert newer.owns(KEY)
    assert not older.owns(KEY)
    assert [each["count"] for each in town.results("k")] == [1, 2, 3]
    assert town.letters() == []
    assert parked(town) == ""
    assert older.log.events("error") == []


async def test_a_stream_waits_while_the_node_that_reads_its_state_is_full(town: Town) -> None:
    newer = await written(town)
    await newer.node.stop()
    town.nodes.remove(newer)
    older = await town.start(app_of(Count), "older")
    full = await town.start(app_of(Newer), "full", msgspec.structs.replace(LIMITS, streams_per_slot_max=0))
    await town.until(lambda: full.id in older.host.membership.view)
    await give(town, older)
    await town.send(*numbers(1))
    await town.until(lambda: waits(older))
    await town.clock.sleep(5 * AGAIN.max_s)
    assert parked(town) == ""
    with pytest.raises(Unavailable, match="the state of the stream is newer than the handler on this node"):
        await older.work.requests.process("s", KEY, Place(0, 2), b"{}", {}, 1.0)
    free = await town.start(app_of(Newer), "free")
    await town.until_over()
    assert free.owns(KEY)
    assert [each["count"] for each in town.results("k")] == [1, 2]


@pytest.mark.parametrize("draining", [False, True])
async def test_a_stream_is_parked_if_no_node_that_stays_reads_its_state(town: Town, draining: bool) -> None:
    newer = await written(town)
    older = await town.start(app_of(Count), "older")
    if draining:
        newer.host.draining = True
        newer.host.membership.renew_now.set()
        await town.until(
            lambda: newer.id in (view := older.host.membership.view) and view[newer.id].load.draining
        )
    else:
        await town.crash(newer)
        await town.until(lambda: newer.id not in older.host.membership.view)
    await give(town, older)
    await town.send(*numbers(1))
    await town.until(lambda: parked(town))
    assert "state of s/k has version 2, newer than version 1 of Count" in parked(town)
    assert town.letters() == []


async def test_a_node_that_drains_gives_a_stream_to_one_that_reads_its_state(town: Town) -> None:
    newer = await written(town)
    await town.start(app_of(Count), "older")
    other = await town.start(app_of(Newer), "other")
    await town.until(lambda: len(newer.host.membership.view) == 3)
    await town.send(*(message for number in range(6) for message in numbers(0, key=f"k{number}")))
    await town.until_over()
    await newer.node.stop()
    town.nodes.remove(newer)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    assert claim.member == other.id
    await town.send(*numbers(1))
    await town.until_over()
    assert [each["count"] for each in town.results("k")] == [1, 2]
